"""A grid as text: columns as wide as their cells, bars in the room that is left.

No boxes are drawn: a table stays legible at 80 columns, without colour and in a pipe. Where the
room is short, bars go first, then the columns that say least; what is left and still too wide is
broken into bands below each other, each with the leading columns again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import BOLD, DIM, Block, Line, stack
from attnviz.draw.labels import at_blanks, fit, width
from attnviz.draw.palette import colour_table
from attnviz.draw.theme import Theme
from attnviz.params.sheet import Grid, Row, Tone

__all__ = ["INDENT", "TINTS", "draw_grid"]

INDENT = "  "
_GAP = 2
_LEAST_BAR, _WANTED_BAR, _MOST_BAR = 6, 10, 28
_YIELDS_TO_BARS, _STAYS = 3, 9
_LEAST_LABEL = 4
_STYLES: dict[Tone, Style | None] = {"plain": None, "strong": BOLD, "faint": DIM}

TINTS = {
    "attention": 225,
    "feed_forward": 135,
    "embedding": 185,
    "norm": 110,
    "head": 160,
    "other": 95,
}
"""The place of each role in the palette; all bright enough for a dark ground."""


def draw_grid(grid: Grid, room: int, theme: Theme) -> Block:
    """The grid within ``room`` columns."""
    places, widths = _kept(grid, room)
    bands = _bands(places, widths, room, grid.lead)
    used = sum(widths[place] for place in bands[0]) + _GAP * (len(bands[0]) - 1)
    bars = 0 if len(bands) > 1 else min(room - used - _GAP, _MOST_BAR)
    blocks = []
    for band in bands:
        lines = [_headings(grid, band, widths, theme)]
        across = sum(widths[place] for place in band) + _GAP * (len(band) - 1)
        for row in grid.rows:
            if row.ruled:
                lines.append([Segment(("-" if theme.ascii else "─") * across, DIM)])
            line = _line(row, grid, band, widths, theme)
            if row.bar is not None and bars >= _LEAST_BAR:
                blank = used + _GAP - Segment.get_line_length(line)
                line += [Segment(" " * blank), _bar(row.bar, bars, row.role, theme)]
            lines.append(line)
            if band is bands[-1]:
                lines += _below(row, room, theme)
        blocks.append(Block(tuple(lines), room))
    heading = [[Segment(piece, BOLD)] for piece in at_blanks(grid.heading, room) if piece]
    return stack([Block(tuple(heading), room), stack(blocks)], gap=0)


def _below(row: Row, room: int, theme: Theme) -> list[Line]:
    start = INDENT * (row.depth + 2)
    return [
        [Segment(start), Segment(piece, DIM)]
        for text in row.below
        for piece in at_blanks(text, max(room - len(start), 1), INDENT, theme.ellipsis)
    ]


def _first(row: Row) -> str:
    return INDENT * row.depth + row.cells[0]


def _kept(grid: Grid, room: int) -> tuple[list[int], dict[int, int]]:
    """The columns that are shown, and the width of each."""
    widths = {
        place: max([width(column.title), *(width(row.cells[place]) for row in grid.rows)])
        for place, column in enumerate(grid.columns)
    }
    widths[0] = max([width(grid.columns[0].title), *(width(_first(row)) for row in grid.rows)])
    filled = {place for row in grid.rows for place, cell in enumerate(row.cells) if cell}
    places = [place for place in widths if place in filled]
    bars = _GAP + _WANTED_BAR if any(row.bar is not None for row in grid.rows) else 0
    while True:
        used = sum(widths[place] + _GAP for place in places) - _GAP
        least = min(places, key=lambda place: grid.columns[place].keep)
        keep = grid.columns[least].keep
        if keep == _STAYS or (used <= room and (used + bars <= room or keep > _YIELDS_TO_BARS)):
            return places, widths
        places.remove(least)


def _bands(places: Sequence[int], widths: dict[int, int], room: int, lead: int) -> list[list[int]]:
    """The columns in bands that fit, the leading ones in each; the first is cut where it must be.

    Of several leading columns only the first is repeated where they leave no room for another.
    """
    others = places[lead:]
    most = max((widths[place] for place in others), default=-_GAP)
    if lead > 1 and sum(widths[place] + _GAP for place in places[:lead]) + most > room:
        return _bands(places, widths, room, 1)
    first = list(places[:lead])
    taken = sum(widths[place] + _GAP for place in first[1:])
    widths[first[0]] = min(widths[first[0]], max(room - taken - most - _GAP, _LEAST_LABEL))
    start = sum(widths[place] + _GAP for place in first) - _GAP
    bands, used = [list(first)], start
    for place in others:
        if len(bands[-1]) > lead and used + _GAP + widths[place] > room:
            bands.append(list(first))
            used = start
        bands[-1].append(place)
        used += _GAP + widths[place]
    return bands


def _headings(grid: Grid, band: Sequence[int], widths: dict[int, int], theme: Theme) -> Line:
    """The titles of the columns, bold where the column is not faint."""
    columns = tuple(
        replace(column, tone="faint" if column.tone == "faint" else "strong")
        for column in grid.columns
    )
    titles = Row(tuple(column.title for column in columns))
    return _line(titles, Grid(columns, ()), band, widths, theme)


def _line(row: Row, grid: Grid, band: Sequence[int], widths: dict[int, int], theme: Theme) -> Line:
    """The cells of one line, blanks only where something follows."""
    line: Line = []
    pending = 0
    for place in band:
        column = grid.columns[place]
        text = row.cells[place] if place else _first(row)
        if width(text) > widths[place]:
            text = fit(text, widths[place], theme.ellipsis)
        blanks = widths[place] - width(text)
        if not text.strip():
            pending += widths[place] + _GAP
            continue
        pending += blanks if column.right else 0
        if pending:
            line.append(Segment(" " * pending))
        tone = row.tone if row.tone != "plain" else column.tone
        line.append(Segment(text, _STYLES[tone]))
        pending = _GAP + (0 if column.right else blanks)
    return line


def _bar(bar: tuple[int, int], cells: int, role: str, theme: Theme) -> Segment:
    """A part of a whole as a bar; what is more than nothing is seen."""
    part, whole = bar
    halves = (2 * cells * part + whole // 2) // whole if whole else 0
    halves = max(halves, 1 if part else 0)
    # Thin lines: full blocks of neighbouring rows would grow together.
    text = "#" * ((halves + 1) // 2) if theme.ascii else "━" * (halves // 2) + "╸" * (halves % 2)
    if not theme.colour:
        return Segment(text)
    return Segment(text, Style(color=Color.from_rgb(*colour_table(theme.palette)[TINTS[role]])))
