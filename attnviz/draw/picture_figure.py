"""Draws pictures with the weights of their patches as figures, and as elements of a page."""

from __future__ import annotations

import textwrap
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.document import Picture, Pictures, Words
from attnviz.draw.drawing import Cells, Drawing, Image, Item, Label, Stroke, Style, Tip, flow
from attnviz.draw.labels import visible
from attnviz.draw.map_figure import scale_figure
from attnviz.draw.picture import SMALL, drawn_pixels, picture_size, picture_steps
from attnviz.draw.svg import data_uri, picture_png, safe, svg_element
from attnviz.records import Tokens

_LETTER, _LINE = 6.6, 16.0
_LEAST_WORDS, _ROOM, _GAP = 172.0, 1000.0, 14.0
_LIGHT, _DARK, _OWN = "#ffffff", "#111111", "#2ea8e6"
_TIPPED = 2500  # the most patches that have a tip


def picture_figures(part: Pictures) -> list[Drawing]:
    """Return a drawing of each picture under its words, or one of all pictures if they are small.

    Their weights are cells that let the picture through.
    """
    least = SMALL[0] if part.small else _LEAST_WORDS
    sizes = [picture_size(shown.pixels, small=part.small) for shown in part.pictures]
    letters = [int(max(0 if part.small else wide, least) / _LETTER) for wide, _ in sizes]
    titles = [*map(_title, part.pictures, letters)]
    top = max((len(title) for title in titles), default=0) * _LINE  # where all pictures begin
    top += 6 * bool(top)
    drawings = []
    for shown, (wide, high), most, title in zip(part.pictures, sizes, letters, titles, strict=True):
        below = [*_written(shown.below, "faint", most, top + high + 2)]
        image = Image(0, 0, wide, high, drawn_pixels(shown.pixels, (wide, high)), shown.alternative)
        above = overlay(shown, (wide, high), tips=not part.small)
        inner = Drawing(shown.alternative, wide, high, (image, *above))
        name = title[0].content if part.small and title else shown.alternative or "picture"
        across, down = max(wide, _LETTER * most), top + high + len(below) * _LINE + 6
        drawings.append(Drawing(name, across, down, (*title, *below), ((0.0, top, inner),)))
    if part.small and drawings:
        return [flow(", ".join(drawing.name for drawing in drawings), drawings, _ROOM, _GAP)]
    return drawings


def _title(shown: Picture, letters: int) -> list[Label]:
    title = [*_written(shown.words[:1], "name", letters, 0.0)]
    return [*title, *_written(shown.words[1:], "faint", letters, len(title) * _LINE)]


def _written(words: Words, style: Style, letters: int, y: float) -> Iterator[Label]:
    """Yield words below each other from y on, in lines of a number of letters."""
    for line in textwrap.wrap(visible(" · ".join(text for text, _ in words)), letters):
        y += _LINE
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


def outlines(mask: NDArray[np.bool_]) -> Iterator[list[tuple[int, int]]]:
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
        yield from _figure(shown, palette)
    yield "</div></div>"


def _figure(shown: Picture, palette: str) -> Iterator[str]:
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
        about = {
            "name": visible(grid.name),
            "rows": grid.rows,
            "columns": grid.columns,
            "wide": size[0],
        }
        panes.append({**about, "box": box, "image": data_uri(picture_png(pixels))})
    return panes
