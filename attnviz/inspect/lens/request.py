"""The options of ``lens``."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.options import Options, option
from attnviz.prompts.request import LogitRequest


@dataclass(frozen=True)
class _Followed(Options, panel="What is followed"):
    answer: str | None = option(
        "TOKEN",
        "Follow this token (default: the model's top prediction).",
        words=True,
        brief="Follow this token (default: the top one).",
    )
    position: str | None = option(
        "WORD|INDEX",
        "Where it is predicted: behind this token (default: the last; of a masked model at its "
        "mask token).",
        words=True,
        brief="Predict after this token (default: the last).",
    )


@dataclass(frozen=True)
class LensRequest(_Followed, LogitRequest):
    """All options of ``lens``."""
