"""One head's map in full: queries down, keys across, tokens on both axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment

from attnviz.render.blocks import DIM, Block, Line, text_line
from attnviz.render.labels import fit, width, wrap
from attnviz.render.maps import cell_steps
from attnviz.render.pool import block_starts
from attnviz.render.theme import Theme

__all__ = ["Axes", "heatmap", "heatmap_width"]

_LONGEST_LABEL = 16
_HEADER_LINES = 6
_WIDEST_CELL = 9
_VALUE_CELL = 4


@dataclass(frozen=True)
class Axes:
    """The labels of the two axes, safe to print.

    queries, keys: one label a row, one a column.
    causal: cells with key > query stay blank.
    """

    queries: Sequence[str]
    keys: Sequence[str]
    causal: bool = False

    @property
    def label_width(self) -> int:
        """The columns that the query labels take, with the blank behind them."""
        return min(max(map(width, self.queries), default=0), _LONGEST_LABEL) + 1

    def cell_width(self, room: int, values: bool) -> int:
        """The columns of a cell when the whole map may take ``room``; 0 if it must be pooled."""
        widest = max(map(width, self.keys), default=0) + 1
        wanted = min(max(widest, _VALUE_CELL if values else 2), _WIDEST_CELL)
        return min((room - self.label_width) // max(len(self.keys), 1), wanted)


def heatmap_width(axes: Axes, room: int, values: bool) -> int:
    """The columns that a heatmap takes where ``room`` columns are to be had."""
    cell = axes.cell_width(room, values)
    return axes.label_width + cell * len(axes.keys) if cell else room


def heatmap(
    weights: NDArray[np.floating],
    axes: Axes,
    theme: Theme,
    title: Sequence[Line],
    room: int,
    values: bool = False,
) -> Block:
    """A map of ``weights`` (query, key) in at most ``room`` columns, under its title lines.

    Cells are as wide as the labels need and the room allows; what does not fit at one column a
    key is pooled, and the map says so. ``values`` writes each weight in its cell where three
    columns can be had.
    """
    cell = axes.cell_width(room, values)
    if cell < 1:
        return _pooled(weights, axes, theme, title, room)
    steps = cell_steps(weights, len(axes.queries), len(axes.keys), axes.causal)
    lines = [*title, *_header(axes, cell, theme)]
    for query, (row, label) in enumerate(zip(steps, axes.queries, strict=True)):
        line = text_line(_row_label(label, axes.label_width, theme))
        for key, step in enumerate(row):
            text = _value(float(weights[query, key]), cell) if values and cell >= 3 else ""
            line.append(theme.cells(int(step), cell, text))
        lines.append(_without_trailing_blanks(line))
    if values and cell < 3:
        needed = axes.label_width + 3 * len(axes.keys)
        lines.append(text_line((f"values need {needed} columns (--width {needed})", DIM)))
    return Block(tuple(lines), _widest(title, axes.label_width + cell * len(axes.keys)))


def _widest(title: Sequence[Line], width: int) -> int:
    return max(width, *map(Segment.get_line_length, title)) if title else width


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
        return [_ticks([str(key) for key in range(len(axes.keys))], axes.label_width, cell)]
    pieces = [wrap(label, room, _HEADER_LINES, theme.ellipsis) for label in axes.keys]
    height = max(map(len, pieces), default=0)
    lines = []
    for row in range(height):
        line = [Segment(" " * axes.label_width)]
        for piece in pieces:
            place = row - (height - len(piece))
            line.append(Segment(fit(piece[place] if place >= 0 else "", cell)))
        lines.append(_without_trailing_blanks(line))
    return lines


def _ticks(names: Sequence[str], indent: int, cell: int) -> Line:
    """Names over their columns, as many as fit without touching."""
    text = ""
    for place, name in enumerate(names):
        column = place * cell
        if column >= len(text) + (1 if text else 0):
            text = text.ljust(column) + name
    return text_line(" " * indent, (text, DIM))


def _pooled(
    weights: NDArray[np.floating], axes: Axes, theme: Theme, title: Sequence[Line], room: int
) -> Block:
    """A map of blocks of tokens; rows are labelled with the first token of their block."""
    queries, keys = weights.shape
    indent = min(axes.label_width, 12) + len(str(queries)) + 1
    columns = max(min(room - indent, keys), 1)
    per_line = 2 if theme.half_blocks else 1
    rows = min(queries, max(columns * queries // keys, 2))
    lines_used = max(rows // 2, 1)
    rows = lines_used * per_line
    steps = cell_steps(weights, rows, columns, axes.causal)
    starts = block_starts(queries, len(steps))
    lines = [*title, _ticks([str(start) for start in block_starts(keys, columns)], indent, 1)]
    for row in range(0, len(steps), per_line):
        start = int(starts[row])
        name = f"{start:>{len(str(queries))}} {axes.queries[start]}"
        line = text_line((fit(name, indent - 1, theme.ellipsis) + " ", DIM))
        if per_line == 2:
            below = steps[row + 1] if row + 1 < len(steps) else np.full(columns, -1)
            line += theme.stacked(steps[row].tolist(), below.tolist())
        else:
            line += [theme.cells(int(step), 1) for step in steps[row]]
        lines.append(_without_trailing_blanks(line))
    lines.append(text_line((_pooling_caption(weights.shape, steps.shape), DIM)))
    return Block(tuple(lines), _widest(title, indent + columns))


def _pooling_caption(tokens: tuple[int, ...], cells: tuple[int, ...]) -> str:
    """What one cell of a pooled map is."""
    sizes = [f"{size / blocks:.3g}" for size, blocks in zip(tokens, cells, strict=True)]
    return (
        f"pooled: a cell is about {sizes[0]} queries x {sizes[1]} keys; "
        "summed over keys, averaged over queries"
    )


def _without_trailing_blanks(line: Line) -> Line:
    end = len(line)
    while end and not line[end - 1].text.strip() and not line[end - 1].style:
        end -= 1
    return line[:end]
