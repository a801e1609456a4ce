"""The report of ``align``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnviz.draw.report import Report
from attnviz.draw.values import model_facts
from attnviz.records import ModelInfo


class HeadAlone(NamedTuple):
    """A head, and the error of word beginnings by it alone, in seconds, on each half of clips."""

    layer: int
    head: int
    choosing: float
    held: float


class AddedHead(NamedTuple):
    """A head that was added, and the error with it in seconds on each half of the clips."""

    layer: int
    head: int
    choosing: float
    held: float


class HeadSet(NamedTuple):
    """A set of heads, and how well it times words on the clips that were held out.

    heads: (layer, head); empty for random sets, whose mean it is, and for even spacing.
    error: of word beginnings in seconds, in the mean of clips; with its 95% interval, None for
    fewer than five clips. median: of all words. late: the share of words off by over 0.2 s.
    apart: the 95% interval of the error of the chosen heads less this one.
    """

    name: str
    heads: tuple[tuple[int, int], ...]
    error: float
    interval: tuple[float, float] | None
    median: float
    late: float
    apart: tuple[float, float] | None


class TimedWord(NamedTuple):
    """A word of a held-out clip: the true seconds, and those by the chosen heads."""

    clip: str
    word: str
    start: float
    end: float
    by_heads: float
    end_by_heads: float


@dataclass(frozen=True, repr=False)
class AlignReport(Report):
    """Which cross-attention heads of a speech model time words.

    model: its facts. choosing, held: the clips that chose heads, and those that were measured.
    recipe: which rows were aligned, ``openai`` or ``transformers``. frame: in seconds.
    heads: each head alone. published: the list in the model's files, empty if none. steps: of the
    greedy choice. sets: the chosen heads first, then the controls. words: of the held-out clips.
    """

    model: ModelInfo
    choosing: tuple[str, ...]
    held: tuple[str, ...]
    recipe: str
    frame: float
    heads: tuple[HeadAlone, ...]
    published: tuple[tuple[int, int], ...]
    steps: tuple[AddedHead, ...]
    sets: tuple[HeadSet, ...]
    words: tuple[TimedWord, ...]
    notes: tuple[str, ...] = ()
    index_base: int = 0

    command = "align"
    lists = ("heads", "steps", "sets", "words")

    @property
    def alignment_heads(self) -> list[list[int]]:
        """Return the chosen heads as ``generation_config.alignment_heads`` takes them."""
        return sorted(map(list, self.sets[0].heads))

    def head_name(self, layer: int, head: int) -> str:
        """Return the name of a head, such as ``L2H5``."""
        return f"L{layer + self.index_base}H{head + self.index_base}"

    def data(self) -> dict[str, Any]:
        """Return the JSON object that ``--json`` prints."""
        return {
            "schema": "attnviz.align/1",
            "model": model_facts(self.model),
            "alignment_heads": self.alignment_heads,
            "recipe": self.recipe,
            "frame": self.frame,
            "choosing": self.choosing,
            "held": self.held,
            "published": self.published,
            "notes": self.notes,
            "sets": [one._asdict() for one in self.sets],
            "steps": [step._asdict() for step in self.steps],
            "heads": [head._asdict() for head in self.heads],
            "words": [word._asdict() for word in self.words],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each word of the held-out clips."""
        yield TimedWord._fields
        yield from self.words
