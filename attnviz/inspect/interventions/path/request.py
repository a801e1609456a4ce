"""The options of ``path``."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.engine.patching import Into
from attnviz.errors import UsageError
from attnviz.inspect.interventions.prompts import PromptPair
from attnviz.options import IndexBase, Options, Ranked, Seed, argument, flag, option


@dataclass(frozen=True)
class _Sender(Options):
    """The argument that names the sender, whose share in later heads' inputs is measured."""

    sender: str = argument("HEAD", "The head that later heads read from, such as L0H0.", ...)


@dataclass(frozen=True)
class _Into(Options):
    """The options on what of the later heads is compared: one input, or their weights alone."""

    into: Into | None = option(
        "WHAT", "Into their queries, keys or values alone (default: all three)."
    )
    weights: bool = flag("What stands in the weights alone, on the vocabulary, without prompts.")


@dataclass(frozen=True)
class PathRequest(_Sender, PromptPair, _Into, Ranked, IndexBase, Seed):
    """All options of the paths from one head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights and (self.clean or self.corrupt or self.pairs or self.into):
            raise UsageError(
                "--weights reads no prompts and compares keys alone: leave out CLEAN, CORRUPT, "
                "--pairs and --into"
            )
