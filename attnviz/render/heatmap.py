"""One head's map in full: queries down, keys across, tokens on both axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment

from attnviz.render.axes import Axes, tick_line
from attnviz.render.blocks import DIM, Block, Line, text_line, widest, without_trailing_blanks
from attnviz.render.dense_map import dense_map
from attnviz.render.labels import fit, width, wrap
from attnviz.render.maps import cell_steps
from attnviz.render.theme import Theme

__all__ = ["heatmap", "heatmap_width"]

_HEADER_LINES = 6
_LEAST_CELL = 2


def heatmap_width(axes: Axes, room: int, values: bool) -> int:
    """The columns that a heatmap takes where ``room`` columns are to be had."""
    cell = axes.cell_width(room, values)
    return axes.label_width + cell * len(axes.keys) if cell >= _LEAST_CELL else room


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
    map is drawn densely. ``values`` writes each weight in its cell where three columns can be had.
    """
    cell = axes.cell_width(room, values)
    if cell < _LEAST_CELL:
        return dense_map(weights, axes, theme, title, room)
    steps = cell_steps(weights, len(axes.queries), len(axes.keys), axes.causal)
    lines = [*title, *_header(axes, cell, theme)]
    for query, (row, label) in enumerate(zip(steps, axes.queries, strict=True)):
        line = text_line(_row_label(label, axes.label_width, theme))
        for key, step in enumerate(row):
            text = _value(float(weights[query, key]), cell) if values and cell >= 3 else ""
            line.append(theme.cells(int(step), cell, text))
        lines.append(without_trailing_blanks(line))
    if values and cell < 3:
        needed = axes.label_width + 3 * len(axes.keys)
        lines.append(text_line((f"values need {needed} columns (--width {needed})", DIM)))
    return Block(tuple(lines), widest(title, axes.label_width + cell * len(axes.keys)))


def _value(weight: float, cell: int) -> str:
    """A weight in at most ``cell`` columns: ``.07``, ``1.0``; a dot for what rounds to zero."""
    if weight < 0.005:
        return "·" if weight > 0 else "0"
    if weight >= 0.995:
        return "1.0"
    return f"{weight:.2f}" if cell >= 6 else f"{weight:.2f}"[1:]


def _row_label(label: str, cells: int, theme: Theme) -> str:
    shown = label if width(label) < cells else fit(label, cells - 1, theme.ellipsis)
    return " " * (cells - 1 - width(shown)) + shown + " "


def _header(axes: Axes, cell: int, theme: Theme) -> list[Line]:
    """The key labels, broken into their columns, their last lines on the map."""
    room = cell if cell < 3 else cell - 1  # a blank between neighbours where it can be had
    if any(width(character) > room for label in axes.keys for character in label):
        return [tick_line(range(len(axes.keys)), axes.label_width, cell)]
    pieces = [wrap(label, room, _HEADER_LINES, theme.ellipsis) for label in axes.keys]
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
