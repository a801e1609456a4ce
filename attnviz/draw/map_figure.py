"""Draws one head's map in full with tokens on both axes, or the map of one query as a text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.coloured_text import TextPiece, extremes, pieces_of, rows_of, tint_of
from attnviz.draw.document import Map, Scale, Tint
from attnviz.draw.drawing import Cells, Drawing, Item, Label, Style, Tip, tinted
from attnviz.draw.labels import cut, numbered, token_label, token_labels, width
from attnviz.draw.maps import MOST_LINES, cell_steps, pooling
from attnviz.draw.numbers import NumberScale
from attnviz.draw.palette import DIVERGING
from attnviz.draw.provenance import share
from attnviz.draw.regions import region_marks, runs_of
from attnviz.draw.theme import Theme
from attnviz.records import Tokens

_LETTER = 6.7  # the width of a character in the axis font of 11 pixels
_LINE = 12  # the least distance of axis labels
_SLANT = math.sqrt(0.5)
_LEAST_SLANTED = 17  # below this distance slanted labels would touch, so they stand upright
_TITLE = 38
_CELLS = ((16, 34), (24, 26), (40, 18), (64, 14), (128, 9), (256, 5))
_LARGEST = 1200
_AXES = 64  # the room for the names of the axes in the corner of a map
_TIPPED_CELLS = 40
_STRONGEST = 5
_LONGEST_TIP = 60
_LONGEST_LABEL = 16


class _Frame(NamedTuple):
    """The upper left corner of the cells of a map, and the side of a cell, all in pixels."""

    left: float
    top: float
    cell: float

    @property
    def every(self) -> int:
        """Return how many cells share one axis label."""
        return math.ceil(_LINE / self.cell)


def _axis_labels(tokens: Tokens) -> list[str]:
    return [cut(label, _LONGEST_LABEL) for label in token_labels(tokens)]


def _longest(tokens: Tokens) -> float:
    return max(map(width, _axis_labels(tokens)), default=0) * _LETTER


def _labels(shown: Map, frame: _Frame) -> Iterator[Item]:
    """Yield the labels of the queries at the left of a map, then those of the keys above it."""
    left, top, cell = frame
    for index, label, style in _named(shown.queries, frame.every):
        yield Label(left - 6, top + (index + 0.5) * cell + 4, label, style, "end")
    turn = -45 if cell >= _LEAST_SLANTED else -90
    for index, label, style in _named(shown.keys, frame.every):
        yield Label(left + (index + 0.5) * cell + 3, top - 6, label, style, turn=turn)


def _named(tokens: Tokens, every: int) -> Iterator[tuple[int, str, Style]]:
    """Yield the index, the label and the style of each ``every``-th token."""
    labels = _axis_labels(tokens)
    for index in range(0, len(labels), every):
        yield index, labels[index], "axis-faint" if tokens.special[index] else "axis"


def _values(
    weights: NDArray[np.floating], steps: NDArray[np.intp], frame: _Frame, limit: float
) -> Iterator[Item]:
    """Yield each visible weight, written in its cell; a weight that rounds to zero is a dot."""
    scale = NumberScale(limit)
    for row, column in zip(*np.nonzero(steps >= 0), strict=True):
        value = float(weights[row, column])
        on = Tint(int(steps[row, column]), DIVERGING if limit else "")
        number = (scale.fitted(value, scale.room + 1) or "") if limit else share(value)
        text = number if any(digit in "123456789" for digit in number) else "·" if value else ""
        x, y = frame.left + (column + 0.5) * frame.cell, frame.top + (row + 0.5) * frame.cell + 3.5
        yield Label(x, y, text, "value", "middle", on=on)


def _tips(shown: Map, weights: NDArray[np.floating], frame: _Frame) -> Iterator[Item]:
    """Yield a tip for each cell or, if cells are many, for each query with its largest values."""
    (left, top, cell), keys = frame, _numbered(shown.keys)
    for row, query in enumerate(_numbered(shown.queries)):
        seen = min(row + 1, len(keys)) if shown.causal else len(keys)
        y = top + row * cell
        if max(weights.shape) <= _TIPPED_CELLS:
            for column in range(seen):
                text = f"{query} → {keys[column]}: {weights[row, column]:.4f}"
                yield Tip(left + column * cell, y, cell, cell, text)
        else:
            best = np.argsort(-np.abs(weights[row, :seen]), kind="stable")[:_STRONGEST]
            text = "\n".join(f"→ {keys[key]}: {weights[row, key]:.4f}" for key in best)
            yield Tip(left, y, seen * cell, cell, f"{query}\n{text}")


def _numbered(tokens: Tokens) -> list[str]:
    known = zip(tokens.texts, tokens.special, token_labels(tokens), strict=True)
    names = [token_label(text) if special else label for text, special, label in known]
    return [numbered(cut(name, _LONGEST_TIP), index) for index, name in enumerate(names)]


def map_figure(shown: Map, written: bool) -> Drawing:
    """Draw one map with token labels under its name and its scores, with a cell for each weight.

    written: True writes every value in its cell.
    If labels would touch, only every second (third …) is drawn, and a line below says so.
    """
    words = " · ".join(text for text, _ in (*shown.words, *shown.below) if text not in shown.name)
    queries, keys, weights, limit = shown.queries, shown.keys, shown.weights, shown.limit
    finite = np.nan_to_num(weights)
    rows, columns = weights.shape
    steps = cell_steps(finite, (1, 1), shown.causal, limit)
    steps[~np.isfinite(weights)] = -1
    most = max(rows, columns, 1)
    cell = next((pixels for tokens, pixels in _CELLS if most <= tokens), max(1, _LARGEST // most))
    left = max(_longest(queries) + 10, _AXES)
    slanted = cell >= _LEAST_SLANTED
    top = max(_TITLE + _longest(keys) * (_SLANT if slanted else 1) + 16, _TITLE + 24)
    frame = _Frame(left, top, cell)
    items: list[Item] = [
        Label(0, 14, shown.name, "title"),
        Label(0, 31, words, "faint"),
        Cells(left, top, columns * cell, rows * cell, steps, DIVERGING if limit else None),
        Label(left - 12, top - 18, "key →", "faint", "end"),
        Label(left - 12, top - 6, "query ↓", "faint", "end"),
        *_labels(shown, frame),
    ]
    items += _values(finite, steps, frame, limit) if written else ()
    items += _tips(shown, finite, frame)
    overhang = top - _TITLE if slanted else 8
    across = max(left + columns * cell + overhang, width(words) * 6.2)
    down = top + rows * cell + 2
    if keys.regions:
        items += _bands(shown, frame)
        down += _BAND + 2
    if frame.every > 1:
        down += 16
        items.append(Label(left, down - 4, f"1 token in {frame.every} is named", "faint"))
    return Drawing(shown.name, across, down, tuple(items))


_BAND = 16.0


def _bands(shown: Map, frame: _Frame) -> Iterator[Item]:
    """Yield the coloured bands and the names of a map's regions, at its left and below it."""
    (left, top, cell), queries, keys = frame, shown.queries.regions, shown.keys.regions
    marks, below = region_marks([*queries, *keys]), top + len(shown.queries) * cell + 2
    for name, places in runs_of(queries):
        if (tint := marks[name].tint) is not None:
            yield tinted(left - 5, top + places.start * cell, 4, len(places) * cell, tint)
    for name, places in runs_of(keys):
        x, across, tint = left + places.start * cell, len(places) * cell, marks[name].tint
        if tint is not None:
            yield tinted(x, below, across, _BAND - 2, tint)
        if letters := int(across // _LETTER):
            label = cut(token_label(name), letters)
            yield Label(x + 2, below + 11, label, "axis" if tint else "axis-faint", on=tint)
        yield Tip(x, below, across, _BAND, name)


_SIDE, _SMALL_GAP = 72.0, 14
_NAME_HEIGHT = _CAPTION_HEIGHT = 16


def small_map_figure(shown: Map) -> Drawing:
    """Draw one map without token labels between its name and scores; downsample a long text."""
    finite = np.nan_to_num(shown.weights)
    steps = cell_steps(finite, _factors(shown), shown.causal, shown.limit)
    queries, keys = steps.shape
    cell = _SIDE / max(queries, keys, 1)
    across, down = keys * cell, queries * cell
    words = " · ".join(text for text, _ in shown.below)
    items: tuple[Item, ...] = (
        Label(0, 11, shown.name, "name"),
        Cells(0, _NAME_HEIGHT, across, down, steps, DIVERGING if shown.limit else None),
        Label(0, _NAME_HEIGHT + down + 12, cut(words, _SMALL_GAP), "faint"),
        Tip(0, _NAME_HEIGHT, across, down, f"{shown.name} · {shown.tip or words}"),
    )
    return Drawing(shown.name, _SIDE, _NAME_HEIGHT + down + _CAPTION_HEIGHT, items)


def _factors(shown: Map) -> tuple[int, int]:
    queries, keys = shown.weights.shape
    factors = math.ceil(queries / MOST_LINES), math.ceil(keys / MOST_LINES)
    return (max(factors),) * 2 if queries == keys else factors


def pooling_words(shown: Map) -> str:
    """Return what a cell of a downsampled map means; empty if each cell is one weight."""
    return pooling(_factors(shown), shown.limit > 0)


_BAR, _THICK = 256.0, 12.0


def scale_figure(scale: Scale) -> Drawing:
    """Draw a colour bar with its ticks and its remarks."""
    half = [_LETTER * width(text) / 2 for _, text in scale.ticks] or [0.0]
    left = max(_LETTER * width(scale.words) + 10 if scale.words else 0.0, half[0])
    steps = np.rint(np.linspace(scale.first, scale.last, 128)).astype(np.intp)[None, :]
    items: list[Item] = [
        Label(0, 22, scale.words, "faint"),
        Cells(left, 12, _BAR, _THICK, steps, scale.palette or None),
        Label(left + _BAR + 16, 22, scale.after, "faint"),
    ]
    for position, text in scale.ticks:
        items.append(Label(left + _BAR * position, 38, text, "faint", "middle"))
    across = left + _BAR + max(16 + 7 * width(scale.after), half[-1])  # √ is wider than a letter
    return Drawing("colour scale", across, 42, tuple(items))


# A text coloured by one value a token ----------------------------------------------------------

_ROW, _ACROSS = 18.0, 110


def text_figure(shown: Map) -> Drawing:
    """Draw a map of one query as its keys' text in colours, with a tip of each token's value."""
    words = " · ".join(text for text, _ in (*shown.words, *shown.below) if text not in shown.name)
    items: list[Item] = [Label(0, 14, shown.name, "title")]
    regions, marks = shown.keys.regions, region_marks(shown.keys.regions)
    items += [Label(0, 31, words, "faint")] if words else []
    y = 38.0 if words else 22.0
    for row in rows_of(pieces_of(shown, Theme(), _ACROSS), _ACROSS):
        x = 0.0
        for piece in row:
            x += width(piece.gap) * _LETTER
            items += _placed(piece, shown, x, y)
            if regions and (tint := marks[regions[piece.first]].tint) is not None:
                under = x, y + _ROW - 3, width(piece.label) * _LETTER
                items += [tinted(*under, 2, tint), Tip(*under, 4, regions[piece.first])]
            x += width(piece.label) * _LETTER
        y += _ROW
    for words in map(" · ".join, extremes(shown)):
        y += 16
        items.append(Label(0, y - 2, words, "faint"))
    return Drawing(shown.name, _ACROSS * _LETTER, y + 6, tuple(items))


def _placed(piece: TextPiece, shown: Map, x: float, y: float) -> Iterator[Item]:
    across, tint = width(piece.label) * _LETTER, tint_of(piece.value, shown)
    if tint is not None:
        yield tinted(x, y, across, _ROW - 2, tint)
    known = not math.isnan(piece.value)
    yield Label(x, y + 12, piece.label, "axis" if known else "axis-faint", on=tint)
    if known:
        yield Tip(x, y, across, _ROW, f"{numbered(piece.label, piece.first)}: {piece.value:.4g}")
