"""Loss against heads left: two curves on one canvas, told apart by their glyphs and by colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import DIM, Block, Line
from attnviz.draw.labels import at_blanks
from attnviz.draw.palette import colour_table
from attnviz.draw.prose import wrapped
from attnviz.draw.theme import Theme
from attnviz.draw.ticks import round_ticks
from attnviz.prune.records import PruneReport

__all__ = ["loss_curve"]

_ROWS = 12
_WIDEST = 84
_LEAST = 8
_SHADES = {"order": 224, "random": 110}
"""Steps of the palette that the two curves have."""

Points = Sequence[tuple[float, float]]
"""(heads removed, loss), the fewest removed first."""


@dataclass(frozen=True)
class _Pen:
    """The glyphs of one curve.

    point: where it was measured.
    flat: between two points, in the upper and in the lower half of a row.
    steep: where it passes a row.
    """

    name: str
    point: str
    flat: tuple[str, str]
    steep: str


def _pens(theme: Theme) -> tuple[_Pen, _Pen]:
    if theme.ascii:
        return _Pen("order", "O", ("-", "-"), "|"), _Pen("random", "x", (".", "."), ":")
    return _Pen("order", "█", ("▀", "▄"), "█"), _Pen("random", "×", ("·", "·"), "·")


def loss_curve(report: PruneReport, theme: Theme, room: int) -> Block:
    """The loss after each removal beside that of random orders, with axes and a legend."""
    start = (0.0, report.baseline)
    order = [start, *((report.total - step.heads_left, step.loss) for step in report.steps)]
    chance = [start, *((report.total - point.heads_left, point.mean) for point in report.random)]
    order, chance = _finite(order), _finite(chance)
    losses = [loss for _, loss in (*order, *chance)]
    if report.limit is not None:
        losses.append(report.limit)
    low, high = _range(losses)
    ticks, digits = round_ticks(low, high)
    labels = [f"{tick:.{digits}f}" for tick in ticks]
    gutter = max(map(len, labels)) + 2
    width = max(min(room - gutter, _WIDEST), _LEAST)
    left = [step.heads_left for step in report.steps]
    least = min([*left, *(point.heads_left for point in report.random)])
    axes = _Axes(low, high, report.total - least, width)
    canvas = _Canvas(axes)
    if report.limit is not None:
        canvas.level(report.limit, "-" if theme.ascii else "…")
    ours, random = _pens(theme)
    if report.random:
        canvas.draw(chance, random)
    canvas.draw(order, ours)
    at = {axes.row(tick): label for tick, label in zip(ticks, labels, strict=True)}
    wall = "|" if theme.ascii else "▕"
    lines: list[Line] = []
    for row in range(_ROWS):
        lead = at.get(row, "").rjust(gutter - 1) + wall
        lines.append([Segment(lead, DIM), *canvas.line(row, theme)])
    lines.append([Segment(_floor(axes, report.total, gutter), DIM)])
    title = wrapped(_title(report), room, theme)
    return Block((*title, *lines, *_legend(report, theme, room, ours, random)), room)


def _finite(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that have a height; half precision may overflow."""
    return [(removed, loss) for removed, loss in points if math.isfinite(loss)] or [(0.0, 0.0)]


@dataclass(frozen=True)
class _Axes:
    """Where values lie on the canvas."""

    low: float
    high: float
    removed: float
    width: int

    def half_row(self, loss: float) -> int:
        """Counted from the top, two in each row."""
        share = (loss - self.low) / (self.high - self.low)
        return round((1 - min(max(share, 0.0), 1.0)) * (2 * _ROWS - 1))

    def row(self, loss: float) -> int:
        return self.half_row(loss) // 2

    def column(self, removed: float) -> int:
        return round(removed / self.removed * (self.width - 1)) if self.removed else 0


