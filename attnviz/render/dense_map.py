"""The map of a long text: a column a key or less, half a line a query or less."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.render.axes import Axes, tick_line
from attnviz.render.blocks import DIM, Block, Line, text_line, widest, without_trailing_blanks
from attnviz.render.labels import at_blanks, fit
from attnviz.render.maps import cell_steps
from attnviz.render.pool import block_starts, pooling
from attnviz.render.theme import Theme

__all__ = ["dense_map"]

_LONGEST_LABEL = 20
_FEW_QUERIES = 12
_TWO_A_LINE = "two queries a line, the upper one is named"


def dense_map(
    weights: NDArray[np.floating], axes: Axes, theme: Theme, title: Sequence[Line], room: int
) -> Block:
    """A map of ``weights`` (query, key) in ``room`` columns, under its title lines.

    Columns carry the index of every few keys, lines the index and text of their first query.
    What does not fit is pooled into blocks of tokens, and a caption says so.
    """
    queries, keys = weights.shape
    digits = len(str(queries - 1))
    label_room = max(room // 2 - digits - 1, 2)  # the map gets at least half of the columns
    indent = digits + 1 + min(axes.label_width, _LONGEST_LABEL - digits, label_room)
    columns = max(min(room - indent, keys), 1)
    few = _FEW_QUERIES if theme.half_blocks else 2 * _FEW_QUERIES
    lines = _line_count(queries, columns * queries // keys, few)
    halves = theme.half_blocks and lines < queries
    steps = cell_steps(weights, 2 * lines if halves else lines, columns, axes.causal)
    starts = block_starts(queries, len(steps))
    drawn = [*title, tick_line(block_starts(keys, columns).tolist(), indent, 1)]
    for row in range(0, len(steps), 2 if halves else 1):
        first = int(starts[row])
        label = fit(f"{first:>{digits}} {axes.queries[first]}", indent - 1, theme.ellipsis)
        if halves:
            under = steps[row + 1].tolist() if row + 1 < len(steps) else [-1] * columns
            cells = theme.stacked(steps[row].tolist(), under)
        else:
            cells = [theme.cells(int(step), 1) for step in steps[row]]
        drawn.append(without_trailing_blanks([*text_line((label + " ", DIM)), *cells]))
    caption = pooling((queries, keys), (len(steps), columns)) or (_TWO_A_LINE if halves else "")
    drawn += [text_line((line, DIM)) for line in at_blanks(caption, room) if line]
    return Block(tuple(drawn), widest(drawn, indent + columns))


def _line_count(queries: int, square: int, few: int) -> int:
    """Lines of the map: half a line for each of the ``square`` rows, a line each for few."""
    if queries <= few:
        return queries
    return max((min(square, queries) + 1) // 2, few)
