"""One head's map in full: queries down, keys across, tokens on both axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment

from attnviz.draw.axes import Axes, tick_line
from attnviz.draw.blocks import (
    DIM,
    Block,
    Line,
    stack,
    text_line,
    widest,
    without_trailing_blanks,
)
from attnviz.draw.labels import at_blanks, fit, width, wrap
from attnviz.draw.maps import block_starts, cell_steps, pooling
from attnviz.draw.theme import Theme

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


_HEADER_LINES = 6
_LEAST_CELL = 2
_VALUE_ROOM = 4  # three characters and a blank


def heatmap_width(axes: Axes, room: int, values: bool) -> int:
    """The columns that a heatmap takes where ``room`` columns are to be had."""
    cell = axes.cell_width(room, values)
    return axes.label_width + cell * len(axes.keys) if cell >= _LEAST_CELL else room


def values_fit(axes: Axes, room: int) -> bool:
    """Whether a map in ``room`` columns has a cell wide enough for every weight."""
    return axes.cell_width(room, values=True) >= _VALUE_ROOM


def heatmap(
    weights: NDArray[np.floating],
    axes: Axes,
    theme: Theme,
    title: Sequence[Line],
    room: int,
    values: bool = False,
) -> Block:
    """A map of ``weights`` (query, key) in at most ``room`` columns, under its title lines.

    NaN stays blank.
    Cells are as wide as the labels need and the room allows, but at least two columns; a larger
    map is drawn densely. ``values`` writes each weight in its cell where four columns can be had.
    """
    cell = axes.cell_width(room, values)
    written = values and values_fit(axes, room)
    note = _room_for_values(axes, room) if values and not written else Block((), 0)
    if cell < _LEAST_CELL:
        return stack([dense_map(weights, axes, theme, title, room), note], gap=0)
    steps = cell_steps(weights, len(axes.queries), len(axes.keys), axes.causal)
    lines = [*title, *_header(axes, cell, theme)]
    for query, (row, label) in enumerate(zip(steps, axes.queries, strict=True)):
        line = text_line(_row_label(label, axes.label_width, theme))
        for key, step in enumerate(row):
            weight = float(weights[query, key])
            text = _value(weight, cell, theme) if written else ""
            line.append(theme.cells(int(step), cell, text))
        lines.append(without_trailing_blanks(line))
    drawn = Block(tuple(lines), widest(title, axes.label_width + cell * len(axes.keys)))
    return stack([drawn, note], gap=0)


def _room_for_values(axes: Axes, room: int) -> Block:
    """Why there are no values in the cells."""
    needed = axes.label_width + _VALUE_ROOM * len(axes.keys)
    lines = at_blanks(f"values need {needed} columns (--width {needed})", room)
    return Block(tuple(text_line((line, DIM)) for line in lines), max(map(width, lines)))


def _value(weight: float, cell: int, theme: Theme) -> str:
    """A weight in at most ``cell`` columns: ``.07``, ``1.0``; a dot for what rounds to zero."""
    if weight < 0.005:
        return theme.trace if weight > 0 else "0"
    if weight >= 0.995:
        return "1.0"
    return f"{weight:.2f}" if cell >= 6 else f"{weight:.2f}"[1:]


def _row_label(label: str, cells: int, theme: Theme) -> str:
    shown = label if width(label) < cells else fit(label, cells - 1, theme.ellipsis)
    return " " * (cells - 1 - width(shown)) + shown + " "


def _header(axes: Axes, cell: int, theme: Theme) -> list[Line]:
    """The key labels, broken into their columns, their last lines on the map."""

    def broken(label: str) -> list[str]:
        """A blank is left between neighbours, unless a wide character needs the whole column."""
        room = cell - 1 if all(width(character) < cell for character in label) else cell
        pieces = wrap(label, room, _HEADER_LINES, theme.ellipsis)
        if len(pieces) > 1 and pieces[-1] == theme.ellipsis:  # of a name that was cut before
            pieces = wrap(label, room, len(pieces) - 1, theme.ellipsis)
        return pieces

    pieces = [broken(label) for label in axes.keys]
    height = max(map(len, pieces), default=0)
    lines = []
    for row in range(height):
        line = [Segment(" " * axes.label_width)]
        for piece in pieces:
            place = row - (height - len(piece))
            text = piece[place] if place >= 0 else ""
            line.append(Segment(fit(" " * ((cell - width(text)) // 2) + text, cell)))
        lines.append(without_trailing_blanks(line))
    return lines
