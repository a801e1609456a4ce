"""Draws the cells of one attention map, without labels, downsampled if necessary.

The colour of a weight, one of 256 steps, is proportional to its square root: most weights of a row
are small, and the root spreads them while 0 and 1 keep their colours. Weights above 1, as in
value-weighted maps, count as 1. Values of either sign use the root of their size, with the same
range on both sides; without colour, two families of glyphs show the sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.color import Color, ColorSystem
from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import BOLD, Block, Line
from attnviz.draw.palette import DIVERGING, STEPS, Tint, colour_table
from attnviz.draw.theme import Theme
from attnviz.records import Floats

MOST_LINES = 40
"""The default lines of a map: a text with as many tokens is never downsampled."""

_LEAST_THUMBNAIL, _NAMED = 8, 13
"""The least side of a thumbnail in cells; the columns of its words, such as ``L0H3 sink .72``."""

_MIDDLE = (STEPS - 1) / 2
_COARSE = 15
"""The levels of a scale in 256 colours: odd, so that a signed scale has a level for zero."""

# Values as steps of a palette ------------------------------------------------------------------


def diverging_steps(values: Floats, limit: float) -> NDArray[np.intp]:
    """Return each value's colour level in 0 … 255, same shape: 0 at −limit, 255 at +limit.

    Zero is level 128 and NaN is −1; values beyond the limit count as the limit.
    """
    roots = np.sign(values) * np.sqrt(np.minimum(np.abs(values) / (limit or 1.0), 1.0))
    levels = np.floor(_MIDDLE + roots * _MIDDLE + 0.5)
    steps: NDArray[np.intp] = np.nan_to_num(levels, nan=-1.0).astype(np.intp)
    return steps


def signed_limit(changes: Floats) -> float:
    """Return the size with the full colour among changes of weights, all within [−1, 1].

    It is the largest one; where all are below .005, which no screen shows, it is 1, so that nothing
    looks like a change.
    """
    largest = float(np.nanmax(np.abs(changes), initial=0.0))
    return largest if largest >= 0.005 else 1.0


def signed_tint(value: float, limit: float) -> Tint:
    """Return the colour of a value of either sign; values of ±limit have the full colour."""
    return Tint(int(diverging_steps(np.array(value), limit)), DIVERGING)


def weight_steps(weights: Floats) -> NDArray[np.intp]:
    """Return the colour level in 0 … 255 of each weight, same shape; −1 for NaN."""
    levels = np.sqrt(np.clip(weights, 0.0, 1.0)) * (STEPS - 1)
    steps: NDArray[np.intp] = np.rint(np.nan_to_num(levels, nan=-1.0)).astype(np.intp)
    return steps


@lru_cache(maxsize=8)
def coarse_steps(palette: str) -> NDArray[np.intp]:
    """Return for each colour level the one that replaces it on a terminal of 256 colours.

    The last entry is for −1, blank. The replacements are few, and no two look alike there: equal
    neighbours can then be sent together, which saves most of the bytes that a map costs over ssh.
    """
    table, first = colour_table(palette), dict[int | None, int]()
    kept = []
    for step in range(STEPS):
        level = round(round(step * (_COARSE - 1) / (STEPS - 1)) * (STEPS - 1) / (_COARSE - 1))
        number = Color.from_rgb(*table[level]).downgrade(ColorSystem.EIGHT_BIT).number
        kept.append(first.setdefault(number, level))
    return np.array([*kept, -1])


# Cells ----------------------------------------------------------------------------------------


def pool(weights: Floats, factors: tuple[int, int]) -> Floats:
    """Downsample a map: return the largest weight of each block of cells.

    The last blocks may be smaller. NaN does not count: a block of NaN alone gives NaN.
    """
    for axis, factor in enumerate(factors):
        if factor > 1:
            starts = np.arange(0, weights.shape[axis], factor)
            weights = np.fmax.reduceat(weights, starts, axis=axis)
    return weights


def pool_signed(values: Floats, factors: tuple[int, int]) -> Floats:
    """Return the value of largest size in each block of cells; of two equal ones the positive."""
    above, below = pool(values, factors), -pool(-values, factors)
    return np.where(above >= -below, above, below)


def pooling(factors: tuple[int, int], signed: bool = False) -> str:
    """Return in words how a map is downsampled, such as ``downsampled 2× (max)``; else empty."""
    queries, keys = factors
    kept = "largest |value|" if signed else "max"
    if queries == keys:
        return f"downsampled {keys}× ({kept})" if keys > 1 else ""
    axes = zip(factors, ("queries", "keys"), strict=True)
    parts = [f"{factor}× over {name}" for factor, name in axes if factor > 1]
    return f"downsampled {', '.join(parts)} ({kept})"


def cell_steps(
    weights: Floats, factors: tuple[int, int], causal: bool, limit: float = 0.0
) -> NDArray[np.intp]:
    """Return the colour level of each cell of a downsampled map.

    factors: the numbers of queries and keys of a block of weights that makes one cell. The level is
        −1 for NaN and, if the map is causal, for cells that contain only future keys.
    """
    if limit:
        steps = diverging_steps(pool_signed(weights, factors), limit)
    else:
        steps = weight_steps(pool(weights, factors))
    return np.where(np.tri(*steps.shape, dtype=np.bool_), steps, -1) if causal else steps


class Fit(NamedTuple):
    """The layout of the cells of a map.

    wide: the width of a cell in characters. halves: whether a line shows two rows of cells.
    factors: the numbers of queries and keys of a cell; both are equal if the map is square, or its
        diagonal would be bent. tall: the height of a cell in lines.
    """

    wide: int
    halves: bool
    factors: tuple[int, int]
    tall: int = 1

    @property
    def rows(self) -> int:
        """Return how many rows of cells share a line."""
        return 2 if self.halves else 1


class Place(NamedTuple):
    """The position of a cell in a map: the indices of a query and a key."""

    query: int
    key: int


CellText = Callable[[int, int], str]
"""Returns what is written in the cell of a row and a column; only cells that are not blank ask."""


def fitted(queries: int, keys: int, lines: int, columns: int, theme: Theme) -> Fit:
    """Return the finest layout of a map that fits; wide cells are preferred.

    lines, columns: the available lines and width in characters. In colour, if one character can
        show two queries, a cell may be one character wide and half a line high.
    """
    best: Fit | None = None
    for wide, halves in ((2, False), (1, theme.half_blocks)):
        down = max(lines * (1 + halves), 1)
        factors = math.ceil(queries / down), math.ceil(keys / max(columns // wide, 1))
        if queries == keys:
            factors = (max(factors),) * 2
        if best is None or max(factors) < max(best.factors):
            best = Fit(wide, halves, factors)
    assert best is not None
    return best


def cell_lines(
    steps: NDArray[np.intp],
    fit: Fit,
    theme: Theme,
    text: CellText | None = None,
    cursor: Place | None = None,
) -> list[Line]:
    """Return the cells of a map as lines.

    steps: the colour level of each cell, −1 for a blank one. fit: the layout of the cells.
    text: returns the string in the middle line of each cell; None for cells without text and for
        half blocks.
    cursor: the row and the column, counted in ``steps``, of the cell that is highlighted. If there
        is text, the other cells of its row and its column are highlighted a little.
    """
    if fit.halves:
        if len(steps) % 2:
            steps = np.vstack([steps, np.full(steps.shape[1], -1)])
        pairs = steps.reshape(-1, 2, steps.shape[1]).tolist()
        return [_two_rows(pair, 2 * line, theme, cursor) for line, pair in enumerate(pairs)]

    def line(row: int, text: CellText | None) -> Line:
        places = ((step, Place(row, column)) for column, step in enumerate(levels[row]))
        return [_cell(step, cell, fit.wide, theme, text, cursor) for step, cell in places]

    lines, levels = list[Line](), steps.tolist()
    for row in range(len(levels)):
        middle = line(row, text)
        blank = middle if text is None or fit.tall == 1 else line(row, None)
        above = (fit.tall - 1) // 2
        lines += [*[blank] * above, middle, *[blank] * (fit.tall - 1 - above)]
    return lines


def _cell(
    step: int, cell: Place, wide: int, theme: Theme, text: CellText | None, cursor: Place | None
) -> Segment:
    """Return one line of a cell. step: its colour level, −1 if it is blank."""
    written = text(*cell) if text is not None and step >= 0 else ""
    if cell == cursor:
        return Segment(written.center(wide), theme.accent(ground=True))
    if cursor is not None and (cell[0] == cursor[0] or cell[1] == cursor[1]):
        if theme.colour and step >= 0 and text is not None:
            return Segment(written.center(wide), theme.lit(step))
        if written:
            return Segment(written.center(wide), BOLD)
    return theme.cells(step, wide, written)


def _two_rows(pair: list[list[int]], row: int, theme: Theme, cursor: Place | None) -> Line:
    """Return two rows of cells, the first of which is number ``row``, in one line."""
    upper, lower = pair
    if cursor is None or cursor.query not in (row, row + 1):
        return theme.stacked(upper, lower, short=cursor is not None)
    first, behind = cursor.key, cursor.key + 1
    above = cursor.query == row
    style, other = theme.accent(), (lower if above else upper)[first]
    if other >= 0:
        style += Style(bgcolor=Color.from_rgb(*colour_table(theme.palette)[other]))
    return [
        *theme.stacked(upper[:first], lower[:first], short=True),
        Segment("▀" if above else "▄", style),
        *theme.stacked(upper[behind:], lower[behind:], short=True),
    ]


def small_map(
    weights: Floats,
    lines: int,
    columns: int,
    causal: bool,
    theme: Theme,
    limit: float = 0.0,
) -> Block:
    """Return a map without labels, downsampled if necessary."""
    queries, keys = weights.shape
    theme = theme.signed if limit else theme
    fit = fitted(queries, keys, lines, columns, theme)
    steps = cell_steps(weights, fit.factors, causal, limit)
    return Block(tuple(cell_lines(steps, fit, theme)), fit.wide * steps.shape[1])


def thumbnails_fit(
    tokens: int, rows: int, across: int, lines: int, columns: int
) -> tuple[int, int] | None:
    """Return the lines and the width of each of ``rows`` × ``across`` small maps, or None.

    Each cell is one weight. Each map has a line of words above, an empty line below, and two blanks
    before the next map. None if they do not fit, or show too little: fewer than 8 × 8 cells, or a
    text of more than forty tokens.
    tokens: the length of the text. lines, columns: the available lines and width in characters.
    """
    size = (tokens + 1) // 2, max(tokens, _NAMED)
    room = (lines + 1) // rows - 2 >= size[0] and (columns + 2) // across - 2 >= size[1]
    return size if room and _LEAST_THUMBNAIL <= tokens <= MOST_LINES else None
