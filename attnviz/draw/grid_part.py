"""The part of a grid of heads around a cursor, and where its cells are.

A cell has its longest text for which there is room. In colour, rows for which there are too few
lines share lines, by their colours alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style

from attnviz.draw.axes import tick_line
from attnviz.draw.blocks import BOLD, DIM, Block, Line
from attnviz.draw.grid import cell_glyph, names_width
from attnviz.draw.labels import fit, width
from attnviz.draw.palette import Tint
from attnviz.draw.theme import Theme

_WIDEST, _BRACKETED = 12, 2
"""The most columns of a cell."""

APART = 2
"""The columns between two small maps."""


class GridCell(NamedTuple):
    """A cell of a grid that has a cursor.

    texts: its text in ever shorter forms, the longest first; the last may be empty.
    tint: its colour; a cell without one is faint. strength: from 0 to 1, or from −1 if the tint
        shows a sign; its glyph is drawn where there is no colour.
    faint: the colour of a cell without a tint that is too narrow for text.
    """

    texts: tuple[str, ...]
    tint: Tint | None = None
    strength: float = 0.0
    faint: Tint | None = None

    def fitting(self, max_width: int) -> str:
        """Return the longest text of the cell that is at most ``max_width`` characters wide."""
        return next((text for text in self.texts if width(text) <= max_width), "")


class GridPart(NamedTuple):
    """A grid with a cursor, drawn with as many rows as fit.

    rows, columns: their names. cells: by (row, column), counted from 0.
    cursor: the cell that is highlighted. crossed: cells that are crossed out.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[tuple[int, int], GridCell]
    cursor: tuple[int, int]
    crossed: Collection[tuple[int, int]] = ()

    def widths(self) -> tuple[int, ...]:
        """Return the grid's width in characters with each form of its texts, the widest first."""
        left, count, texts = names_width(self.rows), len(self.columns), self.cells.values()
        forms = max((len(cell.texts) for cell in texts), default=1)
        wide = [
            max((width(cell.texts[min(form, len(cell.texts) - 1)]) for cell in texts), default=1)
            for form in range(forms)
        ]
        return (*(left + (max(text, 1) + 1) * count for text in wide), left + count)


class GridPicture(NamedTuple):
    """The drawn lines of a part of a grid, and the positions of its cells, for mouse clicks.

    left, top: the character and the line of the first cell. wide, tall: the size of a cell in
        characters and lines.
    first: the first row that is drawn. shared: how many rows share a line.
    shape: the numbers of rows and columns of the grid.
    """

    lines: Sequence[Line]
    left: int
    wide: int
    shape: tuple[int, int]
    first: int = 0
    shared: int = 1
    tall: int = 1
    top: int = 1

    def cell_at(self, column: int, line: int) -> tuple[int, int] | None:
        """Return the row and column of the cell at a position of the screen; None outside cells.

        column, line: the position in characters and lines. Of two rows in a line the upper one
            counts.
        """
        row = self.first + (line - self.top) // self.tall * self.shared
        number = (column - self.left) // self.wide
        inside = line >= self.top and column >= self.left
        return (row, number) if inside and row < self.shape[0] and number < self.shape[1] else None


