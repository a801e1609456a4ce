"""A drawing as a PNG picture or a PDF page: what the SVG shows, by matplotlib's objects alone."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from attnviz.draw.drawing import Cells, Drawing, Item, Label, Stroke, Style, Tip
from attnviz.draw.palette import colour_table, contrasting, to_hex
from attnviz.draw.plot_fonts import Pen
from attnviz.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_drawing"]

_DPI = 144
_PIXELS = 96  # of a drawing to an inch
_MOST_PIXELS = 80_000_000
_BLANK = (238, 240, 243)
_INKS: dict[Style, str] = {"faint": "#667080", "axis-faint": "#8a94a3"}
_INK, _RULE = "#1f2328", "#c2c8d0"
_SIZES: dict[Style, float] = {"title": 15, "heading": 13, "value": 10}
_BOLD = {"title", "heading", "name"}


def write_drawing(drawing: Drawing, palette: str, stream: BinaryIO, form: str = "png") -> None:
    """Write the drawing on white paper, without its tips; the same drawing gives the same bytes.

    form: ``png`` or ``pdf``. UsageError where the drawing is too large for a picture.
    """
    pixels = drawing.width * drawing.height * (_DPI / _PIXELS) ** 2
    if pixels > _MOST_PIXELS:
        raise UsageError(
            f"a picture of {drawing.width:,.0f} x {drawing.height:,.0f} points is too large: "
            "choose fewer heads, or save as .svg or .html"
        )
    undated = {"CreationDate": None} if form == "pdf" else {"Software": "attnviz"}
    with _defaults():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        size = (drawing.width / _PIXELS, drawing.height / _PIXELS)
        figure = Figure(figsize=size, dpi=_DPI, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        _draw(axes, drawing, palette)
        axes.set_xlim(0, drawing.width)
        axes.set_ylim(drawing.height, 0)
        figure.savefig(stream, format=form, dpi=_DPI, metadata=undated)


@contextmanager
def _defaults() -> Iterator[None]:
    """matplotlib as it comes, whatever a matplotlibrc or MPLBACKEND says.

    A reader's own settings may draw grids over the cells; no window is opened here, so that a
    backend that is none does no harm.
    """
    matplotlib = sys.modules.get("matplotlib") or _without_backend()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


def _without_backend() -> ModuleType:
    """matplotlib imported; MPLBACKEND is heeded after it, for those who go on with pyplot."""
    named = os.environ.pop("MPLBACKEND", None)
    try:
        matplotlib = importlib.import_module("matplotlib")
    finally:
        if named is not None:
            os.environ["MPLBACKEND"] = named
    with suppress(ValueError):  # a backend that is none
        matplotlib.rcParams.update({"backend": named} if named else {})
    return matplotlib


def _placed(drawing: Drawing, x: float, y: float) -> Iterator[tuple[float, float, Item]]:
    """Every item of a drawing and its parts, each with the corner that it is counted from."""
    yield from ((x, y, item) for item in drawing.items)
    for right, down, part in drawing.parts:
        yield from _placed(part, x + right, y + down)


def _draw(axes: Axes, drawing: Drawing, palette: str) -> None:
    placed = list(_placed(drawing, 0.0, 0.0))
    pen = Pen.for_texts([item.content for _, _, item in placed if isinstance(item, Label)])
    for x, y, item in placed:
        if isinstance(item, Cells):
            _cells(axes, item, x, y, palette)
        elif isinstance(item, Label):
            _label(axes, item, x, y, pen, palette)
        elif isinstance(item, Stroke):
            _stroke(axes, item, x, y)
        else:
            assert isinstance(item, Tip)  # nothing rests a pointer on a picture


def _cells(axes: Axes, cells: Cells, x: float, y: float, palette: str) -> None:
    table = colour_table(cells.palette or palette)
    colours = np.array([*table, _BLANK], dtype=np.uint8)  # the last is also number -1
    left, top = x + cells.x, y + cells.y
    extent = (left, left + cells.width, top + cells.height, top)
    image = colours[cells.steps]
    axes.imshow(image, interpolation="nearest", aspect="auto", extent=extent, origin="upper")


def _stroke(axes: Axes, stroke: Stroke, x: float, y: float) -> None:
    across, down = zip(*((x + right, y + below) for right, below in stroke.points), strict=True)
    ink = stroke.ink or _RULE
    points = 72 / _PIXELS
    if stroke.dots:
        axes.plot(across, down, "o", color=ink, markersize=2 * stroke.dots * points, mew=0)
    else:
        wide = (1.8 if stroke.ink else 1.0) * points
        axes.plot(across, down, "--" if stroke.dashed else "-", color=ink, linewidth=wide)


def _label(axes: Axes, label: Label, x: float, y: float, pen: Pen, palette: str) -> None:
    points = _SIZES.get(label.style, 11) * 72 / _PIXELS
    ink = label.ink or _INKS.get(label.style, _INK)
    if label.on is not None:
        ink = to_hex(contrasting(colour_table(label.on.palette or palette)[label.on.step]))
    look: dict[str, Any] = {
        "color": ink,
        "ha": {"start": "left", "middle": "center", "end": "right"}[label.anchor],
        "va": "baseline",
    }
    if label.style in _BOLD:
        look["fontweight"] = "bold"
    if label.turn:
        look |= {"rotation": -label.turn, "rotation_mode": "anchor"}
    axes.text(x + label.x, y + label.y, pen.text(label.content), **pen.style(points, **look))
