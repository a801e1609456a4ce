"""The options of ``align``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnviz.errors import UsageError
from attnviz.options import IndexBase, Options, option


@dataclass(frozen=True)
class ClipOptions(Options):
    """The options that give sounds, and when their words are spoken."""

    audio: tuple[str, ...] = option(
        "FILE|DIR",
        "Sounds of known words, or a directory of them; may be repeated.",
        (),
        brief="Sounds, or a directory of them.",
    )
    words: Path | None = option(
        "FILE",
        "When words are spoken: CSV, TSV or JSON with clip, word, start and end (seconds).",
        brief="Table of clip, word, start and end in seconds.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.audio or self.words is None:
            lacks = "--audio FILE" if not self.audio else "--words FILE"
            raise UsageError(f"align compares heads with spoken words of known times: add {lacks}")


@dataclass(frozen=True)
class AlignRequest(IndexBase):
    """All options of ``align`` but its sounds.

    recipe: which rows of cross attention are aligned. ``openai`` takes those that write each token
    and the end, as OpenAI's code does: they say when a token begins. ``transformers`` takes those
    that read each token, as ``return_token_timestamps`` does: they say when it ends, and a token
    begins where the one before ended, the first at 0.
    """

    most: int = option("N", "The most heads to choose.", 10, min=1, max=64)
    recipe: Literal["openai", "transformers"] = option(
        "NAME",
        "openai: rows that write a token say when it begins; transformers: rows that read it say "
        "when it ends.",
        "openai",
        brief="Rows that are aligned: openai or transformers.",
    )
    seed: int = option("N", "Seed of random sets of heads and intervals.", 0, min=0)