class _Canvas:
    """Glyphs and whose they are, by row and column."""

    def __init__(self, axes: _Axes) -> None:
        self._axes = axes
        self._cells = [[(" ", "")] * axes.width for _ in range(_ROWS)]

    def level(self, loss: float, glyph: str) -> None:
        """A line across the whole canvas."""
        self._cells[self._axes.row(loss)] = [(glyph, "level")] * self._axes.width

    def draw(self, points: Points, pen: _Pen) -> None:
        """A curve through ``points``; what was there before lies beneath."""
        marks = {self._axes.column(removed) for removed, _ in points}
        if len(points) * 3 > self._axes.width:
            marks = set()  # side by side they would hide the curve
        last = self._axes.column(points[-1][0])
        before: int | None = None
        for column in range(last + 1):
            half = self._axes.half_row(_between(points, column, self._axes))
            row = half // 2
            if before is not None and abs(row - before) > 1:
                for passed in range(min(row, before) + 1, max(row, before)):
                    self._cells[passed][column] = (pen.steep, pen.name)
            glyph = pen.point if column in marks else pen.flat[half % 2]
            self._cells[row][column] = (glyph, pen.name)
            before = row

    def line(self, row: int, theme: Theme) -> Line:
        """One row as segments, without the blanks at its end."""
        line: Line = []
        cells = self._cells[row]
        end = max((i + 1 for i, (glyph, _) in enumerate(cells) if glyph != " "), default=0)
        for glyph, name in cells[:end]:
            style = _style(name, theme)
            if line and line[-1].style == style:
                line[-1] = Segment(line[-1].text + glyph, style)
            else:
                line.append(Segment(glyph, style))
        return line


def _between(points: Points, column: int, axes: _Axes) -> float:
    """The loss at a column, on the straight line between its neighbours."""
    removed = column / (axes.width - 1) * axes.removed
    for (left, low), (right, high) in pairwise(points):
        if removed <= right:
            share = (removed - left) / (right - left)
            return low + (high - low) * min(max(share, 0.0), 1.0)
    return points[-1][1]


def _style(name: str, theme: Theme) -> Style | None:
    if name == "level":
        return DIM
    if not name or not theme.colour:
        return None
    return Style(color=Color.from_rgb(*colour_table(theme.palette)[_SHADES[name]]))


def _range(losses: Sequence[float]) -> tuple[float, float]:
    """The ends of the canvas; not so near that noise fills it."""
    low, high = min(losses), max(losses)
    lack = max(1e-3 * abs(high) - (high - low), 0.0)
    return low - lack / 2, high + (lack or 1e-9) / 2


def _floor(axes: _Axes, total: int, gutter: int) -> str:
    """The numbers of heads left below the canvas, as many as do not touch."""
    removed = int(axes.removed)
    end = gutter + axes.width
    cells = [" "] * end
    every = next(
        (step for step in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 100, 128, 250, 500)
         if step * (axes.width - 1) >= (len(str(total)) + 2) * removed),
        max(removed, 1),
    )  # fmt: skip
    marked = {*range(0, removed + 1, every)}
    last = max(marked)
    if removed - last < every:  # the end matters more than its neighbour
        marked = (marked - {last} if removed != last and last else marked) | {removed}
    for gone in marked:
        label = str(total - gone)
        start = min(gutter + axes.column(gone) - len(label) // 2, end - len(label))
        cells[start : start + len(label)] = label
    return "".join(cells).rstrip()


def _title(report: PruneReport) -> list[tuple[str, bool]]:
    return [
        (f"{report.loss_name.capitalize()} against heads left", True),
        ("nats per token", False),
        (f"{report.total} heads at the left, fewer to the right", False),
    ]


def _legend(report: PruneReport, theme: Theme, room: int, ours: _Pen, random: _Pen) -> list[Line]:
    """A line for each curve, its glyphs first."""
    how = "gradient" if report.method == "gradient" else "exact loss"
    again = "again after each removal" if report.rerank else "once"
    entries = [
        (ours.name, ours.point, ours.flat[0], f"least important first, ranked {again} by {how}")
    ]
    if report.random:
        drawn = f"mean of {report.draws} draws" if report.draws > 1 else "one draw"
        words = f"random order, {drawn}, seed {report.seed}"
        entries.append((random.name, random.point, random.flat[0], words))
    if report.limit is not None:
        level = "-" if theme.ascii else "…"
        entries.append(("level", level, level, f"limit {report.limit:.4f}"))
    lines: list[Line] = []
    for name, point, flat, words in entries:
        first, *rest = at_blanks(words, max(room - 5, 1), "  ", theme.ellipsis)
        lines.append([Segment(f"{flat}{flat}{point}{flat} ", _style(name, theme)), Segment(first)])
        lines += [[Segment("     " + line)] for line in rest]
    return lines
