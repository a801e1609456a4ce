"""Draws curves and histograms as figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnviz.draw.document import Curve, Histogram, Plot
from attnviz.draw.drawing import Anchor, Drawing, Item, Label, Stroke, Tip, flow, tinted
from attnviz.draw.labels import width
from attnviz.draw.numbers import percent, round_ticks, short_number
from attnviz.draw.palette import SERIES_SIGNS, paper_table, series_tint, to_hex
from attnviz.draw.plot import axis_ends

_LEVEL_INK = "#8a94a3"
_LEFT, _TOP = 62.0, 10.0
_ACROSS, _TALL = 620.0, 250.0
_LINE = 18.0
_SAMPLE = 26.0
_LETTER = 6.6
_DOT = 3.2
_MOST_TIPS = 80
_BETWEEN_SIGNS = 80.0
"""Pixels between two signs of a curve."""

_BAR, _BARS_TALL = 10.0, 110.0
_BARS_LEFT, _BARS_TOP = 48.0, 44.0
_APART = 40.0
_ROOM = 1000.0


def plot_figure(plot: Plot) -> Drawing:
    """Draw the curves of a plot with axes and a legend, or its histograms next to each other."""
    name = plot.title[0][0] if plot.title else "plot"
    if plot.histograms:
        return flow(name, map(_histogram, plot.histograms), _ROOM, _APART)
    axes = _Axes(*axis_ends(plot))
    alone = sum(not curve.marked for curve in plot.curves) == 1
    pens = []
    for place in range(len(plot.curves)):
        sign = "" if alone else SERIES_SIGNS[place % len(SERIES_SIGNS)]
        pens.append((to_hex(paper_table(series_tint(place).palette)[0]), sign))
    items = [*axes.drawn(plot)]
    for place, (curve, pen) in enumerate(zip(plot.curves, pens, strict=True)):
        items += axes.curve(curve, *pen, place)
    below = _TOP + _TALL + 44
    items += _legend(plot, pens, below)
    tall = below + _LINE * (len(plot.curves) + len(plot.marks) + len(plot.levels))
    names = [*(curve.name for curve in plot.curves), *(level.name for level in plot.levels)]
    longest = max(map(width, names), default=0) * _LETTER + _LEFT + _SAMPLE + 20
    return Drawing(name, max(_LEFT + _ACROSS + 12, longest), tall, tuple(items))


class _Axes:
    """The two axes of a plot in a figure; they convert values into pixel positions.

    ends: of the horizontal axis, left first. up: of the vertical axis, low first.
    """

    def __init__(self, ends: tuple[float, float], up: tuple[float, float]) -> None:
        self._ends, self._up = ends, up

    def x(self, place: float) -> float:
        left, right = self._ends
        return _LEFT + (place - left) / ((right - left) or 1.0) * _ACROSS

    def y(self, value: float) -> float:
        low, high = self._up
        return _TOP + (high - value) / (high - low) * _TALL

    def drawn(self, plot: Plot) -> Iterator[Item]:
        """Yield the items that draw both axes: round numbers, and the plot's marks and levels."""
        foot, right = _TOP + _TALL, _LEFT + _ACROSS
        ticks, digits = round_ticks(*self._up)
        for tick in ticks:
            yield Stroke([(_LEFT, self.y(tick)), (right, self.y(tick))])
            yield Label(_LEFT - 8, self.y(tick) + 4, f"{tick:.{digits}f}", "faint", "end")
        yield Stroke([(_LEFT, _TOP), (_LEFT, foot), (right, foot)])
        across, _ = round_ticks(min(self._ends), max(self._ends), most=11)
        whole = [tick for tick in across if tick == round(tick)]
        if plot.ends is not None:  # both ends are named, and what does not touch them
            ends = [self.x(end) for end in self._ends]
            apart = [tick for tick in whole if all(abs(self.x(tick) - end) > 30 for end in ends)]
            whole = [*self._ends, *apart]
        for tick in whole:
            yield Label(self.x(tick), foot + 16, short_number(tick), "faint", "middle")
        yield Label(right, foot + 32, plot.across, "faint", "end")
        for mark in plot.marks:
            yield Stroke([(self.x(mark.at), _TOP), (self.x(mark.at), foot)], dashed=True)
        for level in plot.levels:
            y = self.y(level.value)
            yield Stroke([(_LEFT, y), (right, y)], _LEVEL_INK, dashed=True)

    def curve(self, curve: Curve, ink: str, sign: str, number: int) -> Iterator[Item]:
        """Yield the items that draw a curve: its line, and its sign at intervals.

        The intervals differ between curves. ink: the curve's colour. sign: identifies it for
        readers without colour. number: its index among the curves.
        """
        points = [(self.x(place), self.y(value)) for place, value in curve.points]
        if not curve.marked:
            yield Stroke(points, ink)
        if curve.marked or len(points) == 1:
            yield Stroke(points, ink, dots=_DOT)
        elif sign:
            due = _LEFT + _BETWEEN_SIGNS * (0.2 + number % 4 / 4)
            for x, y in points:
                if x >= due:
                    due += _BETWEEN_SIGNS
                    yield Label(x, y + 4, sign, "text", "middle", ink=ink)
        if len(points) > _MOST_TIPS:
            return
        for (x, y), (place, value) in zip(points, curve.points, strict=True):
            text = f"{curve.name}: {value:.4f} at {short_number(place)}"
            yield Tip(x - 5, y - 5, 10, 10, text)


