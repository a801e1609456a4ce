"""Heatmaps in full, side by side where they can be read so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.axes import Axes
from attnviz.draw.blocks import Block, Line, flow
from attnviz.draw.heatmap import heatmap, heatmap_width
from attnviz.draw.labels import token_labels
from attnviz.draw.theme import Theme
from attnviz.records import AttentionRecord

__all__ = ["Panel", "full_maps", "record_axes"]

_GAP = 3
_LEAST_TITLE = 30
_COMFORTABLE = 4
_MOST_BESIDE = 4


@dataclass(frozen=True)
class Panel:
    """One map.

    weights: (query, key), labelled by ``axes``.
    title: its lines for so many columns.
    """

    weights: NDArray[np.floating]
    axes: Axes
    title: Callable[[int], list[Line]]


def record_axes(record: AttentionRecord, theme: Theme) -> Axes:
    """The labelled axes of a record's maps."""
    return Axes(
        token_labels(record.queries, theme.encoding),
        token_labels(record.keys, theme.encoding),
        record.causal,
    )


def full_maps(
    panels: Sequence[Panel],
    theme: Theme,
    width: int,
    values: bool = False,
    least_cell: int = _COMFORTABLE,
) -> Block:
    """The maps in ``width`` columns, as many in a row as keep cells of ``least_cell`` columns.

    values: write the weights in the cells.
    """
    room = _room(panels, width, values, least_cell)
    titles = []
    for panel in panels:
        drawn = heatmap_width(panel.axes, room, values)
        titles.append(panel.title(max(drawn, min(room, _LEAST_TITLE))))
    tallest = max(map(len, titles), default=0)
    maps = [
        heatmap(
            panel.weights,
            panel.axes,
            theme,
            [*title, *([] for _ in range(tallest - len(title)))],
            room,
            values,
        )
        for panel, title in zip(panels, titles, strict=True)
    ]
    return flow(maps, width, _GAP)


def _room(panels: Sequence[Panel], width: int, values: bool, least_cell: int) -> int:
    """The columns of one map."""
    for beside in range(min(len(panels), _MOST_BESIDE), 1, -1):
        room = (width + _GAP) // beside - _GAP
        if all(panel.axes.cell_width(room, values) >= least_cell for panel in panels):
            return room
    return width
