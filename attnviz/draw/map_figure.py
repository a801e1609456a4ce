"""Draws maps as figures: with tokens on both axes, as the text of one query, or on a picture."""

from __future__ import annotations

import math
import textwrap
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.coloured_text import TextPiece, extremes, pieces_of, rows_of, tint_of
from attnviz.draw.document import Map, Picture, Pictures, Scale, Tint, Words
from attnviz.draw.drawing import (
    Cells,
    Drawing,
    Image,
    Item,
    Label,
    Stroke,
    Style,
    Tip,
    flow,
    tinted,
)
from attnviz.draw.labels import cut, numbered, token_label, token_labels, visible, width
from attnviz.draw.maps import MOST_LINES, cell_steps, pooling
from attnviz.draw.numbers import NumberScale
from attnviz.draw.palette import DIVERGING
from attnviz.draw.picture import SMALL, drawn_pixels, picture_size, picture_steps
from attnviz.draw.provenance import share
from attnviz.draw.regions import region_marks, runs_of
from attnviz.draw.svg import data_uri, picture_png, safe, svg_element
from attnviz.draw.theme import Theme
from attnviz.records import Bools, Floats, Tokens

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
    weights: Floats, steps: NDArray[np.intp], frame: _Frame, limit: float
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


def _tips(shown: Map, weights: Floats, frame: _Frame) -> Iterator[Item]:
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


# Pictures with the weights of their patches ---------------------------------------------------

_CHARACTER, _WORDS_LINE = 6.6, 16.0
_LEAST_WORDS, _ROOM, _PICTURES_GAP = 172.0, 1000.0, 14.0
_LIGHT, _DARK, _OWN = "#ffffff", "#111111", "#2ea8e6"
_TIPPED = 2500  # the most patches that have a tip


def picture_figures(part: Pictures) -> list[Drawing]:
    """Return a drawing of each picture under its words, or one of all pictures if they are small.

    Their weights are cells that let the picture through.
    """
    least = SMALL[0] if part.small else _LEAST_WORDS
    sizes = [picture_size(shown.pixels, small=part.small) for shown in part.pictures]
    letters = [int(max(0 if part.small else wide, least) / _CHARACTER) for wide, _ in sizes]
    titles = [*map(_titled, part.pictures, letters)]
    top = max((len(title) for title in titles), default=0) * _WORDS_LINE  # where all pictures begin
    top += 6 * bool(top)
    drawings = []
    for shown, (wide, high), most, title in zip(part.pictures, sizes, letters, titles, strict=True):
        below = [*_written(shown.below, "faint", most, top + high + 2)]
        image = Image(0, 0, wide, high, drawn_pixels(shown.pixels, (wide, high)), shown.alternative)
        above = overlay(shown, (wide, high), tips=not part.small)
        inner = Drawing(shown.alternative, wide, high, (image, *above))
        name = title[0].content if part.small and title else shown.alternative or "picture"
        across, down = max(wide, _CHARACTER * most), top + high + len(below) * _WORDS_LINE + 6
        drawings.append(Drawing(name, across, down, (*title, *below), ((0.0, top, inner),)))
    if part.small and drawings:
        names = ", ".join(drawing.name for drawing in drawings)
        return [flow(names, drawings, _ROOM, _PICTURES_GAP)]
    return drawings


def _titled(shown: Picture, letters: int) -> list[Label]:
    title = [*_written(shown.words[:1], "name", letters, 0.0)]
    return [*title, *_written(shown.words[1:], "faint", letters, len(title) * _WORDS_LINE)]


def _written(words: Words, style: Style, letters: int, y: float) -> Iterator[Label]:
    """Yield words below each other from y on, in lines of a number of letters."""
    for line in textwrap.wrap(visible(" · ".join(text for text, _ in words)), letters):
        y += _WORDS_LINE
        yield Label(0, y - 3, line, style)


def overlay(shown: Picture, size: tuple[float, float], *, tips: bool) -> Iterator[Item]:
    """Yield what lies over a picture: its weights, the contour, the query's own patch and tips.

    size: the width and the height of the picture in pixels.
    """
    if shown.weights is None:
        return
    wide, high = size
    rows, columns = shown.weights.shape
    left, right = (side * wide for side in shown.box[::2])
    top, bottom = (side * high for side in shown.box[1::2])
    across, down = (right - left) / columns, (bottom - top) / rows
    steps = picture_steps(shown, shown.weights)
    yield Cells(left, top, right - left, bottom - top, steps, veil=True)
    none = np.full((1, 1), -1)
    for edge in (
        (0.0, 0.0, wide, top),
        (0.0, bottom, wide, high - bottom),
        (0.0, top, left, bottom - top),
        (right, top, wide - right, bottom - top),
    ):
        if min(edge[2:]) > 0:
            yield Cells(*edge, none, veil=True)
    for path in outlines(shown.weights >= shown.contour):
        points = [(left + x * across, top + y * down) for x, y in path]
        yield Stroke(points, _LIGHT)
        yield Stroke(points, _DARK, dashed=True)  # seen on light and on dark ground
    if shown.mark is not None:
        y, x = top + shown.mark[0] * down, left + shown.mark[1] * across
        corners = [(x, y), (x + across, y), (x + across, y + down), (x, y + down), (x, y)]
        yield Stroke(corners, _OWN)
    if tips and rows * columns <= _TIPPED:
        for (row, column), weight in np.ndenumerate(shown.weights):
            if weight == weight:
                cell = left + column * across, top + row * down, across, down
                yield Tip(*cell, f"{row},{column}: {weight:.4g}")


