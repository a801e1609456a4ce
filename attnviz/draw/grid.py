"""A grid of heads on a terminal: rows are layers, columns are heads, a cell says what one head is.

In colour a cell has its tint; without, a glyph of its strength.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.segment import Segment

from attnviz.draw.axes import tick_line
from attnviz.draw.blocks import (
    BOLD,
    DIM,
    Block,
    Line,
    flow,
    stack,
    text_line,
    widest,
    without_trailing_blanks,
)
from attnviz.draw.document import Cell, HeadGrid, Key, Scale, Tint
from attnviz.draw.labels import at_blanks, width
from attnviz.draw.prose import spelled_parts, wrapped
from attnviz.draw.theme import Theme

_NUMBERED, _LEAST = 6, 2
_GLYPHS, _HARMS = "░▒▓█", "-=≡"
_STEPS = (0.0, 0.25, 0.5, 0.75)
"""The strengths from which the glyphs stand."""

_WHOLE_SCALE = 24
_SAMPLES = 5


def strength_glyph(strength: float, theme: Theme) -> str:
    """A strength from −1 to 1 as one glyph; with ASCII only as the digit of its tenth."""
    size = min(abs(strength), 1.0)
    if strength < 0:
        return (_HARMS[:2] + "%" if theme.ascii else _HARMS)[min(int(size * 3), 2)]
    if theme.ascii:
        return str(min(int(size * 10), 9))
    return _GLYPHS[max(sum(size >= step for step in _STEPS) - 1, 0)]


def full_width(grid: HeadGrid) -> int:
    """The columns that the cells take where there is room for all."""
    return _indent(grid) + grid.wide * len(grid.columns)


def grid_block(grid: HeadGrid, theme: Theme, room: int) -> Block:
    """All cells in at most ``room`` columns, under the title; what colours mean below.

    With six columns a cell holds letter and text, else the letter, without colour always with the
    glyph of its strength. Where a row needs more columns than there are, it goes on in the next
    line. Cells that are not there stay blank.
    """
    title = Block(tuple(wrapped(spelled_parts(grid.title, theme), room, theme)), room)
    cells = stack([title, _cells(grid, theme, room)], gap=0)
    return stack([cells, key_block(grid.key, grid.scale, theme, room)])


def _cells(grid: HeadGrid, theme: Theme, room: int) -> Block:
    indent, count = _indent(grid), len(grid.columns)
    cell = _cell_width(indent, count, grid.wide, room)
    per_row = min(max((room - indent) // cell, 1), count)
    whole = per_row >= count
    if not whole:  # lines of one length, and cells as wide as that allows
        per_row = math.ceil(count / math.ceil(count / per_row))
        cell = _cell_width(indent, per_row, grid.wide, room)
    lines: list[Line] = []
    if whole:
        lines.append(_names(grid.columns, indent, cell))
    for row, name in enumerate(grid.rows):
        label = name
        for start in range(0, count, per_row):
            columns = range(start, min(start + per_row, count))
            if not whole:
                lines.append(_names(grid.columns[start : start + per_row], indent, cell))
            line = [Segment(label.ljust(indent), BOLD)]
            for column in columns:
                line += _drawn(grid.cells.get((row, column)), cell, theme)
            lines.append(without_trailing_blanks(line))
            label = ""
    return Block(tuple(lines), widest(lines))


def _indent(grid: HeadGrid) -> int:
    return max(map(width, grid.rows)) + 1


def _cell_width(indent: int, columns: int, wide: int, room: int) -> int:
    return max(min((room - indent) // columns, wide), _LEAST)


def _names(names: Sequence[str], indent: int, cell: int) -> Line:
    """The columns' names over their cells, or the numbers of some where cells are narrow."""
    if max(map(width, names)) < cell:
        shown = "".join(name.ljust(cell) for name in names).rstrip()
        return text_line(" " * indent, (shown, DIM))
    numbers = [int("".join(filter(str.isdigit, name)) or 0) for name in names]
    return tick_line(numbers, indent, cell)


def _drawn(entry: Cell | None, cell: int, theme: Theme) -> Line:
    """One cell; a blank column parts it from the next where it is wide enough."""
    if entry is None or math.isnan(entry.strength):
        return [Segment(" " * cell)]
    gap = 0 if cell == _LEAST else 1
    room = cell - gap
    style = None
    if theme.colour:
        text = entry.letter
        if cell >= _NUMBERED:
            text = f"{entry.letter} {entry.text}" if entry.letter else entry.text
        style = DIM if entry.tint is None else theme.ground(entry.tint)
    else:
        glyph = " " if entry.tint is None else strength_glyph(entry.strength, theme)
        text = entry.letter + glyph
        if cell >= _NUMBERED:  # a digit before a number would be read as a part of it
            text = entry.letter + (" " if theme.ascii else glyph) + entry.text
    line = [Segment(text.ljust(room) if room <= 2 else text.center(room), style)]
    return [*line, Segment(" " * gap)] if gap else line


def key_block(key: Sequence[Key], scale: Scale | None, theme: Theme, room: int) -> Block:
    """Samples and what they mean, one after the other."""
    samples = [line for entry in key for line in _sample(entry, theme, room)]
    samples += _strengths(scale, theme, room) if scale is not None else []
    blocks = [Block((line,), Segment.get_line_length(line)) for line in samples]
    return flow(blocks, room, gap=2, between=0)


def _sample(entry: Key, theme: Theme, room: int) -> list[Line]:
    words = theme.spell(entry.words)
    if entry.tint is None:
        if entry.letter:
            return [text_line((entry.letter, DIM), f" {words}")]
        return [text_line((line, DIM)) for line in at_blanks(words, room, "", theme.ellipsis)]
    if theme.colour:
        return [[Segment(f" {entry.letter} ", theme.ground(entry.tint)), Segment(f" {words}")]]
    return [text_line(entry.letter, f" {words}")]


def _strengths(scale: Scale, theme: Theme, room: int) -> list[Line]:
    """How strength is shown: samples of the scale's colours, or the glyphs."""
    if theme.ascii and not theme.colour:
        words = f"{scale.words}: 0 to 9, tenths; left out beside a score"
        return [text_line((line, DIM)) for line in at_blanks(words, room, "", theme.ellipsis)]
    title = Segment(f"{scale.words} ", DIM)
    if theme.colour:
        line = [Segment(f"{scale.ticks[0][1]} ", DIM)]
        for place in range(_SAMPLES):
            step = round(scale.first + (scale.last - scale.first) * place / (_SAMPLES - 1))
            line.append(Segment("  ", theme.ground(Tint(step, scale.palette))))
        line.append(Segment(f" {scale.ticks[-1][1]}", DIM))
        return [[title, *line]] if room >= _WHOLE_SCALE else [[title], line]
    starts = [f"{glyph} from {step:.2f}" for glyph, step in zip(_GLYPHS, _STEPS, strict=True)]
    first, *others = [text_line((word, DIM)) for word in starts]
    return [[title, *first], *others] if room >= _WHOLE_SCALE else [[title], first, *others]
