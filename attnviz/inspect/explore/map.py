"""The size of the cells of the map: the largest for which its pane has room, or a chosen one."""

from __future__ import annotations

import math
from typing import NamedTuple

from attnviz.draw.axes import Axes
from attnviz.draw.map_part import MapPart, MapPicture, map_part
from attnviz.draw.maps import Fit
from attnviz.draw.theme import Theme

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
        """Return the layout of a map with cells of this size.

        theme: says which characters can be drawn.
        """
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


def largest(axes: Axes, lines: int, columns: int, theme: Theme) -> Size:
    """Return the largest cells with which the whole map fits.

    axes: the labels of the queries and keys. lines, columns: the available lines and width in
        characters. theme: says which characters can be drawn.
    """
    queries, keys = len(axes.queries), len(axes.keys)
    for near in range(NEAREST, 0, -1):
        if near * queries <= lines and 2 * near * keys <= columns:
            return Size(1, near)
    down = max(lines, 1) * Size(1).plan(theme).rows
    return Size(max(math.ceil(queries / down), math.ceil(keys / max(columns, 1))))


def draw_map(
    part: MapPart, size: Size | None, theme: Theme, lines: int, columns: int
) -> MapPicture:
    """Return the drawn map, as much of it as fits.

    part: the weights and the cursor. size: of the cells; None for the largest with which the whole
        map is visible. theme: colours and characters. lines, columns: the available lines and width
        in characters.
    """
    theme = theme.signed if part.limit else theme
    if size is None:
        for near in range(NEAREST, 0, -1):
            plan = Size(1, near).plan(theme)
            if part.ends_on_diagonal(plan, lines, columns):
                return map_part(part, plan, theme, lines, columns)
        size = largest(part.axes, lines - 1, columns - part.gutter(columns), theme)
    return map_part(part, size.plan(theme), theme, lines, columns)
