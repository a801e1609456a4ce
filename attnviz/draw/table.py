"""Columns of text beside a bar: those that the width allows, in the order of their weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import BOLD, DIM, Block, Line
from attnviz.draw.labels import fit, width
from attnviz.draw.palette import DIVERGING, colour_table
from attnviz.draw.theme import Theme

__all__ = ["Column", "bar", "table"]

_GAP = 2
_LEAST_BAR, _WIDEST_BAR = 6, 24
_LONGEST_NAME = 28
_SHORTEST_NAME = 5
_SHADES = {1: 215, -1: 40}
"""The steps of the diverging palette that bars have, by sign."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    title: dim, above.
    cells: a text a row, safe to print.
    left: whether they are aligned at the left.
    """

    title: str
    cells: Sequence[str]
    left: bool = False

    @property
    def width(self) -> int:
        return max(map(width, (self.title, *self.cells)))


def bar(
    value: float, limit: float, cells: int, theme: Theme, style: Style | None = None
) -> Segment:
    """A bar of a value's size in ``cells`` columns, half a column fine.

    style: of the bar where there is colour; None for the colour of the value's sign.
    """
    halves = round(2 * cells * min(abs(value) / limit, 1.0)) if limit > 0 else 0
    full, half = ("#", "#") if theme.ascii else ("█", "▌")
    drawn = full * (halves // 2) + half * (halves % 2)
    step = _SHADES[1 if value >= 0 else -1]
    if theme.colour and style is None:
        style = Style(color=Color.from_rgb(*colour_table(DIVERGING)[step]))
    return Segment(drawn.ljust(cells), style if theme.colour else None)


def table(
    names: Sequence[str],
    values: Sequence[float],
    limit: float,
    columns: Sequence[Column],
    theme: Theme,
    room: int,
    style: Style | None = None,
) -> Block:
    """A row a name: its bar, then as many of ``columns`` as ``room`` has space for.

    style: of the bars; see ``bar``.
    The first column always stands; names are cut where nothing else helps.
    """
    longest = min(max(map(width, names)), _LONGEST_NAME)
    first = _narrowed(columns[0], max(room - min(longest, _SHORTEST_NAME) - _GAP, 1), theme)
    longest = max(min(longest, room - first.width - _GAP), 1)
    kept = [first]
    used = longest + _GAP + kept[0].width
    for column in columns[1:]:
        if used + _GAP + column.width + _LEAST_BAR + _GAP > room:
            break
        kept.append(column)
        used += _GAP + column.width
    bar_room = min(room - used - _GAP, _WIDEST_BAR)
    if bar_room < _LEAST_BAR:
        bar_room = 0
    lead = longest + (_GAP + bar_room if bar_room else 0)
    lines: list[Line] = [[Segment(" " * lead), *_cells(kept, None, DIM)]]
    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        shown = fit(name, longest, theme.ellipsis)
        line = [Segment(shown, BOLD)]
        if bar_room:
            line += [Segment(" " * _GAP), bar(value, limit, bar_room, theme, style)]
        lines.append([*line, *_cells(kept, row, None)])
    return Block(tuple(lines), room)


def _narrowed(column: Column, room: int, theme: Theme) -> Column:
    """A column whose title and cells are cut to ``room`` columns."""
    if column.width <= room:
        return column
    texts = [
        fit(text, room, theme.ellipsis) if width(text) > room else text
        for text in (column.title, *column.cells)
    ]
    return Column(texts[0], texts[1:], column.left)


def _cells(columns: Sequence[Column], row: int | None, style: Style | None) -> Line:
    """The cells of one row, or the titles."""
    line: Line = []
    for column in columns:
        text = column.title if row is None else column.cells[row]
        blank = " " * (column.width - width(text))
        line.append(Segment(" " * _GAP + (text + blank if column.left else blank + text), style))
    return line
