"""Draw a grid of heads on a terminal, with rows for layers and a cell for each head.

In colour a cell has its tint, else a glyph of its strength. A cell without a tint is faint.

Of a grid that has a cursor the part around it is drawn, which knows where its cells are: a cell has
its longest text for which there is room, and rows for which there are too few lines share lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import (
    BOLD,
    DIM,
    Block,
    Line,
    flow,
    stack,
    text_line,
    tick_line,
    widest,
    without_trailing_blanks,
)
from attnviz.draw.document import Cell, HeadGrid, Key, Scale
from attnviz.draw.labels import at_blanks, fit, width
from attnviz.draw.palette import DIVERGING, STEPS, Tint
from attnviz.draw.prose import faint_lines, words_block
from attnviz.draw.theme import Theme, sign_glyph

_LEAST = 2
_LETTERS = 3  # tell most labels apart
_GLYPHS, _ASCII_GLYPHS = "░▒▓█", ".:*#"  # no digits: a number may follow
_STEPS = (0.0, 0.25, 0.5, 0.75)  # the least strength of each glyph


def strength_glyph(strength: float, theme: Theme) -> str:
    """Return the glyph that draws a strength from 0 to 1."""
    glyphs = _ASCII_GLYPHS if theme.ascii else _GLYPHS
    return glyphs[max(sum(strength >= step for step in _STEPS) - 1, 0)]


def cell_glyph(strength: float, tint: Tint | None, theme: Theme) -> str:
    """Return the glyph of a cell's strength without colour, with its sign if its tint has one."""
    if tint is not None and tint.palette == DIVERGING:
        return sign_glyph(strength * abs(strength), 1.0, theme.ascii)
    return strength_glyph(strength, theme)


class _Form(NamedTuple):
    """The layout of all cells of a grid; widths are in characters.

    cell: the width of the whole cell. mark, letters, texts: the widths of the mark, the letters and
        the text in it; 0 for none. left: True aligns them at the left of their cells, as for words.
    """

    cell: int
    mark: int
    letters: int
    texts: int
    left: bool = True

    @property
    def inner(self) -> int:
        """Return the width in characters of a cell's content, without the blank after it."""
        return self.cell - 1 if self.cell > _LEAST else self.cell


def _contents(grid: HeadGrid) -> tuple[int, int, int]:
    """Return the widths of the letters and of the texts of cells, and of both with a blank."""
    letters = max((width(cell.letter) for cell in grid.cells.values()), default=0)
    texts = max((width(cell.text.strip()) for cell in grid.cells.values()), default=0)
    return letters, texts, letters + texts + bool(letters and texts)


def _widest_cell(grid: HeadGrid) -> int:
    """Return the width in characters of the widest cell: mark, letters, text and a blank."""
    return max(_contents(grid)[2] + 2, max(map(width, grid.columns)) + 1)


def _form(grid: HeadGrid, wide: int, theme: Theme) -> _Form:
    """Return the layout of cells that are ``wide``: texts are left out first, then letters."""
    letters, texts, whole = _contents(grid)
    inner = wide - 1 if wide > _LEAST else wide
    for mark in (1,) if letters and not theme.colour else (1, 0):
        if whole + mark <= inner:
            words = letters > 0 or any(" " in cell.text.strip() for cell in grid.cells.values())
            return _Form(wide, mark, letters, texts, words)
    mark = int(letters < inner)
    return _Form(wide, mark, min(letters, inner - mark), 0)


def full_width(grid: HeadGrid) -> int:
    """Return the width in characters of the whole grid with its cells at their full width."""
    return names_width(grid.rows) + _widest_cell(grid) * len(grid.columns)


