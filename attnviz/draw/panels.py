"""Attention maps on a terminal, in full or small under their names, and what colours mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.segment import Segment

from attnviz.draw.axes import Axes
from attnviz.draw.blocks import DIM, Block, Line, beside, flow, stack, text_line, widest
from attnviz.draw.coloured_text import scale_block, text_block
from attnviz.draw.document import Map, Maps, Words
from attnviz.draw.heatmap import heatmap, quality, values_fit
from attnviz.draw.labels import token_labels
from attnviz.draw.maps import MOST_LINES, fitted, pooling, small_map
from attnviz.draw.palette import STEPS
from attnviz.draw.prose import spelled_parts, wrapped
from attnviz.draw.scale import weight_steps
from attnviz.draw.theme import Theme

_WEIGHTS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)


def _number(weight: float) -> str:
    return f"{weight:.2f}".rstrip("0").rstrip(".").removeprefix("0") or "0"


def legend(theme: Theme, room: int, values: bool = False) -> Block:
    """Sample cells and the weights they stand for; the scale is the square root of the weight.

    values: say what stands in a cell for a weight that rounds to zero.
    """
    samples: list[Line] = [text_line(("weight", DIM))]
    if theme.colour:
        for weight, step in zip(_WEIGHTS, weight_steps(np.array(_WEIGHTS)), strict=True):
            samples.append([Segment(f"{_number(weight)} ", DIM), theme.cells(int(step), 2)])
        root = "sqrt(weight)" if theme.ascii else "√weight"
        samples.append(text_line((f"colour: {root}", DIM)))
    else:
        starts = [
            (max(step - 0.5, 0) / (STEPS - 1)) ** 2  # a weight takes the nearest step
            for glyph in theme.ramp
            for step in range(STEPS)
            if theme.glyph(step) == glyph and (step == 0 or theme.glyph(step - 1) != glyph)
        ]
        for glyph, start in zip(theme.ramp, starts, strict=True):
            samples.append(text_line(f"{glyph * 2} ", (f"from {_number(start)}", DIM)))
    if values:
        samples.append(text_line(f"{theme.trace} ", ("below .005", DIM)))
    blocks = [Block((sample,), Segment.get_line_length(sample)) for sample in samples]
    return flow(blocks, room, gap=2, between=0)


_GAP, _SMALL_GAP = 3, 2
_LEAST_TITLE = 30
_MOST_BESIDE = 4


def maps_block(part: Maps, theme: Theme, room: int) -> Block:
    """The maps in ``room`` columns, then what their colours mean."""
    title = Block(tuple(_lines(part.title, theme, room)), room)
    key = Block((), 0)
    if part.scale is not None:
        written = (
            part.values and bool(part.maps) and values_fit(map_axes(part.maps[0], theme), room)
        )
        key = legend(theme, room, written)
    if not part.maps:
        return key
    if part.texts:
        return _texts(part, theme, room)
    if part.small is not None:
        return stack([title, _small(part, part.small, theme, room), key], gap=0)
    return stack([title, _full(part, theme, room), key])


def _texts(part: Maps, theme: Theme, room: int) -> Block:
    """The texts below each other, each under its title, then what their colours mean."""
    blocks = [Block(tuple(_lines(part.title, theme, room)), room)]
    for shown in part.maps:
        words = [*_lines(shown.words or [(shown.name, True)], theme, room)]
        blocks.append(Block((*words, *_lines(shown.below, theme, room)), room))
        blocks.append(text_block(shown, theme, room, part.lines))
    blocks += [] if part.scale is None else [scale_block(part.scale, theme, room)]
    return stack(blocks, gap=0)


def map_axes(shown: Map, theme: Theme) -> Axes:
    """The labels of a map's rows and columns."""
    queries, keys = (token_labels(tokens, theme.encoding) for tokens in (shown.queries, shown.keys))
    return Axes(queries, keys, shown.causal)


def _lines(words: Words, theme: Theme, room: int) -> list[Line]:
    return wrapped(spelled_parts(words, theme), room, theme)


def _full(part: Maps, theme: Theme, room: int) -> Block:
    """As many maps in a row as show no less than one alone would."""
    axes = [map_axes(shown, theme) for shown in part.maps]
    most = part.lines or MOST_LINES
    wide = _map_room(part, axes, theme, room)
    drawn = [
        heatmap(shown.weights, labels, theme, wide, part.values, most)
        for shown, labels in zip(part.maps, axes, strict=True)
    ]
    titles = []
    for shown, block in zip(part.maps, drawn, strict=True):
        space = max(block.width, min(wide, _LEAST_TITLE))
        words = shown.words or [(shown.name, True)]
        titles.append([*_lines(words, theme, space), *_lines(shown.below, theme, space)])
    tallest = max(map(len, titles))
    blocks = []
    for title, block in zip(titles, drawn, strict=True):
        lines = (*title, *([] for _ in range(tallest - len(title))), *block.lines)
        blocks.append(Block(lines, widest(lines)))
    return flow(blocks, room, _GAP)


def _map_room(part: Maps, axes: Sequence[Axes], theme: Theme, width: int) -> int:
    """The columns of one map."""
    lines = part.lines or MOST_LINES

    def worth(room: int) -> list[tuple[int, ...]]:
        return [quality(each, theme, room, part.values, lines) for each in axes]

    for across in range(min(len(axes), _MOST_BESIDE), 1, -1):
        room = (width + _GAP) // across - _GAP
        if worth(room) == worth(width):
            return room
    return width


def _small(part: Maps, size: tuple[int, int], theme: Theme, room: int) -> Block:
    """Rows of small maps with a line between; as many in a row as a page has, or a part of it."""
    lines, columns = size
    across = max((room + _SMALL_GAP) // (columns + _SMALL_GAP), 1)
    if part.across:
        across = math.ceil(part.across / math.ceil(part.across / across))
    shown = part.maps[: across * part.rows] if part.rows else part.maps
    blocks = []
    for each in shown:
        drawn = small_map(each.weights, lines, columns, each.causal, theme)
        name = _lines(each.words or [(each.name, True)], theme, columns)
        caption = _lines(each.below, theme, columns)
        blocks.append(Block((*name, *drawn.lines, *caption), max(drawn.width, columns)))
    rows = [blocks[start : start + across] for start in range(0, len(blocks), across)]
    queries, keys = shown[0].weights.shape
    pooled = pooling(fitted(queries, keys, lines, columns, theme).factors)
    caption = _lines([(pooled, "faint")], theme, room) if pooled else []
    return stack([stack(beside(row, _SMALL_GAP) for row in rows), Block(tuple(caption), room)], 0)
