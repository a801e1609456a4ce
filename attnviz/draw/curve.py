"""Learning curves in a terminal: losses over tokens, one line or many, with axes and a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import DIM, Block, Line, trimmed
from attnviz.draw.canvas import Canvas, Points
from attnviz.draw.labels import at_blanks, visible, width
from attnviz.draw.palette import colour_table
from attnviz.draw.prose import wrapped
from attnviz.draw.theme import Theme
from attnviz.draw.ticks import round_ticks, short_number

__all__ = ["Curve", "Mark", "curve_plot"]

_ROWS = 12
_WIDEST = 96
_LEAST = 8
_BRIGHTEST, _DARKEST = 235, 120
"""Steps of the palette between which the curves' colours lie; darker ones vanish on black."""

_SIGNS = "●○◆◇▲△■□"
_ASCII_SIGNS = "o+x*#@%&"
_BETWEEN_SIGNS = 9
"""Columns between two signs of a line that no colour tells from the others."""


@dataclass(frozen=True)
class Curve:
    """A curve of a plot.

    name: for the legend; safe or not, it is made so.
    points: (place on the axis, value), the places rising, at least one; none infinite or NaN.
    marked: only its points are drawn, as signs, not a line through them.
    """

    name: str
    points: Points
    marked: bool = False


@dataclass(frozen=True)
class Mark:
    """A place on the axis where something begins. name: what, in the legend."""

    at: float
    name: str


def curve_plot(
    curves: Sequence[Curve],
    theme: Theme,
    room: int,
    *,
    title: Sequence[tuple[str, bool]] = (("Loss", True), ("nats per token", False)),
    across: str = "tokens",
    marks: Sequence[Mark] = (),
    rows: int = _ROWS,
) -> Block:
    """Curves on one canvas in ``room`` columns, told apart by colour or, without, by signs.

    title: parts (text, bold) above. across: the unit of the horizontal axis, which starts at 0.
    marks: vertical lines. rows: of the canvas. Later curves lie above earlier ones.
    """
    values = [value for curve in curves for _, value in curve.points]
    end = max([place for curve in curves for place, _ in curve.points], default=0.0) or 1.0
    low, high = _range(values)
    ticks, digits = round_ticks(low, high)
    labels = [f"{tick:.{digits}f}" for tick in ticks]
    gutter = max(map(len, labels)) + 2
    canvas = Canvas(max(min(room - gutter, _WIDEST), _LEAST), rows, (0.0, end), (low, high))
    for mark in marks:
        for row in range(rows):
            canvas.put(canvas.column(mark.at), row, _wall(theme), DIM)
    pens = [_Pen.of(index, curves, theme) for index in range(len(curves))]
    for curve, pen in zip(curves, pens, strict=True):
        pen.draw(curve.points, canvas)
    at = {canvas.row(tick): label for tick, label in zip(ticks, labels, strict=True)}
    wall = "|" if theme.ascii else "▕"
    lines = [
        [Segment(at.get(row, "").rjust(gutter - 1) + wall, DIM), *line]
        for row, line in enumerate(canvas.lines())
    ]
    lines.append([Segment(_floor(canvas, end, across, gutter, room), DIM)])
    head = wrapped([(visible(text, theme.encoding), bold) for text, bold in title], room, theme)
    legend = _legend(curves, pens, marks, theme, room)
    return trimmed(Block((*head, *lines, *legend), room))


@dataclass(frozen=True)
class _Pen:
    """How one curve is drawn.

    sign: for its points or, now and then, on its line; empty where colour is enough.
    glyph: the line's own, empty for braille. line: whether there is one. offset: of its signs.
    """

    style: Style | None
    sign: str
    glyph: str
    line: bool
    offset: int

    @classmethod
    def of(cls, index: int, curves: Sequence[Curve], theme: Theme) -> _Pen:
        signs = _ASCII_SIGNS if theme.ascii else _SIGNS
        alone = sum(not curve.marked for curve in curves) == 1
        curve = curves[index]
        needed = curve.marked or not (theme.colour or alone or theme.ascii)
        place = 0 if curve.marked and alone else index
        sign = signs[place % len(signs)]
        glyph = ("." if alone else sign) if theme.ascii else ""
        style = _style(index, len(curves), theme)
        return cls(style, sign if needed else "", glyph, not curve.marked, index)

    @property
    def sample(self) -> str:
        """What stands before the name in the legend."""
        if not self.line:
            return f" {self.sign} "
        line = self.glyph or "⠒"
        return line + (self.sign or line) + line

    def draw(self, points: Points, canvas: Canvas) -> None:
        if self.line:
            canvas.line(points, self.style, self.glyph)
        if not self.sign:
            return
        taken: set[int] = set()
        for place, value in points:
            column = canvas.column(place)
            due = not self.line or (column + 2 * self.offset) % _BETWEEN_SIGNS == 0
            if due and column not in taken:
                taken.add(column)
                canvas.put(column, canvas.row(value), self.sign, self.style)


def _style(index: int, count: int, theme: Theme) -> Style | None:
    if not theme.colour:
        return None
    share = index / (count - 1) if count > 1 else 1.0
    step = round(_DARKEST + (_BRIGHTEST - _DARKEST) * share)
    return Style(color=Color.from_rgb(*colour_table(theme.palette)[step]))


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The ends of the vertical axis; not so near that noise fills it."""
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    lack = max(1e-3 * abs(high) - (high - low), 0.0)
    margin = 0.02 * (high - low)
    return low - lack / 2 - margin, high + (lack or 1e-9) / 2 + margin


def _wall(theme: Theme) -> str:
    return ":" if theme.ascii else "┊"


def _floor(canvas: Canvas, end: float, across: str, gutter: int, room: int) -> str:
    """The numbers below the canvas, the unit behind the last one that leaves room for it."""
    ticks, _ = round_ticks(0.0, end, max(canvas.width // 10, 6))
    text = ""
    unit = ""
    for tick in ticks:
        label = short_number(tick)
        start = max(gutter + canvas.column(tick) - (len(label) // 2 if tick else 0), 0)
        if start > len(text) - (not text) and start + len(label) <= room:
            text = text.ljust(start) + label
            if len(text) + 1 + len(across) <= room:
                unit = f"{text} {across}"
    return unit or text


def _legend(
    curves: Sequence[Curve],
    pens: Sequence[_Pen],
    marks: Sequence[Mark],
    theme: Theme,
    room: int,
) -> list[Line]:
    entries = [(pen.sample, pen.style, curve.name) for curve, pen in zip(curves, pens, strict=True)]
    if marks:
        names = ", ".join(f"{mark.name} from {short_number(mark.at)}" for mark in marks)
        entries.append((f" {_wall(theme)} ", DIM, f"{names} on"))
    lines: list[Line] = []
    for sample, style, name in entries:
        words = visible(name, theme.encoding)
        lead = width(sample) + 1
        first, *rest = at_blanks(words, max(room - lead, 1), "", theme.ellipsis)
        lines.append([Segment(sample, style), Segment(f" {first}")])
        lines += [[Segment(" " * lead + line)] for line in rest]
    return lines
