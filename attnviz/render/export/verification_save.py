"""``attnviz verify --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

import codecs
import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.render.export.drawing_plot import write_drawing_png
from attnviz.render.export.path_check import check_path
from attnviz.render.export.sections import page_drawing, page_html
from attnviz.render.export.svg import svg_document
from attnviz.render.export.verification_json import write_verification_json
from attnviz.render.export.verification_page import verification_page, verification_table
from attnviz.render.export.whole_file import whole_file
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
    writer = csv.writer(stream, lineterminator="\n")
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
    ending = path.suffix.lower()
    with whole_file(path) as stream:
        out = codecs.getwriter("utf-8")(stream, "backslashreplace")
        if ending == ".json":
            write_verification_json(found, out)
        elif ending == ".csv":
            _write_csv(found, out)
        elif ending == ".txt":
            out.write(screen_text)
        elif ending == ".html":
            pieces = page_html(verification_page(found), palette, [*verification_table(found)])
            out.writelines(f"{piece}\n" for piece in pieces)
        elif ending == ".png":
            write_drawing_png(page_drawing(verification_page(found)), palette, stream)
        else:
            out.write(svg_document(page_drawing(verification_page(found)), palette))
