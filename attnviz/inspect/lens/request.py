"""The options of ``lens``."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.options import Options, option
from attnviz.prompts.request import LogitRequest, position


@dataclass(frozen=True)
class _Followed(Options, panel="What to follow"):
    answer: str | None = option(
        "TOKEN",
        "Follow this token (default: the model's top prediction).",
        words=True,
        brief="Follow this token (default: the top one).",
    )
    position: str | None = position()


@dataclass(frozen=True)
class LensRequest(_Followed, LogitRequest):
    """All options of ``lens``."""
