"""Tables of comma-separated values whose texts come from strangers.

A text stands as it is, so that a reader gets it back, even where a spreadsheet would take it for a
formula: nothing is put before ``=cmd``. Only what acts on a terminal through ``cat``, or breaks a
row, is written as in JSON: ``\\u001b`` for escape, ``\\u000d`` for a carriage return, and
``\\u005c`` for a backslash that begins such a text by itself. ``\\u`` and four hex digits are
always that, so that replacing them gives every text back. Line feeds and tabs stand.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["CsvTable", "csv_text"]

_ACTING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
    r"|\\(?=u[0-9a-f]{4})"
)


def csv_text(text: str) -> str:
    """A text whose control and direction characters are written out; see the module."""
    return _ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class CsvTable:
    """Writes rows, the texts in them as ``csv_text`` gives them."""

    def __init__(self, stream: SupportsWrite[str]) -> None:
        self._writer = csv.writer(stream, lineterminator="\n")

    def writerow(self, cells: Iterable[object]) -> None:
        self._writer.writerow(csv_text(cell) if isinstance(cell, str) else cell for cell in cells)

    def writerows(self, rows: Iterable[Iterable[object]]) -> None:
        for row in rows:
            self.writerow(row)
