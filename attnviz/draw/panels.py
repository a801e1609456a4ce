"""Draws attention maps on a terminal, in full or small under their names, with a colour legend."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnviz.draw.blocks import Block, beside, flow, stack, widest
from attnviz.draw.coloured_text import scale_block, text_block
from attnviz.draw.document import Map, Maps
from attnviz.draw.heatmap import Axes, heatmap, quality
from attnviz.draw.labels import token_labels
from attnviz.draw.maps import MOST_LINES, fitted, pooling, small_map
from attnviz.draw.numbers import NumberScale, counted
from attnviz.draw.prose import words_block, words_lines
from attnviz.draw.theme import Theme

_GAP, _SMALL_GAP = 3, 2
_LEAST_TITLE = 30
_MOST_BESIDE = 4
_TITLE_LINES = 3  # the lines that a map's title takes, with the empty line before the next map


def maps_block(part: Maps, theme: Theme, max_width: int) -> Block:
    """Return the maps side by side or below each other, followed by a legend of their colours."""
    title = words_block(part.title, theme, max_width)
    key = Block((), 0)
    if part.scale is not None:
        axes = [map_axes(shown, theme) for shown in part.maps if not shown.limit]
        layouts = [labels.cells(max_width - labels.band, True) for labels in axes]
        dots = part.values and any(cells is not None and cells.values for cells in layouts)
        key = scale_block(part.scale, theme, max_width, f"{theme.trace} below .005" if dots else "")
    if not part.maps:
        return key
    more = f"{counted(part.hidden, 'more map')}: --full" if part.hidden else ""
    left_out = words_block([(more, "faint")], theme, max_width)
    if part.texts:
        return stack([title, _texts(part, theme, max_width), left_out, key], gap=0)
    if part.small is not None:
        (queries, keys), (lines, columns) = part.maps[0].weights.shape, part.small
        factors = fitted(queries, keys, lines, columns, theme).factors
        pooled = pooling(factors, part.maps[0].limit > 0)
        words = [(pooled, False)] * bool(pooled)
        caption = words_block(words, theme, max_width)
        if part.title:  # in the line of the title, for small maps fill the screen
            title = words_block([*part.title, *words], theme, max_width)
            caption = Block((), max_width)
        small = _small(part, part.small, theme, max_width)
        return stack([title, small, caption, left_out, key], gap=0)
    return stack([title, stack([_full(part, theme, max_width), left_out], gap=0), key])


def _texts(part: Maps, theme: Theme, max_width: int) -> Block:
    blocks = []
    for shown in part.maps:
        words = [*words_lines(shown.words or [(shown.name, True)], theme, max_width)]
        blocks.append(Block((*words, *words_lines(shown.below, theme, max_width)), max_width))
        blocks.append(text_block(shown, theme, max_width, part.lines))
    return stack(blocks, gap=0)


def map_axes(shown: Map, theme: Theme) -> Axes:
    """Return the labels of a map's rows and columns in characters that the console can show."""
    queries, keys = (token_labels(tokens, theme.encoding) for tokens in (shown.queries, shown.keys))
    return Axes(
        queries,
        keys,
        shown.causal,
        value=NumberScale(shown.limit).room + 1 if shown.limit else Axes.value,
        rows=shown.queries.kept,
        columns=shown.keys.kept,
        query_regions=shown.queries.regions,
        key_regions=shown.keys.regions,
    )


def _full(part: Maps, theme: Theme, max_width: int) -> Block:
    """Return maps at full size, as many in a row as fit without showing less of any of them."""
    axes = [map_axes(shown, theme) for shown in part.maps]
    wide = _map_room(part, axes, theme, max_width)
    drawn = _heatmaps(part, axes, theme, wide, part.lines or MOST_LINES)
    titles = []
    for shown, block in zip(part.maps, drawn, strict=True):
        space = max(block.width, min(wide, _LEAST_TITLE))
        words = shown.words or [(shown.name, True)]
        titles.append([*words_lines(words, theme, space), *words_lines(shown.below, theme, space)])
    tallest = max(map(len, titles))
    blocks = []
    for title, block in zip(titles, drawn, strict=True):
        lines = (*title, *([] for _ in range(tallest - len(title))), *block.lines)
        blocks.append(Block(lines, widest(lines)))
    return flow(blocks, max_width, _GAP)


def _heatmaps(
    part: Maps, axes: Sequence[Axes], theme: Theme, max_width: int, lines: int
) -> list[Block]:
    return [
        heatmap(
            shown.weights, labels, theme, max_width, part.values, lines=lines, limit=shown.limit
        )
        for shown, labels in zip(part.maps, axes, strict=True)
    ]


def _map_room(part: Maps, axes: Sequence[Axes], theme: Theme, width: int) -> int:
    lines = part.lines or MOST_LINES

    def worth(max_width: int) -> list[tuple[int, ...]]:
        return [quality(labels, theme, max_width, part.values, lines) for labels in axes]

    for across in range(min(len(axes), _MOST_BESIDE), 1, -1):
        room = (width + _GAP) // across - _GAP
        if worth(room) == worth(width):
            return room
    if sum(len(labels.queries) for labels in axes) <= (part.lines or math.inf):
        return width
    shown = [labels[:2] for labels in worth(width)]
    rooms = [(width + _GAP) // across - _GAP for across in range(2, len(axes) + 1)]
    rooms = [room for room in rooms if [labels[:2] for labels in worth(room)] == shown]

    def tall(room: int) -> int:
        """Return how many lines all maps of this width take, with their titles."""
        across = (width + _GAP) // (room + _GAP)
        drawn = _heatmaps(part, axes, theme, room, part.lines)
        rows = [drawn[start : start + across] for start in range(0, len(drawn), across)]
        return sum(max(len(block.lines) for block in row) + _TITLE_LINES for row in rows)

    # Shorter headers, or two queries a line, are better than a map that is cut off.
    fits = (room for room in rooms if part.lines and tall(room) <= part.lines)
    return next(fits, (rooms or [width])[0])


def _small(part: Maps, size: tuple[int, int], theme: Theme, max_width: int) -> Block:
    """Draw small maps of a size (lines, characters) in rows with an empty line between rows."""
    lines, columns = size
    across = max((max_width + _SMALL_GAP) // (columns + _SMALL_GAP), 1)
    if part.across:
        across = math.ceil(part.across / math.ceil(part.across / across))
    shown = part.maps[: across * part.rows] if part.rows else part.maps
    blocks = []
    for map_ in shown:
        drawn = small_map(map_.weights, lines, columns, map_.causal, theme, map_.limit)
        name = words_lines(map_.words or [(map_.name, True)], theme, columns)
        caption = words_lines(map_.below, theme, columns)
        blocks.append(Block((*name, *drawn.lines, *caption), max(drawn.width, columns)))
    rows = [blocks[start : start + across] for start in range(0, len(blocks), across)]
    return stack(beside(row, _SMALL_GAP) for row in rows)
