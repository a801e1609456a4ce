"""The measures of ``attnviz scaling`` as a table: a line a case, side and measure or bin.

Layers and heads count from 0. A line whose measure is ``weights_in_bin`` is the number of weights
from ``bin_from`` to ``bin_to``. What does not apply is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from attnviz.draw.csv_cells import CsvTable
from attnviz.scaling.records import BIN_EDGES, ScalingCase, ScalingReport, Softened

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["COLUMNS", "write_scaling_csv"]

COLUMNS = (
    *("d_k", "layer", "head", "side", "scale", "measure"),
    *("value", "standard_error", "expected", "bin_from", "bin_to"),
)


def write_scaling_csv(report: ScalingReport, stream: SupportsWrite[str]) -> None:
    """Write the heading and every line."""
    writer = CsvTable(stream)
    writer.writerow(COLUMNS)
    for case in report.cases:
        for name, side in (("without", case.plain), ("with", case.scaled)):
            writer.writerows(_lines(case, name, side))


def _lines(case: ScalingCase, name: str, side: Softened) -> Iterator[tuple[str, ...]]:
    lead = (str(case.d_k), _index(case.layer), _index(case.head), name, repr(side.scale))
    for measure, estimate in side.measures.items():
        error = "" if estimate.error is None else repr(estimate.error)
        expected = repr(side.expected_variance) if measure == "score_variance" else ""
        yield (*lead, measure, repr(estimate.value), error, expected, "", "")
    for (low, high), count in zip(pairwise(BIN_EDGES), side.histogram, strict=True):
        yield (*lead, "weights_in_bin", str(count), "", "", repr(low), repr(high))


def _index(number: int | None) -> str:
    return "" if number is None else str(number)
