"""A figure as a plan: cells, labels, lines and tips at places in pixels, in no format yet.

Colours of data are steps of a palette: the format that draws the figure knows which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.palette import Tint

Style = Literal["title", "heading", "name", "text", "faint", "axis", "axis-faint", "value"]
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Cells:
    """A map of coloured cells on a tinted ground.

    x, y: the upper left corner; width, height: of the whole map.
    steps: each cell's step in a colour table, −1 leaves it blank; shape (rows, columns).
    palette: of these cells, or None for the drawing's own.
    """

    x: float
    y: float
    width: float
    height: float
    steps: NDArray[np.intp]
    palette: str | None = None


@dataclass(frozen=True)
class Label:
    """One line of text.

    x, y: the point of the baseline that ``anchor`` says; turn: degrees clockwise around it.
    content: any text; formats escape it.
    ink: a colour as ``#rrggbb``, or None for the style's own.
    on: the colour that it is written on, where that is a cell's: it is black or white then.
    """

    x: float
    y: float
    content: str
    style: Style
    anchor: Anchor = "start"
    turn: float = 0
    ink: str | None = None
    on: Tint | None = None


@dataclass(frozen=True)
class Stroke:
    """A line through points, or dots at them.

    ink: a colour as ``#rrggbb``, or None for that of rules and axes. dots: their radius, 0 for a
    line. dashed: for a line that is a limit.
    """

    points: Sequence[tuple[float, float]]
    ink: str | None = None
    dots: float = 0
    dashed: bool = False


@dataclass(frozen=True)
class Tip:
    """A text that appears when the pointer rests on a rectangle."""

    x: float
    y: float
    width: float
    height: float
    content: str


Item = Cells | Label | Stroke | Tip


@dataclass(frozen=True)
class Drawing:
    """Items, or whole drawings at their places, on a ground of a size.

    name: what the drawing is, for those who cannot see it and for links to it.
    """

    name: str
    width: float
    height: float
    items: tuple[Item, ...] = ()
    parts: tuple[tuple[float, float, Drawing], ...] = ()


def flow(name: str, drawings: Iterable[Drawing], room: float, gap: float) -> Drawing:
    """Put drawings side by side, and begin a new row when ``room`` pixels are full."""
    parts: list[tuple[float, float, Drawing]] = []
    x = y = height = width = 0.0
    for drawing in drawings:
        if x and x + drawing.width > room:
            x, y, height = 0.0, y + height + gap, 0.0
        parts.append((x, y, drawing))
        width = max(width, x + drawing.width)
        height = max(height, drawing.height)
        x += drawing.width + gap
    return Drawing(name, width, y + height, parts=tuple(parts))


def column(name: str, drawings: Iterable[Drawing], gap: float) -> Drawing:
    """Put drawings below each other."""
    parts: list[tuple[float, float, Drawing]] = []
    y = width = 0.0
    for drawing in drawings:
        parts.append((0.0, y, drawing))
        width = max(width, drawing.width)
        y += drawing.height + gap
    return Drawing(name, width, max(y - gap, 0.0), parts=tuple(parts))


def tinted(x: float, y: float, width: float, height: float, tint: Tint) -> Cells:
    """Return a rectangle of one colour."""
    return Cells(x, y, width, height, np.array([[tint.step]]), tint.palette or None)