def _legend(plot: Plot, pens: Sequence[tuple[str, str]], y: float) -> Iterator[Item]:
    """Yield the items of a legend line, from ``y`` down, for each curve, mark and level.

    pens: the colour and the sign of each curve.
    """
    for curve, (ink, sign) in zip(plot.curves, pens, strict=True):
        ends = [(_LEFT, y), (_LEFT + _SAMPLE - 6, y)]
        yield Stroke([(_LEFT + 10, y)], ink, _DOT) if curve.marked else Stroke(ends, ink)
        if not curve.marked:
            yield Label(_LEFT + 10, y + 4, sign, "text", "middle", ink=ink)
        yield Label(_LEFT + _SAMPLE, y + 4, curve.name, "text")
        y += _LINE
    others: list[tuple[str, str | None]] = [
        *((f"{mark.name} from {short_number(mark.at)} on", None) for mark in plot.marks),
        *((level.name, _LEVEL_INK) for level in plot.levels),
    ]
    for name, colour in others:
        yield Stroke([(_LEFT, y), (_LEFT + _SAMPLE - 6, y)], colour, dashed=True)
        yield Label(_LEFT + _SAMPLE, y + 4, name, "text")
        y += _LINE


def _histogram(drawn: Histogram) -> Drawing:
    """Draw a histogram with bars of equal width; a gap follows a first bin that begins at 0."""
    apart = drawn.edges[0] == 0
    items: list[Item] = [
        Label(_BARS_LEFT, 14, drawn.name, "name"),
        Label(_BARS_LEFT, 30, drawn.words, "faint"),
        Label(_BARS_LEFT - 6, _BARS_TOP + 10, percent(drawn.top), "faint", "end"),
    ]
    foot = _BARS_TOP + _BARS_TALL

    def left(place: float) -> float:
        return _BARS_LEFT + _BAR * (place + (apart and place > 0))

    for place, share in enumerate(drawn.shares):
        tall = max(min(share / drawn.top, 1.0) * _BARS_TALL, 1.0 if share else 0.0)
        if tall:
            items.append(tinted(left(place), foot - tall, _BAR - 1, tall, drawn.tint))
        words = f"{drawn.edges[place]:.2g} to {drawn.edges[place + 1]:.2g}: {percent(share)}"
        items.append(Tip(left(place), _BARS_TOP, _BAR, _BARS_TALL, words))
    for bin_place, name in drawn.ticks:
        anchor: Anchor = "end" if bin_place >= len(drawn.shares) else "start"
        items.append(Label(left(bin_place), foot + 14, name, "axis-faint", anchor))
    if drawn.mark is not None:
        at, words = left(drawn.mark[0]), drawn.mark[1]
        items += [
            Stroke([(at, _BARS_TOP), (at, foot)], _LEVEL_INK, dashed=True),
            Label(at, foot + 30, words, "axis-faint", "middle"),
        ]
    across = max(left(len(drawn.shares)) + 8, _BARS_LEFT + _LETTER * width(drawn.words))
    return Drawing(drawn.name, across, foot + 22 + 16 * (drawn.mark is not None), tuple(items))
