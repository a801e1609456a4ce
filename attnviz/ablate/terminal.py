"""Effects of either sign on a terminal: the map of all ablations, and the text token by token.

Cells and tokens have the colour of their sign and size; without colour a glyph tells both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment

from attnviz.ablate.number_scale import NumberScale
from attnviz.draw.axes import tick_line
from attnviz.draw.blocks import BOLD, DIM, Block, Line, flow, stack, text_line, widest
from attnviz.draw.labels import at_blanks, width
from attnviz.draw.palette import DIVERGING
from attnviz.draw.scale import diverging_steps, sign_glyph, strength
from attnviz.draw.theme import Theme

WIDEST_CELL = 9
_GLYPH_CELL = 2
_LEAST_VALUE = 3
_SAMPLES = (-1.0, -0.25, 0.0, 0.25, 1.0)

_LISTED = 5
_LEAST_SHARE = 0.02
"""Of the largest change, from which a token is worth naming."""
_LONGEST_NAME = 16
_INDENT = 2


# The map -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EffectGrid:
    """What the map shows.

    values: in the unit that is shown, shape (row, column); NaN where nothing was measured.
    rows, columns: the names, such as ``L2`` and ``H5``.
    scale: how values are written; its limit is where colours are full.
    unit: of the values.
    """

    values: NDArray[np.floating]
    rows: Sequence[str]
    columns: Sequence[str]
    scale: NumberScale
    unit: str

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.rows), len(self.columns)):
            raise ValueError(
                f"expected values of shape ({len(self.rows)}, {len(self.columns)}), "
                f"got {self.values.shape}"
            )


def effect_map(grid: EffectGrid, theme: Theme, room: int) -> Block:
    """The cells in at most ``room`` columns, and below what they mean.

    Where the heads of a layer need more columns than there are, they go on in the next line.
    """
    theme = replace(theme, palette=DIVERGING)
    indent = max(map(width, grid.rows)) + 1
    cell, written = _cell_width(grid, theme, room - indent)
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
            line += [_cell(value, cell, written, grid.scale, theme) for value in row[part].tolist()]
            lines.append(line)
    legend = sign_legend(grid.scale, theme, room, grid.unit, written)
    return stack([Block(tuple(lines), widest(lines)), legend], gap=0)


def _cell_width(grid: EffectGrid, theme: Theme, room: int) -> tuple[int, bool]:
    """The columns of a cell, and whether its value is written in it."""
    cell = min(room // len(grid.columns), WIDEST_CELL)
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


def _cell(value: float, cell: int, written: bool, scale: NumberScale, theme: Theme) -> Segment:
    if np.isnan(value):
        return Segment(" " * cell)
    text = scale.fitted(value, _text_room(cell, theme)) if written else None
    if text == "·":
        text = theme.trace
    if theme.colour:
        return theme.cells(int(diverging_steps(np.array(value), scale.limit)), cell, text or "")
    if text is None:
        return Segment((sign_glyph(value, scale.limit, theme.ascii) * (cell - 1)).ljust(cell))
    # The number has its sign: a glyph of the sign's own family would run into it.
    size = sign_glyph(abs(value), scale.limit, theme.ascii)
    mark = size if strength(value, scale.limit) else " "
    return Segment((mark + text.rjust(cell - 2)).ljust(cell))


def sign_legend(
    scale: NumberScale, theme: Theme, room: int, unit: str, written: bool = False
) -> Block:
    """Sample cells with their values; the range is the same both ways.

    written: the cells hold their numbers, so that glyphs need to show the size alone.
    """
    theme = replace(theme, palette=DIVERGING)
    sizes = written and not theme.colour
    samples = _words(f"{unit}{scale.times}", room)
    for factor in _SAMPLES:
        if factor >= 0 or (scale.signed and not sizes):
            samples.append(_sample(factor * scale.limit, scale, theme, sizes))
    mark = "colour" if theme.colour else "glyph"
    samples += _words(theme.spell(f"{mark}: √size"), room)
    if scale.signed:
        samples += _words("same range both ways", room)
    blocks = [Block((sample,), Segment.get_line_length(sample)) for sample in samples]
    return flow(blocks, room, gap=2, between=0)


def _words(text: str, room: int) -> list[Line]:
    return [text_line((line, DIM)) for line in at_blanks(text, room)]


def _sample(value: float, scale: NumberScale, theme: Theme, sizes: bool) -> Line:
    """A value and what it looks like."""
    number = "0" if value == 0 else scale.text(value).lstrip("+" if sizes else "")
    if theme.colour:
        step = int(diverging_steps(np.array(value), scale.limit))
        return [Segment(f"{number} ", DIM), theme.cells(step, 2)]
    return text_line(f"{sign_glyph(value, scale.limit, theme.ascii) * 2} ", (number, DIM))
