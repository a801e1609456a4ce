"""Ranked rows on a terminal: a name, its bar, then as many columns as the width allows.

The first column always stands; names are cut where nothing else helps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import BOLD, DIM, Block, Line
from attnviz.draw.document import Table, Tone
from attnviz.draw.labels import at_blanks, fit, width
from attnviz.draw.palette import DIVERGING, colour_table
from attnviz.draw.prose import spelled_parts, wrapped
from attnviz.draw.theme import Theme

_GAP = 2
_LEAST_BAR, _WIDEST_BAR = 6, 24
_LONGEST_NAME = 28
_SHORTEST_NAME = 5
_SHADES = {1: 215, -1: 40}
"""The steps of the diverging palette that bars have, by sign."""


class _Column(NamedTuple):
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


def _bar(
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


def ranked_block(table: Table, theme: Theme, room: int) -> Block:
    """The table in ``room`` columns, under its title."""
    rows = [row for row in table.rows if len(row.cells) > 1]
    names = ["  " * row.depth + theme.spell(row.cells[0]) for row in rows]
    columns = [
        _Column(
            theme.spell(column.title),
            [theme.spell(row.cells[place]) for row in rows],
            left=not column.right,
        )
        for place, column in enumerate(table.columns[1:], start=1)
    ]

    def drawn(row: int, cells: int) -> Segment:
        value, limit = rows[row].bar or (0.0, 0.0)
        value = max(value, 0.0) if table.rising and not theme.colour else value
        tint = rows[row].tint
        return _bar(value, limit, cells, theme, None if tint is None else theme.ink(tint))

    barred = any(row.bar is not None for row in rows)
    lead, kept, bar_room, longest = _layout(names, columns, theme, room, barred)
    lines = wrapped(spelled_parts(table.title, theme), room, theme)
    lines.append([Segment(" " * lead), *_cells(kept, None, DIM)])
    place = 0
    for row in table.rows:
        lines += [[]] if row.spaced else []
        if len(row.cells) == 1:
            lines += wrapped([(theme.spell(row.cells[0]), row.tone)], room, theme)
            continue
        tones = [
            theme.tone((row.tones or {}).get(number, _tone(row.tone, column.tone)))
            for number, column in enumerate(table.columns)
        ]
        line = _row(place, names[place], longest, bar_room, kept, drawn, theme)
        for number, style in enumerate(tones[1 : len(kept) + 1]):
            at = len(line) - len(kept) + number
            line[at] = Segment(line[at].text, style)
        lines.append(line)
        lines += [
            [Segment("  "), Segment(piece, DIM)]
            for text in row.below
            for piece in at_blanks(theme.spell(text), max(room - 2, 1), "", theme.ellipsis)
        ]
        place += 1
    more = at_blanks(theme.spell(table.left_out), room, "", theme.ellipsis)
    return Block((*lines, *([Segment(text, DIM)] for text in more if text)), room)


def _tone(row: Tone, column: Tone) -> Tone:
    return column if row == "plain" else row


def _layout(
    names: Sequence[str], columns: Sequence[_Column], theme: Theme, room: int, barred: bool = True
) -> tuple[int, list[_Column], int, int]:
    """Where the cells begin, the columns that are kept, and how long bars and names are."""
    longest = min(max(map(width, names)), _LONGEST_NAME)
    first = _narrowed(columns[0], max(room - min(longest, _SHORTEST_NAME) - _GAP, 1), theme)
    longest = max(min(longest, room - first.width - _GAP), 1)
    kept = [first]
    used = longest + _GAP + kept[0].width
    least = _LEAST_BAR + _GAP if barred else 0
    for column in columns[1:]:
        if used + _GAP + column.width + least > room:
            break
        kept.append(column)
        used += _GAP + column.width
    bar_room = min(room - used - _GAP, _WIDEST_BAR)
    if bar_room < _LEAST_BAR or not barred:
        bar_room = 0
    return longest + (_GAP + bar_room if bar_room else 0), kept, bar_room, longest


def _row(
    row: int,
    name: str,
    longest: int,
    bar_room: int,
    kept: Sequence[_Column],
    drawn: Callable[[int, int], Segment],
    theme: Theme,
) -> Line:
    line = [Segment(fit(name, longest, theme.ellipsis), BOLD)]
    if bar_room:
        line += [Segment(" " * _GAP), drawn(row, bar_room)]
    return [*line, *_cells(kept, row, None)]


def _narrowed(column: _Column, room: int, theme: Theme) -> _Column:
    """A column whose title and cells are cut to ``room`` columns."""
    if column.width <= room:
        return column
    texts = [
        fit(text, room, theme.ellipsis) if width(text) > room else text
        for text in (column.title, *column.cells)
    ]
    return _Column(texts[0], texts[1:], column.left)


def _cells(columns: Sequence[_Column], row: int | None, style: Style | None) -> Line:
    """The cells of one row, or the titles."""
    line: Line = []
    for column in columns:
        text = column.title if row is None else column.cells[row]
        blank = " " * (column.width - width(text))
        line.append(Segment(" " * _GAP + (text + blank if column.left else blank + text), style))
    return line
