"""From records of weights to the report of their heads: scored, in order, side by side.

And what is to be seen of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.errors import UsageError
from attnviz.measures.labels import KnownLabels
from attnviz.measures.one_text import head_scores, notable_heads
from attnviz.measures.words import joined, word_spans
from attnviz.records import AttentionRecord, HeadScores, HeadsReport, Tokens

_NOTABLE = 3


def heads_report(
    record: AttentionRecord,
    selected: bool,
    index_base: int = 0,
    sort: str | None = None,
    smallest_first: bool = False,
    *,
    text: str = "",
    target: str | None = None,
    known: KnownLabels | None = None,
) -> HeadsReport:
    """The scores of the record's heads, by the measure ``sort`` or as they come.

    selected: whether the heads were chosen. index_base: 0 or 1, of their names.
    text, target: as they were given; a decoder's text that the model wrote is found by itself.
    known: labels of the model's heads that were measured before.

    Raises UsageError for an order that this text or model does not have.
    """
    heads = head_scores(record, known)
    if sort is not None:
        heads = _sorted(heads, sort, smallest_first)
    ranked = [(entry.layer, entry.head) for entry in heads[:_NOTABLE]]
    notable = tuple(ranked) if sort is not None else notable_heads(heads, _NOTABLE)
    if target is None and text and record.kind in ("decoder", "cross"):
        target = joined(record.queries)
    return HeadsReport(record, heads, notable, selected, index_base, sort, text, target)


def _sorted(
    heads: tuple[HeadScores, ...], measure: str, smallest_first: bool
) -> tuple[HeadScores, ...]:
    """The heads by a measure; those that it does not apply to come last."""
    measured = [entry for entry in heads if entry.scores[measure] is not None]
    if not measured:
        raise UsageError(
            f"{measure} cannot be measured here: the text repeats no token, or this kind of "
            "attention has none; choose another --sort"
        )
    measured.sort(key=lambda entry: entry.scores[measure] or 0.0, reverse=not smallest_first)
    return (*measured, *(entry for entry in heads if entry.scores[measure] is None))


@dataclass(frozen=True)
class HeadsComparison:
    """Runs of one model over one text, to be seen side by side; a single run is one of one.

    reports: at least one; they differ in the kind of attention, its mask or its score.
    moved: for each report, the share of attention that each head (layer, head) has on other keys
        than in the first one, in [0, 1]; None for the first, and where texts differ.
    """

    reports: tuple[HeadsReport, ...]
    moved: tuple[Mapping[tuple[int, int], float] | None, ...]

    def __post_init__(self) -> None:
        if not self.reports or len(self.moved) != len(self.reports):
            raise ValueError(
                "a comparison needs a report, and what was moved in each: "
                f"got {len(self.reports)} and {len(self.moved)}"
            )

    @property
    def first(self) -> HeadsReport:
        """The report that stands for all in what they share, and in the order of heads."""
        return self.reports[0]

    @property
    def target(self) -> str | None:
        """The target text of the runs that have one."""
        return next((each.target for each in self.reports if each.target is not None), None)

    def kept_by(self, layer: int, head: int) -> tuple[int, ...]:
        """Which of the reports kept a head."""
        return tuple(
            index
            for index, report in enumerate(self.reports)
            if any((entry.layer, entry.head) == (layer, head) for entry in report.heads)
        )


def total_variation(
    weights: NDArray[np.floating], other: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Mean over queries of ½ Σⱼ |A[i, j] − B[i, j]|, of weights (..., query, key); in [0, 1].

    The total variation distance: the share of its attention that a query moves to other keys.
    """
    moved: NDArray[np.floating] = np.abs(weights - other).sum(-1).mean(-1) / 2
    return moved


def compare_heads(reports: Sequence[HeadsReport]) -> HeadsComparison:
    """The reports side by side, each with what its heads moved against those of the first.

    Nothing is moved where the two look from or at different texts.
    """
    first, *others = reports
    kept = {(entry.layer, entry.head) for entry in first.heads}
    texts = first.record.queries, first.record.keys
    moved: list[dict[tuple[int, int], float] | None] = [None]
    for report in others:
        places = kept & {(entry.layer, entry.head) for entry in report.heads}
        distances = {
            place: float(total_variation(first.weights(*place), report.weights(*place)))
            for place in sorted(places)
            if (report.record.queries, report.record.keys) == texts
        }
        moved.append(distances or None)
    return HeadsComparison(tuple(reports), tuple(moved))


# What is to be seen --------------------------------------------------------------------------


class Word(NamedTuple):
    """A word of the text.

    span: its tokens.
    elsewhere: the first tokens of its other occurrences.
    """

    span: range
    elsewhere: tuple[int, ...] = ()


def find_word(record: AttentionRecord, wanted: str) -> tuple[Word | None, Word | None]:
    """Where a word, or the token of an index, stands among the queries and among the keys.

    Raises UsageError where it is in neither.
    """
    queries = _place(record.queries, wanted)
    keys = queries if record.keys is record.queries else _place(record.keys, wanted)
    if queries is None and keys is None:
        last = max(len(record.queries), len(record.keys)) - 1
        raise UsageError(
            f"no token {wanted!r} in the text: give a word of it, or an index from 0 to {last}"
        )
    return queries, keys


def _place(tokens: Tokens, wanted: str) -> Word | None:
    """The token of an index, or the first occurrence of a word."""
    if re.fullmatch(r"-?\d{1,18}", wanted):
        place = int(wanted) + (len(tokens) if wanted.startswith("-") else 0)
        return Word(range(place, place + 1)) if 0 <= place < len(tokens) else None
    spans = word_spans(tokens, wanted)
    return Word(spans[0], tuple(span.start for span in spans[1:])) if spans else None


class View(NamedTuple):
    """What is to be seen of a report.

    values: write the weights into the cells.
    top: strongest pairs of each head, or None.
    words: for each run the chosen word among the queries and among the keys; none for no word.
    explain: add a reading for newcomers.
    hints: what to try next.
    """

    values: bool = False
    top: int | None = None
    words: Sequence[tuple[Word | None, Word | None]] = ()
    explain: bool = False
    hints: Sequence[str] = ()
