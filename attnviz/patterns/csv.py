"""Heads as a table: a line each; indices start at 0. What was not measured is empty.

``score.NAME``, ``base.NAME``, ``strength.NAME`` and, with a control, ``random.NAME`` are of the
score of that name; the statistics stand under their own names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnviz.draw.csv_cells import CsvTable
from attnviz.measures.registry import STATISTICS
from attnviz.patterns.records import PatternReport, PatternScores
from attnviz.patterns.view import PatternView

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["pattern_columns", "pattern_row", "write_patterns_csv"]


def pattern_columns(report: PatternReport) -> list[str]:
    """The names of the columns."""
    names = _names(report)
    kinds = ["score", "base", "strength", *(["random"] if report.control else [])]
    return [
        *("layer", "head", "label", "margin", "agreement"),
        *STATISTICS,
        *(f"{kind}.{name}" for kind in kinds for name in names),
    ]


def _names(report: PatternReport) -> list[str]:
    """Every score that some head has, in the order of the first."""
    return list(dict.fromkeys(name for entry in report.heads for name in entry.scores))


def _written(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else repr(float(value))


def pattern_row(report: PatternReport, entry: PatternScores) -> Iterator[str]:
    """The cells of one head, in the order of the columns."""
    yield from (str(entry.layer), str(entry.head), entry.label or "")
    yield from (_written(entry.margin), _written(entry.agreement))
    yield from (_written(entry.statistics.get(name)) for name in STATISTICS)
    kinds = [entry.scores, entry.base_rate, entry.strength]
    kinds += [entry.control] if report.control else []
    for values in kinds:
        yield from (_written(values.get(name)) for name in _names(report))


def write_patterns_csv(
    report: PatternReport, view: PatternView, stream: SupportsWrite[str]
) -> None:
    """Write a line for each head; where one label is watched, ranked by its score."""
    writer = CsvTable(stream)
    writer.writerow(pattern_columns(report))
    heads = report.heads if view.watch is None else report.ranked(view.watch)
    writer.writerows(pattern_row(report, entry) for entry in heads)
