"""``attnviz verify --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.render.export.csv_cells import CsvTable
from attnviz.render.export.path_check import check_path
from attnviz.render.export.saved_file import TextWriter, save_page, save_text
from attnviz.render.export.verification_json import write_verification_json
from attnviz.render.export.verification_page import verification_page, verification_table
from attnviz.verification import Verification

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["SAVED", "check_save_path", "save_verification"]

SAVED = (".json", ".csv", ".svg", ".html", ".png", ".txt")
"""The endings that are known."""

_COLUMNS = (
    *("case", "check", "against", "verdict", "measure", "difference", "tolerance"),
    *("roundings", "largest", "where", "reason"),
)


def check_save_path(path: Path) -> None:
    """Raise one line if ``save_verification`` could not write ``path``; see ``check_path``."""
    check_path(path, SAVED)


def _write_csv(found: Verification, stream: SupportsWrite[str]) -> None:
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


def save_verification(found: Verification, path: Path, palette: str, screen_text: str) -> None:
    """Write a verification whole or not at all; ``screen_text`` is what a ``.txt`` holds.

    Raises what ``check_save_path`` raises, and LoadError where the system refuses on the way.
    """
    check_save_path(path)
    writers: dict[str, TextWriter] = {
        ".json": partial(write_verification_json, found),
        ".csv": partial(_write_csv, found),
        ".txt": lambda out: out.write(screen_text),
    }
    write = writers.get(path.suffix.lower())
    if write is not None:
        save_text(path, write)
    else:
        save_page(path, verification_page(found), palette, [*verification_table(found)])
