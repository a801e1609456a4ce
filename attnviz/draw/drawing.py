"""A figure as a plan: cells, labels and tips at their places in pixels, in no format yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Anchor", "Cells", "Drawing", "Item", "Label", "Style", "Tip", "flow"]

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
    """

    x: float
    y: float
    content: str
    style: Style
    anchor: Anchor = "start"
    turn: float = 0
    ink: str | None = None


@dataclass(frozen=True)
class Tip:
    """A text that appears when the pointer rests on a rectangle."""

    x: float
    y: float
    width: float
    height: float
    content: str


Item = Cells | Label | Tip


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
    """Drawings side by side, a new row where ``room`` pixels are full."""
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