def draw_part(part: GridPart, theme: Theme, lines: int, columns: int, focused: bool) -> GridPicture:
    """Return the grid drawn so that the row of the cursor is visible.

    lines, columns: the available lines and width in characters. focused: True if keys move the
        cursor; then the names of its row and its column stand out more.
    """
    left, (count, rows) = names_width(part.rows), (len(part.columns), len(part.rows))
    wide = max(min((columns - left) // count, _WIDEST), 1)
    seen = max(lines - 1, 1)
    shared = 2 if rows > seen and theme.half_blocks else 1
    chosen = part.cursor[0]
    first = min(max(chosen - seen * shared // 2, 0), max(rows - seen * shared, 0))
    first -= first % shared
    lit = theme.accent() if focused and theme.colour else BOLD
    drawn: list[Line] = [_headings(part, left, wide, lit)]
    for row in range(first, min(first + seen * shared, rows), shared):
        here = row <= chosen < row + shared
        name = part.rows[chosen if here else row].ljust(left)
        line = [Segment(name, lit if here else DIM)]
        for column in range(count):
            if shared == 2:
                line.append(_halves(part, row, column, wide, theme))
            else:
                line += _cell(part, (row, column), wide, theme)
        drawn.append(line)
    return GridPicture(drawn, left, wide, (rows, count), first, shared)


def draw_small_maps(
    part: GridPart,
    maps: Mapping[tuple[int, int], Block],
    size: tuple[int, int],
    theme: Theme,
    focused: bool,
) -> GridPicture:
    """Return a grid of small maps, each under its name and its cell.

    maps: the drawn map by (row, column). size: the lines and the width in characters of each map.
        focused: True if keys move the cursor.
    """
    tall, wide = size
    left = names_width(part.rows)
    lit = theme.accent() if focused else BOLD
    drawn: list[Line] = []
    for row, name in enumerate(part.rows):
        lines: list[Line] = [[Segment(name.ljust(left), lit if row == part.cursor[0] else DIM)]]
        lines += [[Segment(" " * left)] for _ in range(tall)]
        for column, number in enumerate(part.columns):
            place = row, column
            style = theme.accent(ground=True) if place == part.cursor else DIM
            cell = _cell(part, place, wide - width(number), theme)
            lines[0] += [Segment(f"{number} ", style), *cell, Segment(" " * (APART - 1))]
            block = maps[place].lines if place in maps and place not in part.crossed else ()
            for line, cells in zip(lines[1:], [*block, *[[]] * tall], strict=False):
                blank = wide + APART - Segment.get_line_length(cells)
                line += [*cells, Segment(" " * blank)]
        drawn += lines
    shape = len(part.rows), len(part.columns)
    return GridPicture(drawn, left, wide + APART, shape, tall=tall + 1, top=0)


def _headings(part: GridPart, left: int, wide: int, lit: Style) -> Line:
    """Return the line of column names, ``lit`` at the cursor; narrow cells have some numbers."""
    names = part.columns
    if max(map(width, names)) >= wide:
        names = [name.removeprefix("H") for name in names]
    if max(map(width, names)) >= wide:
        return tick_line([*map(int, names)], left, wide)
    styles = [lit if place == part.cursor[1] else DIM for place in range(len(names))]
    named = zip(names, styles, strict=True)
    return [Segment(" " * left), *(Segment(name.ljust(wide), style) for name, style in named)]


def _cell(part: GridPart, place: tuple[int, int], wide: int, theme: Theme) -> Line:
    """Return one drawn cell; a blank separates it from the next if it is wide enough."""
    cell = part.cells.get(place)
    if cell is None:
        return [Segment(" " * wide)]
    inner, gone = max(wide - 1, 1), place in part.crossed
    if place == part.cursor and cell.tint and theme.colour and inner > _BRACKETED and not gone:
        text = fit(cell.fitting(inner - 1), inner - 1)  # the label's colour stays in sight
        ends = (Segment(end, theme.accent()) for end in "[]")
        return [next(ends), Segment(text, theme.ground(cell.tint)), next(ends)]
    text, style = cell.fitting(inner), theme.ground(cell.tint) if cell.tint else DIM
    if gone:
        text, style = ("x" if theme.ascii else "×").center(inner), DIM
    elif style is None:
        glyph = cell_glyph(cell.strength, cell.tint, theme)
        text, style = (glyph + text if width(text) < inner else text or glyph), BOLD
    if place == part.cursor:
        style = theme.accent(ground=not gone)
        text = text or ("*" if theme.ascii else "●")
    return [Segment(fit(text, inner), style), *[Segment(" ")] * (wide - inner)]


def _halves(part: GridPart, row: int, column: int, wide: int, theme: Theme) -> Segment:
    """Return a cell and the one below it in one line, by their colours only."""
    found: list[Style | None] = []
    for place in ((row, column), (row + 1, column)):
        cell = part.cells.get(place)
        tint = None if cell is None or place in part.crossed else cell.tint or cell.faint
        ink = None if tint is None else theme.ink(tint)
        found.append(theme.accent() if place == part.cursor else ink)
    if found == [None, None]:
        return Segment("·".ljust(wide), DIM)
    return theme.halves(found[0], found[1], wide)
