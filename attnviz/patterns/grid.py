"""The grid of all heads: rows are layers, columns are heads, a cell says what one head is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style

from attnviz.draw.axes import tick_line
from attnviz.draw.blocks import BOLD, DIM, Block, Line, text_line, widest, without_trailing_blanks
from attnviz.draw.theme import Theme

__all__ = ["GridCell", "head_grid"]

_WIDEST, _NUMBERED, _LEAST = 8, 6, 2


@dataclass(frozen=True)
class GridCell:
    """One head.

    letter: of its label, or of none; empty where the grid is of one label.
    glyph: its strength where there is no colour; one character.
    number: its score in at most four columns.
    style: the colours, None without.
    """

    letter: str
    glyph: str
    number: str
    style: Style | None = None


def _cell_width(indent: int, heads: int, room: int) -> int:
    return max(min((room - indent) // heads, _WIDEST), _LEAST)


def _indent(layers: int) -> int:
    return len(f"L{layers}") + 1


def head_grid(
    cells: Mapping[tuple[int, int], GridCell], index_base: int, theme: Theme, room: int
) -> Block:
    """All cells by (layer, head) in at most ``room`` columns.

    With six columns a cell holds letter and score, else the letter, without colour always with the
    glyph of its strength. Where the heads of a layer need more columns than there are, they go on
    in the next line. Heads that are not there stay blank.
    """
    layers = sorted({layer for layer, _ in cells})
    heads = sorted({head for _, head in cells})
    indent = _indent(max(layers) + index_base)
    cell = _cell_width(indent, len(heads), room)
    per_row = min(max((room - indent) // cell, 1), len(heads))
    whole = per_row >= len(heads)
    if not whole:  # lines of one length, and cells as wide as that allows
        per_row = math.ceil(len(heads) / math.ceil(len(heads) / per_row))
        cell = _cell_width(indent, per_row, room)
    lines: list[Line] = []
    if whole:
        lines.append(_names(heads, index_base, indent, cell))
    for layer in layers:
        label = f"L{layer + index_base}"
        for start in range(0, len(heads), per_row):
            part = heads[start : start + per_row]
            if not whole:
                lines.append(_names(part, index_base, indent, cell))
            line = [Segment(label.ljust(indent), BOLD)]
            for head in part:
                line += _drawn(cells.get((layer, head)), cell, theme)
            lines.append(without_trailing_blanks(line))
            label = ""
    return Block(tuple(lines), widest(lines))


def _names(heads: list[int], index_base: int, indent: int, cell: int) -> Line:
    """The heads' names over their cells, or the numbers of some where cells are narrow."""
    numbers = [head + index_base for head in heads]
    names = [f"H{number}" for number in numbers]
    if max(map(len, names)) < cell:
        shown = "".join(name.ljust(cell) for name in names).rstrip()
        return text_line(" " * indent, (shown, DIM))
    return tick_line(numbers, indent, cell)


def _drawn(entry: GridCell | None, cell: int, theme: Theme) -> Line:
    """One cell; a blank column parts it from the next where it is wide enough."""
    if entry is None:
        return [Segment(" " * cell)]
    gap = 0 if cell == _LEAST else 1
    room = cell - gap
    style = entry.style
    if theme.colour:
        text = entry.letter
        if cell >= _NUMBERED:
            text = f"{entry.letter} {entry.number}" if entry.letter else entry.number
        style = style or DIM
    else:
        text = entry.letter + entry.glyph
        if cell >= _NUMBERED:  # a digit before a number would be read as a part of it
            text = entry.letter + (" " if theme.ascii else entry.glyph) + entry.number
    line = [Segment(text.ljust(room) if room <= 2 else text.center(room), style)]
    return [*line, Segment(" " * gap)] if gap else line
