"""The report of ``align``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts
from attnviz.records import ModelInfo


class HeadErrors(NamedTuple):
    """A head, and the error on each half of the examples, by it alone or with those before it."""

    layer: int
    head: int
    choosing: float
    held: float


class HeadSet(NamedTuple):
    """A set of heads, and how well it aligns words on the examples that were held out.

    heads: (layer, head); empty for random sets, whose mean it is, and for what uses no attention.
    error: with its 95% CI, None for fewer than five examples. apart: the 95% CI of the
    error of the chosen heads less this one. reading: which rows were read, as ``recipe``.
    further: of sounds the ``median`` error of all words and the share ``late``, off by over 0.2 s;
    of pairs ``precision`` and ``recall``.
    """

    name: str
    heads: tuple[tuple[int, int], ...]
    error: float
    interval: tuple[float, float] | None
    apart: tuple[float, float] | None
    reading: str
    further: Mapping[str, float]


class TimedWord(NamedTuple):
    """A word of a held-out clip: the true seconds, and those by the chosen heads."""

    clip: str
    word: str
    start: float
    end: float
    by_heads: float
    end_by_heads: float


class LinkedWord(NamedTuple):
    """A target word of a held-out pair: its gold source words, and the one by the chosen heads.

    pair: its number in the file. source: its position, from 0. link: whether the source word is a
    ``sure`` link, a ``possible`` one or ``wrong``; ``none`` if the gold has no link of this word.
    """

    pair: str
    position: int
    word: str
    gold: str
    by_heads: str
    source: int
    link: str


AlignedWord = TimedWord | LinkedWord


@dataclass(frozen=True, repr=False)
class AlignReport(Report):
    """Which cross-attention heads align words: with a sound, or with those of another language.

    model: its facts. choosing, held: the clips or pairs that chose heads, and those that were
    measured. recipe: which rows were aligned: of sounds ``openai`` or ``transformers``, of pairs
    ``writes`` (those that write a word) or ``reads``. frame: in seconds; None for pairs, whose
    errors are alignment error rates in [0, 1]; those of sounds are seconds.
    heads: each head alone. published: the list in the model's files, empty if none. steps: of the
    greedy choice. sets: the chosen heads first, then the controls. words: of the held-out examples.
    """

    model: ModelInfo
    choosing: tuple[str, ...]
    held: tuple[str, ...]
    recipe: str
    frame: float | None
    heads: tuple[HeadErrors, ...]
    published: tuple[tuple[int, int], ...]
    steps: tuple[HeadErrors, ...]
    sets: tuple[HeadSet, ...]
    words: tuple[AlignedWord, ...]
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
        return {
            "schema": "attnviz.align/1",
            "model": model_facts(self.model),
            "alignment_heads": self.alignment_heads,
            "measure": "alignment error rate" if self.frame is None else "seconds",
            **fields_of(self, ("recipe", "frame", "choosing", "held", "published", "notes")),
            "sets": [
                {name: getattr(heads, name) for name in heads._fields[:-1]} | dict(heads.further)
                for heads in self.sets
            ],
            **{
                name: [row._asdict() for row in getattr(self, name)]
                for name in ("steps", "heads", "words")
            },
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each word of the held-out examples."""
        yield (TimedWord if self.frame else LinkedWord)._fields
        yield from self.words
