"""The colour bar of every attention map, for pages that are not documents yet."""

from __future__ import annotations

from attnviz.draw.document import WEIGHTS
from attnviz.draw.drawing import Drawing
from attnviz.draw.map_figure import scale_figure

__all__ = ["legend_drawing"]


def legend_drawing() -> Drawing:
    """A colour bar on the scale of all maps, the square root of the weight."""
    return scale_figure(WEIGHTS)
