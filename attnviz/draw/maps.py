"""Draws the cells of one attention map, without labels, downsampled if necessary."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.blocks import Block, Line
from attnviz.draw.scale import diverging_steps, visible_cells, weight_steps
from attnviz.draw.theme import Theme

MOST_LINES = 40
"""The default lines of a map: a text with as many tokens is never downsampled."""

_LEAST_THUMBNAIL, _NAMED = 8, 13
"""The least side of a thumbnail in cells; the columns of its words, such as ``L0H3 sink .72``."""


def pool(weights: NDArray[np.floating], factors: tuple[int, int]) -> NDArray[np.floating]:
    """Return the largest weight of each block of ``factors`` = (queries, keys).

    The last blocks may be smaller. NaN does not count: a block of NaN alone gives NaN.
    """
    for axis, factor in enumerate(factors):
        if factor > 1:
            starts = np.arange(0, weights.shape[axis], factor)
            weights = np.fmax.reduceat(weights, starts, axis=axis)
    return weights


def pool_signed(values: NDArray[np.floating], factors: tuple[int, int]) -> NDArray[np.floating]:
    """Return the value of the largest size in each block, of two equal sizes the positive one."""
    above, below = pool(values, factors), -pool(-values, factors)
    return np.where(above >= -below, above, below)


def pooling(factors: tuple[int, int], signed: bool = False) -> str:
    """Return what a cell means if it is more than one weight; else an empty string."""
    queries, keys = factors
    kept = "largest |value|" if signed else "max"
    if queries == keys:
        return f"downsampled {keys}× ({kept})" if keys > 1 else ""
    axes = [(queries, "queries"), (keys, "keys")]
    parts = [f"{factor}× over {name}" for factor, name in axes if factor > 1]
    return f"downsampled {', '.join(parts)} ({kept})"


def cell_steps(
    weights: NDArray[np.floating], factors: tuple[int, int], causal: bool, limit: float = 0.0
) -> NDArray[np.intp]:
    """Return the colour step of each cell of a downsampled map.

    The step is −1 for NaN, and for cells that hold only future keys.
    limit: for values of either sign, the size from which colours are full; 0 for weights.
    """
    if limit:
        steps = diverging_steps(pool_signed(weights, factors), limit)
    else:
        steps = weight_steps(pool(weights, factors))
    queries, keys = steps.shape
    steps[~visible_cells(queries, keys, causal)] = -1
    return steps


class Fit(NamedTuple):
    """How a map is drawn.

    wide: columns of a cell. halves: whether a line shows two rows of cells.
    factors: how many queries and keys one cell stands for; equal for square maps, whose diagonal
        would bend otherwise.
    """

    wide: int
    halves: bool
    factors: tuple[int, int]


def fitted(queries: int, keys: int, lines: int, columns: int, theme: Theme) -> Fit:
    """Return the finest way to draw a map in ``lines`` × ``columns``; wide cells are preferred.

    If one character can show two queries, in colour, a cell may be one column by half a line.
    """
    best: Fit | None = None
    for wide, halves in ((2, False), (1, theme.half_blocks)):
        down = max(lines * (2 if halves else 1), 1)
        factors = math.ceil(queries / down), math.ceil(keys / max(columns // wide, 1))
        if queries == keys:
            factors = (max(factors),) * 2
        if best is None or max(factors) < max(best.factors):
            best = Fit(wide, halves, factors)
    assert best is not None
    return best


def cell_lines(steps: NDArray[np.intp], fit: Fit, theme: Theme) -> list[Line]:
    """Return the cells of a map, line by line."""
    if not fit.halves:
        return [[theme.cells(int(step), fit.wide) for step in row] for row in steps]
    if len(steps) % 2:
        steps = np.vstack([steps, np.full(steps.shape[1], -1)])
    return [
        theme.stacked(steps[row].tolist(), steps[row + 1].tolist())
        for row in range(0, len(steps), 2)
    ]


def small_map(
    weights: NDArray[np.floating],
    lines: int,
    columns: int,
    causal: bool,
    theme: Theme,
    limit: float = 0.0,
) -> Block:
    """Return a map of at most ``lines`` × ``columns``; limit: see ``cell_steps``."""
    queries, keys = weights.shape
    theme = theme.signed if limit else theme
    fit = fitted(queries, keys, lines, columns, theme)
    steps = cell_steps(weights, fit.factors, causal, limit)
    return Block(tuple(cell_lines(steps, fit, theme)), fit.wide * steps.shape[1])


def thumbnails_fit(
    tokens: int, rows: int, across: int, lines: int, columns: int
) -> tuple[int, int] | None:
    """Return the lines and columns of each of ``rows`` × ``across`` small maps, a cell a weight.

    Each has a line of words above and an empty one below, and two columns to the next. None if they
    do not fit in ``lines`` × ``columns``, or show too little: fewer than 8 × 8 cells, or a text of
    more than forty tokens.
    """
    size = (tokens + 1) // 2, max(tokens, _NAMED)
    room = (lines + 1) // rows - 2 >= size[0] and (columns + 2) // across - 2 >= size[1]
    return size if room and _LEAST_THUMBNAIL <= tokens <= MOST_LINES else None
