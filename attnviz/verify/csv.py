"""``attnviz verify --save FILE.csv``: every measure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attnviz.draw.csv_cells import CsvTable
from attnviz.verify.records import Verification

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["write_verification_csv"]

_COLUMNS = (
    *("case", "check", "against", "verdict", "measure", "difference", "tolerance"),
    *("roundings", "largest", "where", "reason"),
)


def write_verification_csv(found: Verification, stream: SupportsWrite[str]) -> None:
    """A line a measure, or a check that was skipped; what is no number is empty."""
    writer = CsvTable(stream)
    writer.writerow(_COLUMNS)
    for check in found.checks:
        start = (check.group, check.name, check.against, check.verdict)
        for measure in check.measures:
            number = repr(float(measure.difference)) if math.isfinite(measure.difference) else ""
            tolerance = measure.tolerance
            writer.writerow(
                (
                    *start,
                    *(measure.name, number, repr(tolerance.value)),
                    *(tolerance.roundings, repr(tolerance.largest), measure.where, measure.reason),
                )
            )
        if check.skipped is not None:
            writer.writerow((*start, "", "", "", "", "", "", check.skipped))
