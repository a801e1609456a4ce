"""The pane of the map of one head, and the size of its cells.

In every function, ``theme`` has the colours and characters; ``columns`` counts characters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attnviz.draw.axes import Axes
from attnviz.draw.blocks import DIM, Block, Line, beside, widest
from attnviz.draw.document import WEIGHTS
from attnviz.draw.grid import scale_samples
from attnviz.draw.map_part import MapPart, MapPicture, map_part
from attnviz.draw.maps import Fit, Place, pooling
from attnviz.draw.palette import STEPS
from attnviz.draw.theme import Theme
from attnviz.inspect.explore import screen
from attnviz.inspect.explore.grid import heads_of
from attnviz.inspect.explore.panes import (
    BETWEEN,
    MOST_LIST,
    Pane,
    links_lines,
)
from attnviz.inspect.explore.view import SIDES, View

_BESIDE = 40
"""The fewest free columns at the right of a map in which lists are drawn."""

_LEAST_NAME = 8
"""The columns that the tokens of a map take at least."""

NEAREST = 4
"""The largest ``near`` of cells."""


class Size(NamedTuple):
    """The size of the cells of the map in explore.

    zoom: how many tokens share a cell. near: with one token per cell, 0 for the smallest cells,
        else the height of a cell in lines, which is half its width in characters.
    """

    zoom: int
    near: int = 0

    @classmethod
    def of(cls, plan: Fit) -> Size:
        """Return the size of the cells in the layout ``plan`` of a map."""
        return cls(plan.factors[0], plan.wide // 2)

    def plan(self, theme: Theme) -> Fit:
        """Return the layout of a map with cells of this size."""
        if self.near:
            return Fit(2 * self.near, False, (1, 1), self.near)
        return Fit(1, theme.half_blocks, (self.zoom, self.zoom))

    def changed(self, step: int, whole: bool) -> Size:
        """Return the next larger size (step is 1), or the next smaller one (step is −1).

        whole: whether all of the map is visible; then cells of more tokens are not offered.
        """
        zoom, near = self
        if step > 0:
            return Size((zoom + 1) // 2) if zoom > 1 else Size(1, min(near + 1, NEAREST))
        if near:
            return Size(1, near - 1)
        return self if whole else Size(zoom * 2)


def draw_map(
    part: MapPart, size: Size | None, theme: Theme, lines: int, columns: int
) -> MapPicture:
    """Return the drawn map, as much of it as fits.

    size: of the cells; None for the largest with which the whole map is visible.
    """
    theme = theme.signed if part.limit else theme
    if size is None:
        for near in range(NEAREST, 0, -1):
            plan = Size(1, near).plan(theme)
            if part.ends_on_diagonal(plan, lines, columns):
                return map_part(part, plan, theme, lines, columns)
        size = _largest(part.axes, lines - 1, columns - part.gutter(columns), theme)
    return map_part(part, size.plan(theme), theme, lines, columns)


def _largest(axes: Axes, lines: int, columns: int, theme: Theme) -> Size:
    """Return the largest cells with which the whole map fits."""
    queries, keys = len(axes.queries), len(axes.keys)
    for near in range(NEAREST, 0, -1):
        if near * queries <= lines and 2 * near * keys <= columns:
            return Size(1, near)
    down = max(lines, 1) * Size(1).plan(theme).rows
    return Size(max(math.ceil(queries / down), math.ceil(keys / max(columns, 1))))


@lru_cache(maxsize=1024)
def _darker(segment: Segment) -> Segment:
    """Return a segment of a map at half its brightness; the cursor, which is bold, stays bright."""
    style = segment.style or DIM
    if style.bold:
        return segment
    text, ground = (
        Color.from_rgb(*(part // 2 for part in colour.triplet))
        if colour and colour.triplet
        else None
        for colour in (style.color, style.bgcolor)
    )
    return Segment(segment.text, style + Style(color=text, bgcolor=ground))


class MapPane(Pane, can_focus=True):
    """The pane of the chosen head: its name and label, its map, its pattern scores.

    size_chosen: the size of cells that the user chose; None for the largest with which the whole
        map fits. drawn: the map as it was drawn last.
    """

    wheel = "move(0, {})"
    size_chosen: Size | None = None

    corner = Place(0, 0)
    drawn: MapPicture | None = None

    def lines(self, columns: int, rows: int) -> Sequence[Line]:
        view = self.view
        across = (columns + BETWEEN) // 3 - BETWEEN  # of both sides and their difference
        asked = view.other is not None or view.side != "a"
        wanted = 2 * len(view.record.keys) + _LEAST_NAME
        if not asked or not view.comparable or wanted > across:
            self.drawn, drawn = self._one(view, columns, rows, self.has_focus)
            self.corner = self.drawn.corner
            left = columns - widest(self.drawn.lines) - BETWEEN
            return self._with_lists(drawn, left, columns) if left >= _BESIDE else drawn
        blocks: list[Block] = []
        for side in SIDES:
            chosen = side == view.side
            picture, drawn = self._one(replace(view, side=side), across, rows, chosen)
            if chosen:
                self.drawn = picture._replace(left=picture.left + len(blocks) * (across + BETWEEN))
                self.corner = picture.corner
            blocks.append(Block(tuple(drawn), across))
        return beside(blocks, BETWEEN).lines

    def zoom(self, step: int) -> None:
        """Make map cells larger (step 1) or smaller (−1); with step 0 the whole map just fits."""
        if self.drawn is not None:
            size = Size.of(self.drawn.plan)
            self.size_chosen = size.changed(step, self.drawn.whole) if step else None
            self.redraw()

    def _with_lists(self, drawn: Sequence[Line], left: int, columns: int) -> Sequence[Line]:
        """Return a map with strongest links and effects at its right, if the grid has none."""
        view, rows = self.view, len(drawn) - 4
        grid = self.app.query_one("#grid").size.width
        small = heads_of(view).thumbnail(view.shown, self.look, len(drawn), grid)
        if view.written is not None or small is None:
            return drawn
        lists = [*links_lines(view, self.look, left, min(rows, MOST_LIST))]
        if view.effects is not None:
            most = min(rows - len(lists) - 1, MOST_LIST)
            lists += [[], *screen.effect_lines(view, self.look, left, most)]
        blocks = Block(tuple(drawn), columns - left), Block(([], *lists), left)
        return beside(blocks, 0).lines

    def _one(
        self, view: View, columns: int, rows: int, strong: bool
    ) -> tuple[MapPicture, Sequence[Line]]:
        """Return the map of one side, and its lines: title, map, legend and scores."""
        theme, room = self.look, rows - 2
        part = MapPart(
            weights=view.weights,
            axes=view.axes(theme.encoding),
            cursor=Place(view.query, view.key),
            corner=self.corner,
            limit=view.limit,
        )
        picture = draw_map(part, self.size_chosen, theme, room, columns)
        body = list(picture.lines[:room])
        if view.dark:
            body = [[_darker(segment) for segment in line] for line in body]
        body += [[]] * (room - len(body))
        legend = self._legend(view, picture, columns)
        if room - len(picture.lines) > 1 and Segment.get_line_length(legend) <= columns:
            body[-1] = legend
        top = screen.head_line(view, theme, columns, strong)
        return picture, [top, *body, screen.score_line(view, theme, columns)]

    def _legend(self, view: View, picture: MapPicture, columns: int) -> Line:
        """Return the line on the meaning of colours or glyphs, and how many tokens share a cell."""
        theme = self.look
        if view.limit:
            words = ["blue −, orange +"] * theme.colour + [f"full at ±{view.limit:.2g}"]
            return [Segment(theme.spell(theme.dot.join(words)), DIM)]
        samples = scale_samples(
            WEIGHTS, theme, columns, lambda share: theme.glyph(round(share * (STEPS - 1)))
        )
        line = [segment for sample in samples for segment in (*sample, Segment("  "))][:-1]
        caption = pooling(picture.plan.factors)
        return [*line, Segment("  " + theme.spell(caption), DIM)] if caption else line

    def clicked(self, column: int, line: int) -> str:
        cell = None if self.drawn is None else self.drawn.cell_at(column, line - 1)
        return "" if cell is None else f"point({cell.query}, {cell.key})"