def outlines(mask: Bools) -> Iterator[list[tuple[int, int]]]:
    """Yield the closed lines round the cells of a mask (row, column), as corners (x, y)."""
    wide = np.pad(mask, 1)
    ends: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for y, x in np.argwhere(mask).tolist():  # clockwise round each cell
        corners = (x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)
        beside = wide[y, x + 1], wide[y + 1, x + 2], wide[y + 2, x + 1], wide[y + 1, x]
        for side, inside in enumerate(beside):
            if not inside:
                ends[corners[side]].append(corners[(side + 1) % 4])
    while ends:
        path = [next(iter(ends))]
        while len(path) == 1 or path[-1] != path[0]:
            left = ends[path[-1]]
            path.append(left.pop())
            if not left:
                del ends[path[-2]]
        turns = zip(path[:-2], path[1:-1], path[2:], strict=True)
        bends = (at for (x, y), at, after in turns if x != after[0] and y != after[1])
        yield [path[0], *bends, path[0]]


_SHOWN = (("100", "strong"), ("50", "faint"), ("0", "hidden"))
"""How strongly weights are drawn: the values that ``document.css`` knows, and their names."""


def pictures_element(part: Pictures, palette: str) -> Iterator[str]:
    """Yield pictures that are not small with their words, and a choice how weights are drawn."""
    if part.scale is not None:
        scale = svg_element(scale_figure(part.scale), palette)
        yield f'<div class="scroll" tabindex="0">{scale}</div>'
    yield '<div class="pictures">'
    if any(shown.weights is not None for shown in part.pictures):
        words = "".join(shown.alternative for shown in part.pictures) + str(part.title)
        name = f"veil-{zlib.crc32(words.encode('utf-8', 'replace')):x}"
        yield "<fieldset><legend>Weights</legend>"
        for value, words in _SHOWN:
            checked = ' checked="checked"' * (value == _SHOWN[0][0])
            field = f'<input type="radio" name="{name}" value="{value}"{checked}/>'
            yield f"<label>{field} {words}</label>"
        yield "</fieldset>"
    yield '<div class="maps">'
    for shown in part.pictures:
        yield from _pictured(shown, palette)
    yield "</div></div>"


def _pictured(shown: Picture, palette: str) -> Iterator[str]:
    wide, high = size = picture_size(shown.pixels)
    address = data_uri(picture_png(drawn_pixels(shown.pixels, size)))
    sides = f'width="{wide}" height="{high}"'
    yield f'<figure style="width:{max(wide, 180)}px"><div class="picture">'
    yield f'<img alt="{safe(shown.alternative)}" src="{address}" {sides}/>'
    if shown.weights is not None:
        above = Drawing("weights", wide, high, tuple(overlay(shown, size, tips=True)))
        yield f'<div aria-hidden="true">{svg_element(above, palette)}</div>'
    title, *remarks = shown.words or [("", False)]
    rest = safe(" · ".join(text for text, _ in remarks))
    below = safe(" · ".join(text for text, _ in shown.below))
    lines = filter(None, (f"<b>{safe(title[0])}</b>" * bool(title[0]), rest, below))
    yield f"</div><figcaption>{'<br/>'.join(lines)}</figcaption></figure>"


def picture_panes(tokens: Tokens) -> list[dict[str, Any]]:
    """Return the pictures of the keys as an interactive page has them, one for each grid."""
    layout, panes = tokens.layout, list[dict[str, Any]]()
    if layout is None or not layout.pictures:
        return panes
    for grid in layout.grids:
        whole = layout.pictures[grid.picture]
        pixels = drawn_pixels(whole, size := picture_size(whole))
        box = [round(float(side), 6) for side in grid.box]
        about = {"name": visible(grid.name), "rows": grid.rows, "columns": grid.columns}
        image = data_uri(picture_png(pixels))
        panes.append({**about, "wide": size[0], "box": box, "image": image})
    return panes
