"""A figure as a plan, in no file format: cells, labels, lines and tips with places in pixels.

Colours of data are steps of a palette, which the format that draws the figure turns into colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.palette import Tint

Style = Literal[
    "title", "heading", "name", "text", "faint", "axis", "axis-faint", "value", "mono", "mono-bold"
]
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Rectangle:
    """A part of a drawing: its upper left corner (x, y), its width and its height, in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Cells(Rectangle):
    """A rectangle of coloured cells on a tinted background, as an item of a drawing.

    steps: (rows, columns), the colour level of each cell in a colour table; −1 leaves it blank.
    palette: of these cells, None for the drawing's own.
    veil: whether they lie over a picture, and let it through where they are weak.
    """

    steps: NDArray[np.intp]
    palette: str | None = None
    veil: bool = False


@dataclass(frozen=True, eq=False)
class Image(Rectangle):
    """A picture of coloured pixels, as an item of a drawing.

    pixels: (rows, columns, 3), from 0 to 255. content: the sentence for people who do not see it.
    """

    pixels: NDArray[np.uint8]
    content: str


@dataclass(frozen=True)
class Filled(Rectangle):
    """A rectangle of one colour, ``#rrggbb``, such as a letter's ground; an item of a drawing."""

    ink: str


@dataclass(frozen=True)
class Label:
    """One line of text, as an item of a drawing.

    x, y: the point of the baseline that ``anchor`` names, in pixels. turn: degrees clockwise around
        that point. content: any string; formats escape it.
    ink: a colour as ``#rrggbb``, None for the style's own.
    on: the colour of the cell on which it is written, in black or white; None outside cells.
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
    """A line through points, or dots at them, as an item of a drawing.

    points: (x, y) in pixels. ink: a colour as ``#rrggbb``, None for that of rules and axes. dots:
        the radius of the dots, 0 for a line. dashed: whether the line is dashed, as for limits.
    """

    points: Sequence[tuple[float, float]]
    ink: str | None = None
    dots: float = 0
    dashed: bool = False


@dataclass(frozen=True)
class Tip(Rectangle):
    """A remark that appears when the pointer rests on a rectangle of a drawing."""

    content: str


Item = Cells | Filled | Image | Label | Stroke | Tip


@dataclass(frozen=True)
class Drawing:
    """A figure: items and smaller drawings at their positions, on a background of a given size.

    name: describes the drawing for people who cannot see it, and for links to it.
    width, height: of the background, in pixels. items: what is drawn on it.
    parts: further drawings, as (x, y, drawing).
    """

    name: str
    width: float
    height: float
    items: tuple[Item, ...] = ()
    parts: tuple[tuple[float, float, Drawing], ...] = ()


def flow(name: str, drawings: Iterable[Drawing], max_width: float, gap: float) -> Drawing:
    """Put drawings side by side, and begin a new row whenever ``max_width`` pixels are full."""
    parts: list[tuple[float, float, Drawing]] = []
    x = y = height = width = 0.0
    for drawing in drawings:
        if x and x + drawing.width > max_width:
            x, y, height = 0.0, y + height + gap, 0.0
        parts.append((x, y, drawing))
        width = max(width, x + drawing.width)
        height = max(height, drawing.height)
        x += drawing.width + gap
    return Drawing(name, width, y + height, parts=tuple(parts))


def column(name: str, drawings: Iterable[Drawing], gap: float) -> Drawing:
    """Put drawings below each other."""
    return flow(name, drawings, 0.0, gap)


def tinted(x: float, y: float, width: float, height: float, tint: Tint) -> Cells:
    """Return a rectangle of one colour. x, y: its upper left corner. All sizes are in pixels."""
    return Cells(x, y, width, height, np.array([[tint.step]]), tint.palette or None)
