"""Where the panels of a printed figure stand, in inches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnviz.errors import UsageError
from attnviz.render.labels import width

__all__ = [
    "BAR",
    "DPI",
    "LABEL_POINTS",
    "MARGIN",
    "PANEL_TITLE",
    "VALUES",
    "Layout",
    "resolution",
]

DPI = 150
LABEL_POINTS = 9
MARGIN = 0.2
PANEL_TITLE = 0.55
BAR = 0.9
VALUES = 20
"""Up to so many tokens a cell has room for its value."""

_POINT = 1 / 72
_LETTER = 0.62 * LABEL_POINTS * _POINT  # what a terminal cell of a label takes
_GAP = 0.3
_WIDE_PAGE = 16
_NARROW_PAGE = 6.5
_LARGE_MAP = 9
_CELL = 0.4
_LEAST_SLANTED = 0.22
_MANY = 16
_MOST_PIXELS = 80_000_000
_LONGEST_SIDE = 30_000  # pixels; matplotlib draws no side above 65,535


def _longest(labels: Sequence[str]) -> float:
    return max(map(width, labels), default=0) * _LETTER


@dataclass(frozen=True)
class Layout:
    """A page of equal panels, a map each.

    queries, keys: the labels of the axes.
    panels: how many maps.
    heading: the height of what stands above them.
    """

    queries: Sequence[str]
    keys: Sequence[str]
    panels: int
    heading: float = 0.0

    @property
    def cell(self) -> float:
        """The side of a cell, a whole number of pixels."""
        tokens = max(len(self.queries), len(self.keys))
        wanted = _CELL if tokens <= VALUES else min(_CELL, _LARGE_MAP / tokens)
        return max(round(wanted * DPI), 1) / DPI

    @property
    def every(self) -> int:
        """How many cells one axis label stands for."""
        return math.ceil(1.25 * LABEL_POINTS * _POINT / self.cell)

    @property
    def slanted(self) -> bool:
        """Whether key labels are far enough apart to lean; else they stand upright."""
        return self.cell >= _LEAST_SLANTED

    @property
    def left(self) -> float:
        """The room of the query labels."""
        return _longest(self.queries) + 0.12

    @property
    def top(self) -> float:
        """The room of the key labels."""
        return _longest(self.keys) * (0.75 if self.slanted else 1) + 0.15

    @property
    def map_size(self) -> tuple[float, float]:
        """Width and height of the cells of one map."""
        return len(self.keys) * self.cell, len(self.queries) * self.cell

    @property
    def panel(self) -> tuple[float, float]:
        """Width and height of a map with its labels and title."""
        across, down = self.map_size
        overhang = self.top * 0.7 if self.slanted else MARGIN
        return max(self.left + across + overhang, 3.2), PANEL_TITLE + self.top + down

    @property
    def columns(self) -> int:
        """Panels side by side."""
        fitting = max(1, round(_WIDE_PAGE / self.panel[0]))
        if self.panels > _MANY:
            fitting = max(fitting, math.ceil(math.sqrt(self.panels)))
        return min(fitting, self.panels)

    @property
    def page(self) -> tuple[float, float]:
        """Width and height of everything."""
        across, down = self.panel
        rows = math.ceil(self.panels / self.columns)
        wide = self.columns * (across + _GAP) + BAR
        return max(wide, _NARROW_PAGE), self.heading + rows * (down + _GAP)

    def box(self, place: int) -> tuple[float, float, float, float]:
        """Left, bottom, width and height of a map's cells as shares of the page."""
        row, column = divmod(place, self.columns)
        across, down = self.page
        wide, high = self.map_size
        x = MARGIN + column * (self.panel[0] + _GAP) + self.left
        y = down - self.heading - row * (self.panel[1] + _GAP) - self.panel[1]
        return x / across, y / down, wide / across, high / down


def resolution(layout: Layout) -> float:
    """Dots per inch, fewer where the page would not fit in memory.

    UsageError where cells would be smaller than a dot.
    """
    across, down = layout.page
    fitting = math.sqrt(_MOST_PIXELS / (across * down)), _LONGEST_SIDE / max(across, down)
    dots = min(DPI, *fitting)
    if dots * layout.cell < 0.99:
        raise UsageError(
            f"{layout.panels} heads over {len(layout.queries)} tokens do not fit one picture: "
            "choose fewer with --head, or save as .svg, .html or .npz"
        )
    return dots