def grid_block(grid: HeadGrid, theme: Theme, max_width: int) -> Block:
    """Return all cells of a grid, with the title above and the key below.

    Cells hold letter and text if both fit in every cell, else the letter, cut if necessary. Where a
    cell would have less than three characters, a row is broken into several lines, each of which
    begins with the name of its first cell. Two rows in a line have no letters, nor has their key.
    """
    title = words_block(grid.title, theme, max_width)
    fits = len(grid.columns) <= max_width - names_width(grid.rows) - 3
    halved = grid.halved and theme.half_blocks and fits
    drawn = _two_a_line(grid, theme, max_width) if halved else _cells(grid, theme, max_width)
    cells = stack([title, drawn], gap=0)
    key = [entry for entry in grid.key if entry.tint or not (halved and entry.letter)]
    samples = [line for entry in key for line in _sample(entry, theme, max_width)]
    if grid.scale is not None:
        glyph = partial(strength_glyph, theme=theme)
        samples += scale_samples(grid.scale, theme, max_width, glyph)
    return stack([cells, legend_block(samples, max_width)])


def _cells(grid: HeadGrid, theme: Theme, max_width: int) -> Block:
    count, names = len(grid.columns), list(grid.rows)
    per_row = _per_row(grid, theme, max_width - names_width(names))
    starts = range(0, count, per_row)
    if len(starts) > 1:
        names = [name + grid.columns[start] for name in names for start in starts]
    indent = names_width(names)
    form = _form(grid, max(min((max_width - indent) // per_row, _widest_cell(grid)), _LEAST), theme)
    lines: list[Line] = []
    if len(starts) == 1:
        lines.append([Segment(" " * indent), *_headings(grid.columns, form)])
    places = [(row, start) for row in range(len(grid.rows)) for start in starts]
    for name, (row, start) in zip(names, places, strict=True):
        line = [Segment(name.ljust(indent), BOLD)]
        for column in range(start, min(start + per_row, count)):
            line += _drawn(grid.cells.get((row, column)), form, theme)
        lines.append(without_trailing_blanks(line))
    return _ended(lines, grid)


def _ended(lines: list[Line], grid: HeadGrid) -> Block:
    if grid.hidden:
        lines.append(text_line((f"{grid.hidden} more rows: --full", DIM)))
    return Block(tuple(lines), widest(lines))


def _two_a_line(grid: HeadGrid, theme: Theme, max_width: int) -> Block:
    """Return a grid by its colours only: two rows in each line, with names such as ``L4 L5``."""
    count, rows = len(grid.columns), len(grid.rows)
    names = [" ".join(grid.rows[row : row + 2]) for row in range(0, rows, 2)]
    indent = names_width(names)
    wide = min(max((max_width - indent) // count, 1), _LEAST)
    lines: list[Line] = [[Segment(" " * indent), *_headings(grid.columns, _Form(wide, 0, 0, 0))]]
    for name, row in zip(names, range(0, rows, 2), strict=True):
        line = [Segment(name.ljust(indent), BOLD)]
        for column in range(count):
            cells = (grid.cells.get((at, column)) for at in (row, row + 1))
            above, below = (cell and cell.tint and theme.ink(cell.tint) for cell in cells)
            line.append(theme.halves(above, below, wide))
        lines.append(without_trailing_blanks(line))
    return _ended(lines, grid)


def names_width(names: Sequence[str]) -> int:
    """Return the width in characters of the names of the rows, with the blank after them."""
    return max(map(width, names)) + 1


def _per_row(grid: HeadGrid, theme: Theme, max_width: int) -> int:
    """Return how many cells stand in a line: a whole row, or fewer so that words fit."""
    count, (letters, texts, _) = len(grid.columns), _contents(grid)
    least = max((min(letters, _LETTERS) or texts) + 1, _LEAST)
    if max_width // count >= least:
        return count
    most = max((max_width - max(map(width, grid.columns))) // least, 1)
    whole = max(part for part in range(1, most + 1) if count % part == 0)
    per_row = whole if 2 * whole > most else math.ceil(count / math.ceil(count / most))
    parts = math.ceil(count / per_row)
    if parts * len(grid.rows) > theme.lines and max_width // count >= _LEAST:
        return count
    return per_row


def _headings(names: Sequence[str], form: _Form) -> Line:
    """Return the line of column names above the cells; narrow cells have some column numbers."""
    if max(map(width, names)) < form.cell:
        start = " " * form.mark
        shown = [start + name if form.left else name.rjust(form.inner) for name in names]
        shown = [name.ljust(form.cell) for name in shown]
        return text_line(("".join(shown).rstrip(), DIM))
    numbered = [name for name in names if any(map(str.isdigit, name))]
    line = tick_line([int("".join(filter(str.isdigit, name))) for name in numbered], 0, form.cell)
    if len(numbered) == len(names) - 1:  # the last one has a name of its own
        line.append(Segment(" " * (len(numbered) * form.cell - widest([line]))))
        line.append(Segment(fit(names[-1], form.cell, ""), DIM))
    return line


def _drawn(entry: Cell | None, form: _Form, theme: Theme) -> Line:
    """Return one drawn cell; a blank follows if the layout has space for it."""
    if entry is None or math.isnan(entry.strength):
        return [Segment(" " * form.cell)]
    text = entry.text.strip() if form.texts else ""
    text = text if form.left and not form.letters else text.rjust(form.texts)
    letters = fit(entry.letter, form.letters, "") if form.letters else ""
    content = f"{letters} {text}" if letters and text else letters + text
    mark = " "
    if entry.tint is not None and not theme.colour:
        # Next to a number with its sign, size is enough.
        root = abs(entry.strength) if text else entry.strength
        mark = cell_glyph(root, entry.tint, theme)
    shown = mark * (form.mark if content.strip() else form.inner) + content
    style = DIM if entry.tint is None else theme.ground(entry.tint)
    drawn = Segment(shown.ljust(form.inner)[: form.inner], style)
    return [drawn, *[Segment(" ")] * (form.cell - form.inner)]


def legend_block(samples: Sequence[Line], max_width: int) -> Block:
    """Return the samples of a legend side by side, broken into lines to fit the width."""
    blocks = [Block((line,), Segment.get_line_length(line)) for line in samples]
    return flow(blocks, max_width, gap=2, between=0)


def _sample(entry: Key, theme: Theme, max_width: int) -> list[Line]:
    words = theme.spell(entry.words)
    if entry.tint is None:
        if entry.letter:
            return [text_line((entry.letter, DIM), f" {words}")]
        return faint_lines(words, theme, max_width)
    if theme.colour:
        return [[Segment(f" {entry.letter} ", theme.ground(entry.tint)), Segment(f" {words}")]]
    return [text_line(entry.letter, f" {words}")]


def scale_samples(
    scale: Scale, theme: Theme, max_width: int, glyph: Callable[[float], str]
) -> list[Line]:
    """Return the legend of a colour scale: its words, a sample for each tick, and its last words.

    glyph: returns the glyph that draws a level from 0 to 1 without colour.
    """
    words = at_blanks(theme.spell(scale.words), max_width)
    samples = [text_line((line, DIM)) for line in words if line]
    for position, text in scale.ticks:
        step = round(scale.first + (scale.last - scale.first) * position)
        if theme.colour:
            patch = Segment("  ", theme.ground(Tint(step, scale.palette)))
            samples.append([Segment(f"{text} ", DIM), patch])
            continue
        signed = scale.palette == DIVERGING
        drawn = theme.signed.glyph(step) if signed else glyph(step / (STEPS - 1))
        samples.append(text_line(f"{drawn * 2} ", (text, DIM)))
    after = theme.spell(scale.after if theme.colour else scale.after.replace("colour", "shade"))
    return samples + [text_line((line, DIM)) for line in at_blanks(after, max_width) if line]


# The part around a cursor ----------------------------------------------------------------------


_WIDEST, _BRACKETED = 12, 2  # the most columns of a cell

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
        """Return (row, column) at a position of the screen, of two rows the upper; or None."""
        row = self.first + (line - self.top) // self.tall * self.shared
        number = (column - self.left) // self.wide
        inside = line >= self.top and column >= self.left
        return (row, number) if inside and row < self.shape[0] and number < self.shape[1] else None


def draw_part(part: GridPart, theme: Theme, lines: int, columns: int, focused: bool) -> GridPicture:
    """Return the grid with the cursor's row in sight, whose names stand out if ``focused``."""
    left, (count, rows) = names_width(part.rows), (len(part.columns), len(part.rows))
    wide = max(min((columns - left) // count, _WIDEST), 1)
    seen = max(lines - 1, 1)
    shared = 2 if rows > seen and theme.half_blocks else 1
    chosen = part.cursor[0]
    first = min(max(chosen - seen * shared // 2, 0), max(rows - seen * shared, 0))
    first -= first % shared
    lit = theme.accent() if focused and theme.colour else BOLD
    drawn: list[Line] = [_part_headings(part, left, wide, lit)]
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
            position = row, column
            style = theme.accent(ground=True) if position == part.cursor else DIM
            cell = _cell(part, position, wide - width(number), theme)
            lines[0] += [Segment(f"{number} ", style), *cell, Segment(" " * (APART - 1))]
            shown = position in maps and position not in part.crossed
            block = maps[position].lines if shown else ()
            for line, cells in zip(lines[1:], [*block, *[[]] * tall], strict=False):
                blank = wide + APART - Segment.get_line_length(cells)
                line += [*cells, Segment(" " * blank)]
        drawn += lines
    shape = len(part.rows), len(part.columns)
    return GridPicture(drawn, left, wide + APART, shape, tall=tall + 1, top=0)


def _part_headings(part: GridPart, left: int, wide: int, lit: Style) -> Line:
    """Return the line of column names, ``lit`` at the cursor; narrow cells have some numbers."""
    names = part.columns
    if max(map(width, names)) >= wide:
        names = [name.removeprefix("H") for name in names]
    if max(map(width, names)) >= wide:
        return tick_line([*map(int, names)], left, wide)
    styles = [lit if column == part.cursor[1] else DIM for column in range(len(names))]
    named = zip(names, styles, strict=True)
    return [Segment(" " * left), *(Segment(name.ljust(wide), style) for name, style in named)]


def _cell(part: GridPart, position: tuple[int, int], wide: int, theme: Theme) -> Line:
    """Return one drawn cell; a blank separates it from the next if it is wide enough."""
    cell = part.cells.get(position)
    if cell is None:
        return [Segment(" " * wide)]
    inner, gone = max(wide - 1, 1), position in part.crossed
    if position == part.cursor and cell.tint and theme.colour and inner > _BRACKETED and not gone:
        text = fit(cell.fitting(inner - 1), inner - 1)  # the label's colour stays in sight
        ends = (Segment(end, theme.accent()) for end in "[]")
        return [next(ends), Segment(text, theme.ground(cell.tint)), next(ends)]
    text, style = cell.fitting(inner), theme.ground(cell.tint) if cell.tint else DIM
    if gone:
        text, style = ("x" if theme.ascii else "×").center(inner), DIM
    elif style is None:
        glyph = cell_glyph(cell.strength, cell.tint, theme)
        text, style = (glyph + text if width(text) < inner else text or glyph), BOLD
    if position == part.cursor:
        style = theme.accent(ground=not gone)
        text = text or ("*" if theme.ascii else "●")
    return [Segment(fit(text, inner), style), *[Segment(" ")] * (wide - inner)]


def _halves(part: GridPart, row: int, column: int, wide: int, theme: Theme) -> Segment:
    """Return a cell and the one below it in one line, by their colours only."""
    inks: list[Style | None] = []
    for position in ((row, column), (row + 1, column)):
        cell = part.cells.get(position)
        tint = None if cell is None or position in part.crossed else cell.tint or cell.faint
        ink = None if tint is None else theme.ink(tint)
        inks.append(theme.accent() if position == part.cursor else ink)
    if inks == [None, None]:
        return Segment("·".ljust(wide), DIM)
    return theme.halves(inks[0], inks[1], wide)
