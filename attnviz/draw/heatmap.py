"""Draw one head's map in full, with the tokens of both axes.

The upper half of a causal map is empty: each row ends on the diagonal, and the token there names
the row and the column. Other maps have their queries at the left and their keys above.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment

from attnviz.draw.axes import LONGEST_LABEL, Axes, KeyCells, tick_line
from attnviz.draw.blocks import DIM, Block, Line, text_line, widest, without_trailing_blanks
from attnviz.draw.labels import at_blanks, cut, fit, width
from attnviz.draw.maps import MOST_LINES, Fit, cell_lines, cell_steps, fitted, pooling
from attnviz.draw.numbers import NumberScale
from attnviz.draw.provenance import share
from attnviz.draw.regions import band_room, banded
from attnviz.draw.theme import Theme

_LEAST_NAME = 8  # columns for tokens behind a downsampled map


def heatmap(
    weights: NDArray[np.floating],
    axes: Axes,
    theme: Theme,
    max_width: int,
    values: bool = False,
    lines: int = MOST_LINES,
    limit: float = 0.0,
) -> Block:
    """Return a map of ``weights`` (query, key) with its labels.

    NaN stays blank. Each query has a line if that fits, even beyond ``lines`` in maps that are not
    square; else two queries share a line, or cells are downsampled and a caption says so.
    max_width: in characters. values: True writes each weight in its cell if the
        cells are wide enough. lines: the most lines.
    limit: the absolute value with the full colour, for values of either sign; 0 for weights.
    """
    theme = theme.signed if limit else theme
    max_width -= band_room(axes)
    cells = _plan(axes, max_width, values, lines)
    if cells is None:
        plan = _dense_fit(axes, theme, max_width, lines)
        drawn = _dense(weights, axes, plan, theme, max_width, limit)
        drawn += _room_for_values(axes, max_width) if values else []
        return Block(tuple(drawn), widest(drawn))
    plan = Fit(cells.wide, False, (1, 1))
    steps = cell_steps(weights, plan.factors, axes.causal, limit)

    def text(query: int, key: int) -> str:
        return _value(float(weights[query, key]), theme, limit)

    drawn = []
    for query, line in enumerate(cell_lines(steps, plan, theme, text if cells.values else None)):
        if axes.diagonal:
            room = max(max_width - cells.wide * (query + 1) - 1, 1)
            label = cut(axes.queries[query], room, theme.ellipsis)
            drawn.append([*line[: query + 1], Segment(f" {label}")])
        else:
            numbered = cells.header == "numbers"
            label = row_label(axes, query, axes.label_width - 1, numbered, theme)
            drawn.append(without_trailing_blanks([Segment(label), *line]))
    note = [] if cells.values or not values else _room_for_values(axes, max_width)
    indent = 0 if axes.diagonal else axes.label_width
    indent += axes.digits + 1 if cells.header == "numbers" else 0
    drawn = banded(_header(axes, cells, theme), drawn, axes, plan, indent, theme)
    drawn = [*drawn, *note, *_key_names(axes, cells, theme, max_width)]
    return Block(tuple(drawn), widest(drawn))


def _plan(axes: Axes, max_width: int, values: bool, lines: int) -> KeyCells | None:
    """Return the layout of a map with a line for each query; None if it does not fit."""
    square = len(axes.queries) == len(axes.keys)
    return None if square and len(axes.keys) > lines else axes.cells(max_width, values)


def values_fit(axes: Axes, max_width: int) -> bool:
    """Return True if a map with ``max_width`` characters of width can show every weight as text."""
    cells = axes.cells(max_width - band_room(axes), True)
    return cells is not None and cells.values


def quality(axes: Axes, theme: Theme, max_width: int, values: bool, lines: int) -> tuple[int, ...]:
    """Return how well a map can be drawn, as a tuple for comparisons: larger is better."""
    max_width -= band_room(axes)
    cells = _plan(axes, max_width, values, lines)
    if cells is None:
        return (-max(_dense_fit(axes, theme, max_width, lines).factors), 0, 0)
    rank = {"numbers": 0, "cut words": 1, "words": 2, None: 2}[cells.header]
    return (-1, int(cells.values), rank)


def _value(weight: float, theme: Theme, limit: float) -> str:
    """Return a weight in three characters: ``.07``, ``1.0``; a dot for one that rounds to zero.

    limit: 0 for weights. For values of either sign, the absolute value with the full colour; such a
        value is as wide as its cell, such as ``+.07``.
    """
    if limit:
        scale = NumberScale(limit)
        return (scale.fitted(weight, scale.room) or "").rjust(scale.room)
    if weight < 0.005:
        return theme.trace if weight > 0 else "0"
    return share(weight)


def row_label(axes: Axes, query: int, max_width: int, numbered: bool, theme: Theme) -> str:
    """Return a query's label, aligned at the right, and a blank.

    max_width: the width of the label in characters. numbered: True if its index stands at the left.
    """
    label = cut(axes.queries[query], max(max_width, 1), theme.ellipsis)
    index = f"{axes.row(query):>{axes.digits}} " if numbered else ""
    return index + " " * (max_width - width(label)) + label + " "


def _header(axes: Axes, cells: KeyCells, theme: Theme) -> list[Line]:
    """Return the lines above the map that name the keys: by words, or by numbers where they fit."""
    if cells.header is None:
        return []
    indent = axes.label_width
    if cells.header == "numbers":
        numbers = list(map(axes.column, range(len(axes.keys))))
        return [tick_line(numbers, indent + axes.digits + 1, cells.wide)]
    line = [Segment(" " * indent)]
    for label in axes.keys:
        # A cut word has no ellipsis where that would leave it less than four letters.
        shown = cut(label, cells.wide - 1, theme.ellipsis)
        if width(shown) < len(theme.ellipsis) + 4 and shown != label:
            shown = fit(label, cells.wide - 1, "")
        line.append(Segment(fit(" " * ((cells.wide - width(shown)) // 2) + shown, cells.wide)))
    return [without_trailing_blanks(line)]


def _key_names(axes: Axes, cells: KeyCells, theme: Theme, max_width: int) -> list[Line]:
    """Return lines that list the keys by number, if neither the map nor its rows name them."""
    alike = list(axes.keys) == list(axes.queries) and axes.rows == axes.columns
    numbers = map(str, map(axes.column, range(len(axes.keys))))
    if cells.header != "numbers" or alike or list(axes.keys) == list(numbers):
        return []
    names = " ".join(f"{axes.column(place)} {label}" for place, label in enumerate(axes.keys))
    lines = at_blanks(f"columns: {names}", max_width, "", theme.ellipsis)
    return [text_line((line, DIM)) for line in lines]


def _room_for_values(axes: Axes, max_width: int) -> list[Line]:
    """Return lines that say which width the map would need to write values in its cells."""
    needed = axes.value_room()
    lines = at_blanks(f"values need {needed} columns (--width {needed})", max_width)
    return [text_line((line, DIM)) for line in lines]


# Long texts ----------------------------------------------------------------------------------


def _dense_labels(axes: Axes, max_width: int) -> int:
    """Return the width of the row labels of a downsampled map, at most half of ``max_width``."""
    labels = _LEAST_NAME if axes.diagonal else min(axes.label_width - 1, LONGEST_LABEL)
    return min(axes.digits + 1 + labels + 1, max(max_width // 2, 2))


def _dense_fit(axes: Axes, theme: Theme, max_width: int, lines: int) -> Fit:
    columns = max(max_width - _dense_labels(axes, max_width), 1)
    return fitted(len(axes.queries), len(axes.keys), lines, columns, theme)


def _dense(
    weights: NDArray[np.floating], axes: Axes, plan: Fit, theme: Theme, max_width: int, limit: float
) -> list[Line]:
    """Return a map with small cells; each line has the index and the text of its first query."""
    steps = cell_steps(weights, plan.factors, axes.causal, limit)
    queries = plan.factors[0] * plan.rows
    indent = 0 if axes.diagonal else _dense_labels(axes, max_width)
    drawn: list[Line] = []
    above: list[Line] = []
    if not axes.diagonal:
        starts = list(map(axes.column, range(0, len(axes.keys), plan.factors[1])))
        above.append(tick_line(starts, indent, plan.wide))
    for place, cells in enumerate(cell_lines(steps, plan, theme)):
        first = place * queries
        named = queries if axes.diagonal and plan.factors == (1, 1) else 1
        name = " ".join((f"{axes.row(first):>{axes.digits}}", *axes.queries[first : first + named]))
        if axes.diagonal:
            used = plan.wide * min((place + 1) * plan.rows, steps.shape[1])
            kept = without_trailing_blanks(cells)
            blank = " " * (used - widest([kept]) + 1)
            label = cut(name, max(max_width - used - 1, 1), theme.ellipsis)
            drawn.append([*kept, Segment(blank + label, DIM)])
        else:
            label = fit(name, indent - 1, theme.ellipsis)
            drawn.append([Segment(f"{label} ", DIM), *without_trailing_blanks(cells)])
    drawn = banded(above, drawn, axes, plan, indent, theme)
    words = theme.spell(pooling(plan.factors, limit > 0))
    caption = at_blanks(words, max_width, "", theme.ellipsis)
    return [*drawn, *(text_line((line, DIM)) for line in caption if line)]
