"""``--save FILE.png`` and ``FILE.pdf``: the annotated heatmaps that textbooks print.

Drawn with matplotlib's objects alone: pyplot would keep global state and choose a window system.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from attnviz.errors import LoadError
from attnviz.records import HeadScores, HeadsReport
from attnviz.render.export.legend_figure import TICKS, tick_text
from attnviz.render.export.plot_fonts import Pen
from attnviz.render.export.plot_layout import (
    BAR,
    LABEL_POINTS,
    MARGIN,
    PANEL_TITLE,
    VALUES,
    Layout,
    resolution,
)
from attnviz.render.export.words import (
    axis_labels,
    cut,
    head_name,
    head_words,
    mapped_heads,
    run_lines,
    text_lines,
)
from attnviz.render.facts import share
from attnviz.render.maps import cell_steps
from attnviz.render.palette import colour_table, contrasting, to_hex

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["matplotlib_defaults", "require_matplotlib", "write_heads_plot"]

_INK = "#1f2328"
_FAINT = "#667080"
_FRAME = "#d0d5dc"
_BLANK = (238, 240, 243)
_TITLE_POINTS = 13
_SMALL_POINTS = 7.5
_LINE = 0.16
_BAR_WIDTH = 0.16
_BAR_HEIGHT = 4.0


def require_matplotlib() -> None:
    """LoadError where the optional extra is not installed; nothing is imported."""
    if importlib.util.find_spec("matplotlib") is None:
        raise LoadError(
            "PNG and PDF are drawn by matplotlib, which is not installed: "
            "pip install 'attnviz[plot]', or save as .svg or .html"
        )


@contextmanager
def matplotlib_defaults() -> Iterator[None]:
    """matplotlib as it comes, whatever a matplotlibrc or MPLBACKEND says; LoadError without it.

    A reader's own settings may draw grids over the cells; no window is opened here, so that a
    backend that is none does no harm.
    """
    require_matplotlib()
    matplotlib = (
        _without_backend() if "matplotlib" not in sys.modules else sys.modules["matplotlib"]
    )
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


def _cells(axes: Axes, weights: NDArray[np.floating], causal: bool, palette: str, pen: Pen) -> None:
    """The coloured cells, and in each its value where there is room."""
    rows, columns = weights.shape
    steps = cell_steps(np.nan_to_num(weights), rows, columns, causal)
    steps[~np.isfinite(weights)] = -1
    table = colour_table(palette)
    colours = np.array([*table, _BLANK], dtype=np.uint8)  # the last is also number -1
    axes.imshow(colours[steps], interpolation="nearest", aspect="auto", origin="upper")
    if max(rows, columns) > VALUES:
        return
    for row, column in zip(*np.nonzero(steps >= 0), strict=True):
        ink = to_hex(contrasting(table[steps[row, column]]))
        look = pen.style(_SMALL_POINTS, ha="center", va="center", color=ink)
        axes.text(column, row, share(float(weights[row, column])), **look)


def _label_axes(axes: Axes, layout: Layout, pen: Pen) -> None:
    """Tokens on both axes, keys above the map."""
    turned: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "bottom"}
    if layout.slanted:
        turned = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"}
    looks = pen.style(LABEL_POINTS, **turned), pen.style(LABEL_POINTS)
    for axis, labels, look in zip(
        (axes.xaxis, axes.yaxis), (layout.keys, layout.queries), looks, strict=True
    ):
        axis.set_ticks(range(0, len(labels), layout.every))
        axis.set_ticklabels(labels[:: layout.every], **look)
    axes.tick_params(length=0, pad=3, labelcolor=_INK)
    axes.tick_params(axis="x", top=False, labeltop=True, bottom=False, labelbottom=False)
    for spine in axes.spines.values():
        spine.set(color=_FRAME, linewidth=0.6)


def _name_panel(
    axes: Axes, report: HeadsReport, scores: HeadScores, layout: Layout, pen: Pen
) -> None:
    """The head's name and scores above the key labels."""
    for content, up, look in (
        (head_name(report, scores), 0.24, pen.style(12, fontweight="bold", color=_INK)),
        (head_words(scores), 0.06, pen.style(8, color=_FAINT)),
    ):
        offset = (-layout.left * 72, (layout.top + up) * 72)
        axes.annotate(content, (0, 1), offset, "axes fraction", "offset points", **look)


