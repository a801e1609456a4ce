"""From a record of weights to the report of its heads: scored, in order, the telling ones named."""

from __future__ import annotations

from attnviz.errors import UsageError
from attnviz.measures.one_text import head_scores, telling_heads
from attnviz.records import AttentionRecord, HeadScores, HeadsReport

__all__ = ["heads_report"]

_TELLING = 3


def heads_report(
    record: AttentionRecord,
    selected: bool,
    index_base: int = 0,
    sort: str | None = None,
    smallest_first: bool = False,
) -> HeadsReport:
    """The scores of the record's heads, by the measure ``sort`` or as they come.

    selected: whether the heads were chosen. index_base: 0 or 1, of their names.

    Raises UsageError for an order that this text or model does not have.
    """
    heads = head_scores(record)
    if sort is not None:
        heads = _sorted(heads, sort, smallest_first)
    ranked = [(entry.layer, entry.head) for entry in heads[:_TELLING]]
    telling = tuple(ranked) if sort is not None else telling_heads(heads, _TELLING)
    return HeadsReport(record, heads, telling, selected, index_base, sort)


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
