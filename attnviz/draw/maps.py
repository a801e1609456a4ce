"""The cells of one attention map, without labels: pooled into blocks if need be, then drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.blocks import Block, Line
from attnviz.draw.scale import visible_cells, weight_steps
from attnviz.draw.theme import Theme


def block_starts(tokens: int, blocks: int) -> NDArray[np.intp]:
    """The index of the first token of each of ``blocks`` almost equal blocks."""
    return np.arange(blocks) * tokens // blocks


def pool(weights: NDArray[np.floating], queries: int, keys: int) -> NDArray[np.floating]:
    """Weights (query, key) pooled to at most ``queries`` × ``keys`` blocks.

    A block's weight is summed over its keys and averaged over its queries, so that rows keep
    their sum: it is the share of attention that the block of queries pays to the block of keys.
    """
    rows, columns = weights.shape
    if keys < columns:
        weights = np.add.reduceat(weights, block_starts(columns, keys), axis=1)
    if queries < rows:
        starts = block_starts(rows, queries)
        sizes = np.diff(starts, append=rows)
        weights = np.add.reduceat(weights, starts, axis=0) / sizes[:, None]
    return weights


def pooling(tokens: tuple[int, int], cells: tuple[int, int]) -> str | None:
    """What one of ``cells`` (query, key) of a map of ``tokens`` is; None where it is one weight."""
    if tokens == cells:
        return None
    size = [count / blocks for count, blocks in zip(tokens, cells, strict=True)]
    return (
        f"pooled: {size[0]:.1f} queries by {size[1]:.1f} keys a cell, summed over keys, "
        "mean over queries"
    )


def cell_steps(
    weights: NDArray[np.floating], queries: int, keys: int, causal: bool
) -> NDArray[np.intp]:
    """The steps of a map of at most ``queries`` × ``keys`` cells; −1 where only future lies."""
    rows, columns = weights.shape
    queries, keys = min(queries, rows), min(keys, columns)
    steps = weight_steps(pool(weights, queries, keys))
    visible = visible_cells(rows, columns, causal)
    ends = np.append(block_starts(rows, queries)[1:], rows) - 1
    steps[~visible[np.ix_(ends, block_starts(columns, keys))]] = -1
    return steps


def small_map_cells(
    queries: int, keys: int, lines: int, columns: int, theme: Theme
) -> tuple[int, int]:
    """The cells (query, key) of a small map of so many tokens in ``lines`` × ``columns``."""
    if _fits_large(queries, keys, lines, columns):
        return queries, keys
    rows = 2 * lines if theme.half_blocks else min(lines, (queries + 1) // 2)
    return min(rows, queries), min(columns, keys)


def _fits_large(queries: int, keys: int, lines: int, columns: int) -> bool:
    """Whether a cell may take two columns and a line."""
    return 2 * keys <= columns and queries <= lines


def small_map(
    weights: NDArray[np.floating], lines: int, columns: int, causal: bool, theme: Theme
) -> Block:
    """A map of one column a key and half a line a query, pooled to ``lines`` × ``columns``.

    A map that is far smaller than its room is drawn with two columns a key and a line a query:
    cells stay nearly square. Without colour a line is one row of glyphs.
    """
    queries, keys = weights.shape
    drawn: list[Line]
    steps = cell_steps(weights, *small_map_cells(queries, keys, lines, columns, theme), causal)
    large = _fits_large(queries, keys, lines, columns)
    if large or not theme.half_blocks:
        cell = 2 if large else 1
        drawn = [[theme.cells(int(step), cell) for step in row] for row in steps]
        return Block(tuple(drawn), cell * steps.shape[1])
    if len(steps) % 2:
        steps = np.vstack([steps, np.full(steps.shape[1], -1)])
    drawn = [
        theme.stacked(steps[row].tolist(), steps[row + 1].tolist())
        for row in range(0, len(steps), 2)
    ]
    return Block(tuple(drawn), steps.shape[1])
