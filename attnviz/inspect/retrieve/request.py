"""The options of ``retrieve``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from attnviz.errors import UsageError
from attnviz.options import IndexBase, Ranked, Seed, option
from attnviz.texts import as_utf8

_LENGTH = re.compile(r"([1-9][0-9]{0,8})(k?)")


class Needle(NamedTuple):
    """A fact that is hidden in a text: the words of its cue, which ask for it, and its answer."""

    cue: str
    answer: str


@dataclass(frozen=True)
class RetrieveRequest(Ranked, IndexBase, Seed, panel="Needles and haystacks"):
    """All options of ``retrieve``."""

    needle: tuple[str, ...] = option(
        "'CUE|ANSWER'",
        "A fact to hide and then ask about, such as 'The password is|blue rain' (default: built-in "
        "ones); may be repeated.",
        (),
        brief="A fact to hide and then ask about.",
    )
    haystack: Path | None = option("FILE", "The text to hide facts in (default: built-in).")
    chat: bool = option(
        "",
        "Ask in a chat: the text and the question form one user message, in the model's own chat "
        "template.",
        False,
        brief="Ask using the model's chat template.",
    )
    lengths: str | None = option(
        "N,N",
        "Lengths of the whole prompt in tokens, such as 1k,4k,16k (default: up to 1,000).",
        brief="Lengths in tokens, such as 1k,4k,16k.",
    )
    haystacks: int = option("N", "Number of haystacks of each length.", 5, min=1, max=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.needles, self.tokens  # what cannot be read is refused now

    @property
    def needles(self) -> tuple[Needle, ...]:
        """Return the facts that were given; UsageError for one without a cue and an answer."""
        needles = dict[Needle, None]()
        for typed in self.needle:
            parts = as_utf8(typed, "--needle").split("|")
            if len(parts) != 2 or not all(map(str.strip, parts)):
                raise UsageError(
                    f"--needle {'|'.join(parts)!r} is not a fact: expected a cue and an answer "
                    "with a bar between them, such as 'The password is|blue rain'"
                )
            needles[Needle(*map(str.strip, parts))] = None
        return tuple(needles)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return the lengths that were given, in ascending order; empty for the default ones."""
        if self.lengths is None:
            return ()
        matches = [_LENGTH.fullmatch(part.strip().lower()) for part in self.lengths.split(",")]
        if None in matches:
            raise UsageError(
                f"cannot read --lengths {self.lengths!r}: expected numbers of tokens such as "
                "256,1000 or 1k,4k"
            )
        return tuple(sorted({int(own[1]) * (1000 if own[2] else 1) for own in matches if own}))
