"""The short answer for programs: the finding, and the first rows of the table that supports it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from attnviz.draw.document import Document, Table, Ways, leaves

if TYPE_CHECKING:
    from attnviz.draw.document import Words

MOST_ROWS, MOST_BYTES = 10, 1990
_COLUMNS, _LINES = 120, 60
"""The screen whose first table is meant: wide enough for all columns of a table."""

_LONGEST = 600
"""The most bytes of a finding, and of the line that says what was measured."""

_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?")


def brief(command: str, document: Document) -> dict[str, Any]:
    """Return the short answer as a JSON object of at most 2,000 bytes.

    It has one table of those that a terminal shows first: the one whose rows are ranked, or else
    the longest. Cells that are numbers are JSON numbers, rounded as drawn; further rows are
    counted. command: the name of the question.
    """
    table = _table(document)
    steps = [word for hint in document.hints for word, _ in hint.words]
    answer: dict[str, Any] = {
        "schema": "attnviz.brief/1",
        "command": command,
        "measured": _cut(_joined(document.heading) or document.title),
        "finding": _cut(document.finding),
        "columns": [column.title for column in table.columns],
        "rows": _rows(table),
        "rows_left_out": 0,
        "next": [step for step in steps if not step.startswith("--explain")],
    }
    rows = answer["rows"]
    known = len(rows)
    del rows[MOST_ROWS:]
    while len(json.dumps(answer)) > MOST_BYTES and (longest := rows or answer["next"]):
        longest.pop()
    answer["rows_left_out"] = known + table.hidden - len(rows)
    return answer


def _rows(table: Table) -> list[list[Any]]:
    """Return the rows of a table, with the headings within it in the first cells below them.

    The rows of several headings take turns, so that the first of each are among the first. The
    title of the first column is the heading of the rows above all others.
    """
    above = table.columns[0].title if table.columns else ""
    parts: dict[str, list[Sequence[str]]] = {above: []}
    for row in table.rows:
        if len(row.cells) == 1 < len(table.columns):
            above = row.cells[0].strip()
        else:
            parts.setdefault(above, []).append(row.cells)
    if len(parts) > 1:
        parts = {
            name: [(f"{name}: {cells[0].strip()}", *cells[1:]) for cells in rows]
            for name, rows in parts.items()
        }
    turns = zip_longest(*parts.values(), fillvalue=())
    return [[_value(cell) for cell in cells] for turn in turns for cells in turn if cells]


def _table(document: Document) -> Table:
    """Return the table that supports the finding; an empty one if there is none."""
    screens = [document.groups]
    if document.first is not None:
        first = document.first(_COLUMNS, _LINES)
        screens.insert(0, first.ways[0] if isinstance(first, Ways) else first)
    for groups in screens:
        parts = [part for group in groups for part in leaves(group)]
        tables = [part for part in parts if isinstance(part, Table)]
        ranked = [table for table in tables if table.ranked]
        if tables:
            return max(ranked[:1] or tables, key=lambda table: len(table.rows))
    return Table([], [])


def _joined(words: Words) -> str:
    return " · ".join(word for word, _ in words)


def _cut(text: str) -> str:
    """Return a text that takes at most ``_LONGEST`` bytes in JSON."""
    while len(json.dumps(text)) > _LONGEST:
        text = f"{text[: len(text) * 3 // 4]}…"
    return text


def _value(cell: str) -> str | float | None:
    """Return a cell as JSON has it: a number, a text, or None if it is empty."""
    text = cell.strip()
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text or None