def _bar(figure: Figure, layout: Layout, palette: str, pen: Pen) -> None:
    """The colour bar at the right, weights where their square root puts them."""
    across, down = layout.page
    height = min(layout.map_size[1], _BAR_HEIGHT)
    bottom = down - layout.heading - PANEL_TITLE - layout.top - height
    left = across - BAR + 0.2
    axes = figure.add_axes((left / across, bottom / down, _BAR_WIDTH / across, height / down))
    table = np.array(colour_table(palette), dtype=np.uint8)
    axes.imshow(table[:, None, :], aspect="auto", origin="lower", extent=(0, 1, 0, 1))
    axes.set_xticks([])
    axes.yaxis.tick_right()
    axes.set_yticks([tick**0.5 for tick in TICKS])
    axes.set_yticklabels([tick_text(tick) for tick in TICKS], **pen.style(8))
    axes.tick_params(length=2, color=_FAINT, labelcolor=_INK)
    axes.set_title("weight\n(root scale)", **pen.style(7, color=_FAINT))
    for spine in axes.spines.values():
        spine.set_visible(False)


def _heading_lines(
    report: HeadsReport, text: str, target: str | None, layout: Layout, pen: Pen
) -> list[str]:
    """What was read, cut to a line, then provenance and notes, broken into lines."""
    inches = layout.page[0] - 2 * MARGIN
    read = pen.text(" | ".join(text_lines(text, target)))
    lines = [cut(read, int(inches / (0.7 * _TITLE_POINTS / 72)))]
    facts = run_lines(report)
    if layout.every > 1:
        facts.append(f"1 token in {layout.every} is named.")
    for fact in facts:
        lines += textwrap.wrap(pen.text(fact), int(inches / (0.6 * _SMALL_POINTS / 72)))
    return lines


def _write_heading(figure: Figure, lines: list[str], layout: Layout, pen: Pen) -> None:
    across, down = layout.page
    for place, line in enumerate(lines):
        look = pen.style(_SMALL_POINTS, color=_FAINT)
        if place == 0:
            look = pen.style(_TITLE_POINTS, fontweight="bold", color=_INK)
        figure.text(MARGIN / across, 1 - (0.32 + place * _LINE) / down, line, **look)


def _figure(report: HeadsReport, text: str, target: str | None, palette: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    record, heads = report.record, mapped_heads(report)
    pen = Pen.for_texts(
        [text, target or "", *run_lines(report), *record.queries.texts, *record.keys.texts]
    )
    queries, keys = (
        [cut(pen.text(label), 16) for label in axis_labels(tokens)]
        for tokens in (record.queries, record.keys)
    )
    layout = Layout(queries, keys, len(heads))
    lines = _heading_lines(report, text, target, layout, pen)
    layout = replace(layout, heading=0.42 + len(lines) * _LINE)
    figure = Figure(figsize=layout.page, dpi=resolution(layout), facecolor="white")
    FigureCanvasAgg(figure)
    for place, scores in enumerate(heads):
        axes = figure.add_axes(layout.box(place))
        weights = report.weights(scores.layer, scores.head)
        _cells(axes, weights, record.causal, palette, pen)
        _label_axes(axes, layout, pen)
        _name_panel(axes, report, scores, layout, pen)
    _bar(figure, layout, palette, pen)
    _write_heading(figure, lines, layout, pen)
    return figure


def write_heads_plot(
    report: HeadsReport,
    text: str,
    target: str | None,
    palette: str,
    stream: BinaryIO,
    form: Literal["png", "pdf"],
) -> None:
    """Write a panel a head, for the chosen heads or else the most telling ones.

    Values stand in the cells up to 20 tokens; the same report gives the same bytes. LoadError
    without matplotlib; UsageError where the heads are too many for one picture.
    """
    undated = {"CreationDate": None} if form == "pdf" else {"Software": "attnviz"}
    with matplotlib_defaults():
        figure = _figure(report, text, target, palette)
        figure.savefig(stream, format=form, dpi=figure.dpi, metadata=undated)
