"""The grid of heads: a row per layer, a column per head, the chosen one in the cursor's colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attnviz.draw.blocks import Block
from attnviz.draw.grid import APART, GridCell, GridPart, GridPicture, draw_small_maps, names_width
from attnviz.draw.labels import fit, token_labels, width
from attnviz.draw.maps import signed_tint, small_map, weight_steps
from attnviz.draw.numbers import NumberScale
from attnviz.draw.palette import STEPS, Tint
from attnviz.draw.provenance import share
from attnviz.draw.theme import Theme
from attnviz.engine.generation import Step
from attnviz.engine.head_run import Head
from attnviz.engine.scan.run import Effects
from attnviz.inspect.explore.session import Frame
from attnviz.inspect.explore.view import View
from attnviz.inspect.heads.layout import label_grid
from attnviz.inspect.heads.look import named_links
from attnviz.inspect.heads.report import compare_heads

_NAMED, _LEAST_SIDE = 11, 5
"""The fewest columns and queries of a small map."""

_LEAST_NUMBER = 4  # columns, such as +.05

_FAINT = "1c2027 68707c"
"""The ends of the grey scale for heads without a label, darker for a lower score."""


class Heads(NamedTuple):
    """The grid of heads as it is drawn, the layer of each row and the head of each column."""

    part: GridPart
    layers: Sequence[int]
    numbers: Sequence[int]

    def head_at(self, picture: GridPicture, column: int, line: int) -> Head | None:
        """Return the head that is drawn at a position of the screen; None if there is none.

        Where two heads share one character, it is the one that is not chosen yet.
        """
        place = picture.cell_at(column, line)
        if place is None:
            return None
        row, number = place
        if picture.shared == 2 and place == self.part.cursor and row + 1 < len(self.layers):
            row += 1
        return self.layers[row], self.numbers[number]

    def thumbnail(self, frame: Frame, theme: Theme, lines: int, columns: int) -> Thumbnail | None:
        """Return the size of small maps of all heads; None if they do not fit or are too small."""
        record = frame.report.record
        queries, keys = len(record.queries), len(record.keys)
        size = Thumbnail((queries + 1) // 2, max(keys, _NAMED))
        fits = (size.lines + 1) * len(self.layers) <= lines and self.wide(size) <= columns
        return size if fits and theme.half_blocks and queries >= _LEAST_SIDE else None

    def wide(self, size: Thumbnail) -> int:
        """Return the width in characters of a grid of small maps of this size."""
        return names_width(self.part.rows) + (size.columns + APART) * len(self.numbers)

    def small_maps(self, frame: Frame, theme: Theme, size: Thumbnail, focused: bool) -> GridPicture:
        """Return a grid of small maps, each under the name and the cell of its head."""
        maps = _small_maps(frame, theme, size)
        places = {
            (row, column): maps[layer, head]
            for row, layer in enumerate(self.layers)
            for column, head in enumerate(self.numbers)
            if (layer, head) in maps
        }
        return draw_small_maps(self.part, places, size, theme, focused)


class Thumbnail(NamedTuple):
    """The size of a small map of one head, without the line of its name.

    lines: each shows two queries. columns: its width in characters: one for each key, or more for
        the name.
    """

    lines: int
    columns: int


@lru_cache(maxsize=2)
def _small_maps(frame: Frame, theme: Theme, size: Thumbnail) -> Mapping[Head, Block]:
    record = frame.report.record
    return {place[:2]: small_map(place[2], *size, record.causal, theme) for place in record}


def heads_of(view: View) -> Heads:
    """Return the grid of heads for a screen state, with the facts that its cells show.

    A cell shows the first of these that is available: the token that a generated token attended
    to, how much attention differs between the two runs, the effect of a removal, the label.
    """
    if view.step is not None:
        return _grid(view, _sources(view, view.step))
    if view.side == "difference" and view.against is not None:
        moved = moved_attention(view.frame, view.against)
        if moved:
            steps = weight_steps(np.array([*moved.values()]))
            cells = {
                head: GridCell((share(value), ""), Tint(int(step)), value)
                for (head, value), step in zip(moved.items(), steps, strict=True)
            }
            return _grid(view, cells)
    if view.by_effect and view.effects is not None:
        return _grid(view, _effects(view.effects))
    return labelled(view)


def labelled(view: View) -> Heads:
    """Return the grid of each head's label and score."""
    return _grid(view, _labels(view.shown))


