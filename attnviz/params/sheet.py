"""What there is to say about a design, in words and cells, before anybody draws it.

Screens, Markdown, HTML and SVG are made of the same sheet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Column", "Fact", "Grid", "Row", "Sheet", "Tone"]

Tone = Literal["plain", "strong", "faint"]


@dataclass(frozen=True)
class Column:
    """One column.

    title: its heading.
    right: numbers stand at the right, words at the left.
    tone: of its heading and its cells, where the row has none.
    keep: columns with the lowest numbers are left out first where the room is short, up to 3
        already for the sake of bars; those with 9 stay.
    """

    title: str
    right: bool = True
    tone: Tone = "plain"
    keep: int = 9


@dataclass(frozen=True)
class Row:
    """One line of a table.

    cells: as many as there are columns.
    tone: of the whole row; ``plain`` leaves it to the columns.
    bar: the part and the whole that a bar at the end shows.
    role: what the bar is about, which chooses its colour.
    below: sentences under the row.
    ruled: whether a line is drawn above.
    depth: by how many steps the first cell is indented.
    """

    cells: tuple[str, ...]
    tone: Tone = "plain"
    bar: tuple[int, int] | None = None
    role: str = "other"
    below: tuple[str, ...] = ()
    ruled: bool = False
    depth: int = 0


@dataclass(frozen=True)
class Grid:
    """A table: a heading, or none, its columns and its rows.

    lead: how many columns at the left are repeated where the table is broken into bands.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    heading: str = ""
    lead: int = 1


@dataclass(frozen=True)
class Fact:
    """One line: what it is, how much, and how that comes about."""

    label: str
    value: str
    note: str = ""
    depth: int = 0


@dataclass(frozen=True)
class Sheet:
    """All of an answer.

    title: the name, then facts about it.
    lines: where the numbers come from, and notes.
    grids: tables.
    sections: facts under headings.
    sentences: what the numbers mean.
    """

    title: tuple[str, ...]
    lines: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    sections: Mapping[str, Sequence[Fact]] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()
