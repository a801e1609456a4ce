"""The colour bar of every figure, with the weights where they fall on it."""

from __future__ import annotations

import numpy as np

from attnviz.draw.drawing import Cells, Drawing, Item, Label
from attnviz.draw.palette import STEPS
from attnviz.draw.provenance import share

__all__ = ["TICKS", "legend_drawing", "tick_text"]

TICKS = (0.0, 0.05, 0.25, 0.5, 1.0)
"""The weights that a colour bar names."""

_LENGTH = 256
_HEIGHT = 12


def tick_text(weight: float) -> str:
    """A tick's weight, such as ``.25``."""
    return share(weight) if 0 < weight < 1 else f"{weight:.0f}"


def legend_drawing() -> Drawing:
    """A colour bar on the scale of all maps, the square root of the weight."""
    bar = np.arange(0, STEPS, 2)[None, :]
    items: list[Item] = [
        Label(0, 22, "weight", "faint"),
        Cells(48, 12, _LENGTH, _HEIGHT, bar),
        Label(48 + _LENGTH + 16, 22, "colour: square root of the weight", "faint"),
    ]
    items += [
        Label(48 + _LENGTH * weight**0.5, 38, tick_text(weight), "faint", "middle")
        for weight in TICKS
    ]
    return Drawing("colour scale", 48 + _LENGTH + 210, 42, tuple(items))