def _grid(view: View, cells: Mapping[Head, GridCell]) -> Heads:
    heads, base = view.shown.heads, view.shown.report.index_base
    layers, numbers = (sorted(set(axis)) for axis in zip(*heads, strict=True))

    def cell(head: Head) -> tuple[int, int]:
        return layers.index(head[0]), numbers.index(head[1])

    part = GridPart(
        rows=[f"L{layer + base}" for layer in layers],
        columns=[f"H{number + base}" for number in numbers],
        cells={cell(head): drawn for head, drawn in cells.items()},
        cursor=cell(view.head),
        crossed={cell(head) for head in view.removed},
    )
    return Heads(part, layers, numbers)


@lru_cache(maxsize=4)
def _labels(frame: Frame) -> Mapping[Head, GridCell]:
    grid, cells = label_grid(frame.report), {}
    layers, numbers = (sorted(set(axis)) for axis in zip(*frame.heads, strict=True))
    for entry in frame.report.heads:
        drawn = grid.cells[layers.index(entry.layer), numbers.index(entry.head)]
        label = entry.label
        letter = label.letter if label.is_finding else label.short[:1]
        texts = f"{label.short} {drawn.text}".strip(), label.short, letter
        score = 0.0 if math.isnan(label.score) else label.score
        faint = Tint(round(score * (STEPS - 1)), _FAINT)
        cells[entry.place] = GridCell(texts, drawn.tint, drawn.strength, faint)
    return cells


def _sources(view: View, step: Step) -> dict[Head, GridCell]:
    """Return for each head the token with its largest weight in a step, sinks excluded."""
    labels = token_labels(view.record.keys)
    cells = {}
    for layer, rows in step.rows.items():
        for head, row in enumerate(rows):
            left = view.without_sink(row)
            place = int(left.argmax())
            weight = float(left[place])
            name = fit(labels[place], min(width(labels[place]), 8))
            tint = Tint(int(weight_steps(np.array(weight)))) if weight >= 0.05 else None
            cells[layer, head] = GridCell((f"{name} {share(weight)}", name, ""), tint, weight)
    return cells


@lru_cache(maxsize=4)
def moved_attention(frame: Frame, other: Frame) -> Mapping[Head, float]:
    """Return for each head the share of attention, 0 to 1, that goes to other keys on another side.

    Empty if the tokens of the two sides differ.
    """
    return compare_heads([frame.report, other.report]).moved[1] or {}


def _effects(effects: Effects) -> dict[Head, GridCell]:
    scale = NumberScale(max(map(abs, effects.values.values()), default=0.0) or 1.0)
    cells = {}
    for head, value in effects.values.items():
        rooms = (scale.room, _LEAST_NUMBER)
        texts = [(scale.fitted(value, room) or "").rjust(room) for room in rooms]
        root = float(np.sign(value) * np.sqrt(abs(value) / scale.limit))
        cells[head] = GridCell((*texts, ""), signed_tint(value, scale.limit), root)
    return cells


def at_finding(view: View) -> View:
    """Return the screen state at the head and the cell that its finding names, if it names one."""
    if view.other is not None:
        moved = moved_attention(view.frame, view.other)
        return view.with_head(max(moved, key=lambda head: moved[head])) if moved else view
    for link, _ in named_links(view.shown.alone):
        return view.with_head(link[:2]).at(link.query, link.key)
    return view
