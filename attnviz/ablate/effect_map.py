"""The map of all removals: rows are layers, columns are heads, colour and sign say what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment

from attnviz.ablate.numbers import NumberScale
from attnviz.ablate.sign_legend import sign_legend
from attnviz.draw.axes import tick_line
from attnviz.draw.blocks import BOLD, DIM, Block, Line, stack, text_line, widest
from attnviz.draw.diverging import diverging_steps, sign_glyph, strength
from attnviz.draw.labels import width
from attnviz.draw.palette import DIVERGING
from attnviz.draw.theme import Theme

__all__ = ["EffectGrid", "effect_map", "map_width"]

_WIDEST_CELL = 9
_GLYPH_CELL = 2
_LEAST_VALUE = 3


@dataclass(frozen=True)
class EffectGrid:
    """What the map shows.

    values: in the unit that is shown, shape (row, column); NaN where nothing was measured.
    rows, columns: the names, such as ``L2`` and ``H5``.
    scale: how values are written; its limit is where colours are full.
    """

    values: NDArray[np.floating]
    rows: Sequence[str]
    columns: Sequence[str]
    scale: NumberScale

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.rows), len(self.columns)):
            raise ValueError(
                f"expected values of shape ({len(self.rows)}, {len(self.columns)}), "
                f"got {self.values.shape}"
            )


def effect_map(grid: EffectGrid, theme: Theme, room: int, unit: str) -> Block:
    """A cell a removal in at most ``room`` columns, its value in it where there is room.

    unit: of the values, for the legend below.

    Where the heads of a layer need more columns than there are, they go on in the next line.
    Without colour a glyph in each cell tells sign and strength.
    """
    theme = replace(theme, palette=DIVERGING)
    indent = _indent(grid)
    cell, written = _cell_width(grid, theme, room)
    per_row = min(max((room - indent) // cell, 1), len(grid.columns))
    lines: list[Line] = []
    whole = per_row >= len(grid.columns)
    if whole:
        lines.append(_names(grid.columns, indent, cell))
    for name, row in zip(grid.rows, grid.values, strict=True):
        for start in range(0, len(row), per_row):
            part = slice(start, start + per_row)
            if not whole:
                lines.append(_names(grid.columns[part], indent, cell))
            label = name if not start else ""
            line = [Segment(label.ljust(indent), BOLD)]
            line += [_cell(value, cell, written, grid, theme) for value in row[part].tolist()]
            lines.append(line)
    legend = sign_legend(grid.scale, theme, room, unit, written)
    return stack([Block(tuple(lines), widest(lines)), legend], gap=0)


def map_width(grid: EffectGrid) -> int:
    """The columns that the cells take where there is room for all."""
    return _indent(grid) + _WIDEST_CELL * len(grid.columns)


def _indent(grid: EffectGrid) -> int:
    return max(map(width, grid.rows)) + 1


def _cell_width(grid: EffectGrid, theme: Theme, room: int) -> tuple[int, bool]:
    """The columns of a cell, and whether its value is written in it."""
    cell = min((room - _indent(grid)) // len(grid.columns), _WIDEST_CELL)
    if cell > _LEAST_VALUE and grid.scale.fitted(grid.scale.limit, _text_room(cell, theme)):
        return cell, True
    return max(min(cell, _LEAST_VALUE), _GLYPH_CELL), False


def _text_room(cell: int, theme: Theme) -> int:
    """The columns for a number in a cell: a blank before it, and without colour a glyph too."""
    return cell - 1 if theme.colour else cell - 2


def _names(columns: Sequence[str], indent: int, cell: int) -> Line:
    """The columns' names over their cells, or the numbers of some where cells are narrow."""
    if max(map(width, columns)) < cell:
        return text_line(" " * indent, ("".join(name.center(cell) for name in columns), DIM))
    numbers = [int("".join(filter(str.isdigit, name)) or 0) for name in columns]
    return tick_line(numbers, indent, cell)


def _cell(value: float, cell: int, written: bool, grid: EffectGrid, theme: Theme) -> Segment:
    if np.isnan(value):
        return Segment(" " * cell)
    text = grid.scale.fitted(value, _text_room(cell, theme)) if written else None
    if theme.colour:
        step = int(diverging_steps(np.array(value), grid.scale.limit))
        return theme.cells(step, cell, _safe(text or "", theme))
    if text is None:
        return Segment((sign_glyph(value, grid.scale.limit, theme.ascii) * (cell - 1)).ljust(cell))
    # The number has its sign: a glyph of the sign's own family would run into it.
    size = sign_glyph(abs(value), grid.scale.limit, theme.ascii)
    mark = size if strength(value, grid.scale.limit) else " "
    return Segment((mark + _safe(text, theme).rjust(cell - 2)).ljust(cell))


def _safe(text: str, theme: Theme) -> str:
    return theme.trace if text == "·" else text
