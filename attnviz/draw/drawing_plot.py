"""Draws with matplotlib: a drawing as a PNG picture or PDF page, a matrix on a user's axes."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.drawing import Cells, Drawing, Filled, Image, Item, Label, Stroke, Style, Tip
from attnviz.draw.labels import visible
from attnviz.draw.palette import contrasting, full_weight, paper_table, to_hex, veils
from attnviz.errors import UnsupportedError, UsageError
from attnviz.records import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.font_manager import FontEntry

_BASE, _MONO_FONT = "DejaVu Sans", "DejaVu Sans Mono"  # these come with matplotlib
_MONO = ("mono", "mono-bold")

_PREFERRED = (
    *("Noto Sans CJK KR", "Noto Sans CJK JP", "Noto Sans CJK SC", "Apple SD Gothic Neo"),
    *("Malgun Gothic", "Hiragino Sans", "Yu Gothic", "PingFang SC", "Microsoft YaHei"),
    *("WenQuanYi Zen Hei", "NanumGothic", "Arial Unicode MS", "Noto Emoji"),
    *("Noto Sans Symbols 2", "Segoe UI Symbol", "Symbola"),
)
_CONTROL_PICTURES = 0x2400  # ``labels.visible`` shows a control character by its picture
_UNDRAWABLE = ("color emoji", "colour emoji", "lastresort", "last resort")


@functools.cache
def _characters(path: str) -> frozenset[int]:
    from matplotlib.font_manager import get_font

    return frozenset(get_font(path).get_charmap())


def _upright_fonts() -> Iterator[FontEntry]:
    """Yield a regular font of each installed family, preferred families first."""
    from matplotlib.font_manager import fontManager

    fonts: dict[str, FontEntry] = {}
    for font in fontManager.ttflist:
        plain = font.style == "normal" and font.variant == "normal"
        if plain and not any(word in font.name.lower() for word in _UNDRAWABLE):
            known = fonts.get(font.name)
            if known is None or abs(_weight(font) - 400) < abs(_weight(known) - 400):
                fonts[font.name] = font
    ranks = {name: rank for rank, name in enumerate(_PREFERRED)}
    yield from sorted(fonts.values(), key=lambda font: (ranks.get(font.name, 99), font.name))


def _weight(font: FontEntry) -> int:
    return font.weight if isinstance(font.weight, int) else 400


@dataclass(frozen=True)
class Pen:
    """Writes any string into a matplotlib picture in fonts that have its characters.

    It is never taken as a formula. families: in the order in which a character is looked up.
    missing: code points that no installed font draws; they are written as escapes.
    """

    families: list[str]
    missing: frozenset[int]

    @classmethod
    def for_texts(cls, texts: Iterable[str]) -> Pen:
        """Return a pen with the fonts that these texts need."""
        from matplotlib.font_manager import FontProperties, findfont

        base = _characters(findfont(FontProperties(family=_BASE)))
        missing = {ord(character) for text in texts for character in visible(text)} - base
        families = [_BASE]
        for font in _upright_fonts() if missing else ():
            if covered := missing & _characters(font.fname):
                families.append(font.name)
                missing -= covered
            if not missing:
                break
        return cls(families, frozenset(missing))

    def text(self, content: str) -> str:
        """Return ``content`` in characters that can be drawn."""
        controls = {_CONTROL_PICTURES + code: code for code in range(0x20)}
        escapes = {code: f"<U+{controls.get(code, code):04X}>" for code in self.missing}
        return visible(content).translate(escapes)


_DPI = 144
_PIXELS = 96  # pixels of a drawing in an inch
_MOST_PIXELS = 80_000_000
_BLANK = (238, 240, 243)
_INKS: dict[Style, str] = {"faint": "#667080", "axis-faint": "#8a94a3"}
_INK, _RULE = "#1f2328", "#c2c8d0"
_SIZES: dict[Style, float] = {
    "title": 15, "heading": 13, "value": 10, "mono": 16, "mono-bold": 16
}  # fmt: skip
_BOLD = {"title", "heading", "name", "mono-bold"}


def write_drawing(
    drawing: Drawing, palette: str, stream: BinaryIO, form: str = "png", wide: int = 0
) -> None:
    """Write the drawing on white paper, without its tips; equal drawings give equal bytes.

    form: ``png`` or ``pdf``. wide: the columns of pixels of a PNG, 0 for as many as suit a page.
    Raises UsageError if the drawing is too large for a picture.
    """
    dots = wide * _PIXELS / drawing.width if wide else _DPI
    pixels = drawing.width * drawing.height * (dots / _PIXELS) ** 2
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
        figure = Figure(figsize=size, dpi=dots, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        _draw(axes, drawing, palette)
        axes.set_xlim(0, drawing.width)
        axes.set_ylim(drawing.height, 0)
        figure.savefig(stream, format=form, dpi=dots, metadata=undated)


@contextmanager
def _defaults() -> Iterator[None]:
    """Use matplotlib's own defaults in this context, whatever the user's settings are."""
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is None:  # it is imported without MPLBACKEND, which may be invalid
        backend = os.environ.pop("MPLBACKEND", None)
        try:
            matplotlib = importlib.import_module("matplotlib")
        finally:
            if backend is not None:
                os.environ["MPLBACKEND"] = backend
        with suppress(ValueError):
            matplotlib.rcParams.update({"backend": backend} if backend else {})
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


def _placed(drawing: Drawing, x: float, y: float) -> Iterator[tuple[float, float, Item]]:
    """Yield every item of a drawing and its parts, after the corner (x, y) that it counts from."""
    yield from ((x, y, item) for item in drawing.items)
    for right, down, part in drawing.parts:
        yield from _placed(part, x + right, y + down)


def _draw(axes: Axes, drawing: Drawing, palette: str) -> None:
    placed = list(_placed(drawing, 0.0, 0.0))
    pen = Pen.for_texts([item.content for _, _, item in placed if isinstance(item, Label)])
    for x, y, item in placed:
        if isinstance(item, Label):
            _label(axes, item, x, y, pen, palette)
        elif isinstance(item, Stroke):
            _stroke(axes, item, x, y)
        elif not isinstance(item, Tip):  # a picture has no tips
            _rectangle(axes, item, x + item.x, y + item.y, palette)


def _rectangle(
    axes: Axes, item: Cells | Image | Filled, left: float, top: float, palette: str
) -> None:
    right, bottom = left + item.width, top + item.height
    if isinstance(item, Filled):
        across, down = [left, right, right, left], [top, top, bottom, bottom]
        axes.fill(across, down, color=item.ink, linewidth=0, antialiased=False)
        return
    colours: NDArray[Any]
    smooth = "nearest"
    if isinstance(item, Image):
        colours, smooth = item.pixels, "antialiased"
    elif item.veil:  # each cell lets the picture below through
        shades = np.array(veils(item.palette or palette, paper=True)) / (255, 255, 255, 1)
        colours = shades[item.steps]
    else:  # the index −1 means the last colour, too
        table = [*paper_table(item.palette or palette), _BLANK]
        colours = np.array(table, dtype=np.uint8)[item.steps]
    extent = (left, right, bottom, top)
    axes.imshow(colours, interpolation=smooth, aspect="auto", extent=extent, origin="upper")


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
        ink = to_hex(contrasting(paper_table(label.on.palette or palette)[label.on.step]))
    side = {"start": "left", "middle": "center", "end": "right"}[label.anchor]
    look: dict[str, Any] = {"color": ink, "ha": side, "va": "baseline", "fontsize": points}
    if label.style in _BOLD:
        look["fontweight"] = "bold"
    if label.turn:
        look |= {"rotation": -label.turn, "rotation_mode": "anchor"}
    mono = [_MONO_FONT] if label.style in _MONO else []
    look |= {"fontfamily": [*mono, *pen.families], "parse_math": False, "usetex": False}
    axes.text(x + label.x, y + label.y, pen.text(label.content), **look)


_NAMES = {"viridis": "viridis", "magma": "magma", "blues": "Blues", "grey": "Greys"}


def draw_matrix(
    values: Floats,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    palette: str,
    limit: float,
    signed: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw numbers (row, column) as coloured cells with their names, and return the axes.

    palette: as of reports. limit: the number with the last colour. signed: True draws from
        ``-limit`` in two colours. ax: the axes to draw on; a new figure's by default.
    Raises UnsupportedError without Matplotlib.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise UnsupportedError("plot() draws with matplotlib: pip install matplotlib") from error
    if ax is None:
        _, ax = pyplot.subplots()
    colours = "RdBu_r" if signed else _NAMES[palette.partition("@")[0]]
    limit *= 1.0 if signed else full_weight(palette)
    ax.imshow(values, cmap=colours, vmin=-limit if signed else 0.0, vmax=limit)
    ax.set_xticks(range(len(columns)), columns, rotation="vertical")
    ax.set_yticks(range(len(rows)), rows)
    ax.set_title(title)
    return ax
