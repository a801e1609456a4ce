"""A rectangle of braille dots, two by four to a character, that curves are drawn on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import Line, without_trailing_blanks

__all__ = ["DOTS_ACROSS", "DOTS_DOWN", "Canvas", "Points"]

Points = Sequence[tuple[float, float]]
"""(place on the axis, value), the places rising."""

DOTS_ACROSS, DOTS_DOWN = 2, 4
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Of the dots in a braille character, by column and row (Unicode's chapter on braille)."""

_FIRST = 0x2800


class Canvas:
    """Glyphs and their styles over two linear axes.

    across: the ends of the horizontal axis, left first; up: of the vertical one, low first. What
    lies outside is drawn at the edge.
    """

    def __init__(
        self, width: int, rows: int, across: tuple[float, float], up: tuple[float, float]
    ) -> None:
        self.width, self.rows = width, rows
        self._across, self._up = across, up
        self._glyphs = [[" "] * width for _ in range(rows)]
        self._styles: list[list[Style | None]] = [[None] * width for _ in range(rows)]

    def column(self, place: float, parts: int = 1) -> int:
        """Of a place on the axis, counted in the ``parts`` of a column."""
        return _index(place, self._across, self.width * parts)

    def row(self, value: float, parts: int = 1) -> int:
        """Of a value, from the top, counted in the ``parts`` of a row."""
        return self.rows * parts - 1 - _index(value, self._up, self.rows * parts)

    def put(self, column: int, row: int, glyph: str, style: Style | None) -> None:
        """One character in place of what was there."""
        self._glyphs[row][column], self._styles[row][column] = glyph, style

    def line(self, points: Points, style: Style | None, glyph: str = "") -> None:
        """A curve through the points, in dots of braille, or in ``glyph`` where one is given.

        Where several points share a column their mean is drawn.
        """
        wide, high = (1, 1) if glyph else (DOTS_ACROSS, DOTS_DOWN)
        before: int | None = None
        for column, value in _by_column(points, self, wide):
            row = self.row(value, high)
            first = row if before is None or before == row else before + (1 if row > before else -1)
            for passed in range(min(first, row), max(first, row) + 1):
                if glyph:
                    self.put(column, passed, glyph, style)
                else:
                    self._dot(column, passed, style)
            before = row

    def _dot(self, column: int, row: int, style: Style | None) -> None:
        x, y = column // DOTS_ACROSS, row // DOTS_DOWN
        there = ord(self._glyphs[y][x]) - _FIRST
        bits = there if 0 <= there < 256 else 0
        bit = _BITS[column % DOTS_ACROSS][row % DOTS_DOWN]
        self.put(x, y, chr(_FIRST | bits | bit), style)

    def lines(self) -> list[Line]:
        """The rows as segments, without the blanks at their ends."""
        found = []
        for glyphs, styles in zip(self._glyphs, self._styles, strict=True):
            line: Line = []
            for glyph, style in zip(glyphs, styles, strict=True):
                if line and line[-1].style == style:
                    line[-1] = Segment(line[-1].text + glyph, style)
                else:
                    line.append(Segment(glyph, style))
            found.append(without_trailing_blanks(line))
        return found


def _index(value: float, ends: tuple[float, float], count: int) -> int:
    share = (value - ends[0]) / (ends[1] - ends[0])
    return min(max(math.floor(share * count), 0), count - 1)


def _by_column(points: Points, canvas: Canvas, parts: int) -> list[tuple[int, float]]:
    """The value at each column from the first point to the last; straight lines fill gaps."""
    found: dict[int, list[float]] = {}
    for place, value in points:
        found.setdefault(canvas.column(place, parts), []).append(value)
    means = [(column, sum(values) / len(values)) for column, values in found.items()]
    drawn = means[:1]
    for column, value in means[1:]:
        left, start = drawn[-1]
        steps = column - left
        drawn += [
            (left + step, start + (value - start) * step / steps) for step in range(1, steps + 1)
        ]
    return drawn
