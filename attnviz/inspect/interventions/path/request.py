"""The options of ``path``."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.engine.patching import Into
from attnviz.options import IndexBase, Options, Ranked, Seed, argument, option
from attnviz.prompts.request import PromptPair


@dataclass(frozen=True)
class _Sender(Options):
    sender: str = argument("HEAD", "The head that later heads read from: L0H0, or a label.", ...)


@dataclass(frozen=True)
class _Into(Options):
    into: Into | None = option(
        "WHAT",
        "Follow paths only into later heads' queries, keys or values (default: all three).",
        brief="Follow paths only into queries, keys or values.",
    )


@dataclass(frozen=True)
class PathRequest(_Sender, PromptPair, _Into, Ranked, IndexBase, Seed):
    """All options of the paths from one head."""
