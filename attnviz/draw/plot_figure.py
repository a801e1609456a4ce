"""Draws curves and histograms as figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from attnviz.draw.curve import value_range
from attnviz.draw.document import Curve, Histogram, Plot
from attnviz.draw.drawing import Anchor, Drawing, Item, Label, Stroke, Tip, flow, tinted
from attnviz.draw.labels import width
from attnviz.draw.numbers import percent, round_ticks, short_number
from attnviz.draw.palette import SERIES_SIGNS, paper_table, series_tint, to_hex

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
        drawings = [_histogram(each) for each in plot.histograms]
        return flow(name, drawings, _ROOM, _APART)
    values = [value for curve in plot.curves for _, value in curve.points]
    low, high = value_range([*values, *(level.value for level in plot.levels)])
    end = max([place for curve in plot.curves for place, _ in curve.points], default=0.0) or 1.0
    axes = _Axes(plot.ends or (0.0, end), (low, high))
    alone = sum(not curve.marked for curve in plot.curves) == 1
    pens = [
        (
            to_hex(paper_table(series_tint(place).palette)[0]),
            "" if alone else SERIES_SIGNS[place % len(SERIES_SIGNS)],
        )
        for place in range(len(plot.curves))
    ]
    items = [*axes.drawn(plot)]
    for place, (curve, pen) in enumerate(zip(plot.curves, pens, strict=True)):
        items += axes.curve(curve, *pen, place)
    y = _TOP + _TALL + 44
    for entry in _legend(plot, pens):
        items += [_moved(item, y) for item in entry]
        y += _LINE
    words = [*(each.name for each in plot.curves), *(each.name for each in plot.levels)]
    longest = max((width(each) for each in words), default=0) * _LETTER + _LEFT + _SAMPLE + 20
    return Drawing(name, max(_LEFT + _ACROSS + 12, longest), y, tuple(items))


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
        named = whole if plot.ends is None else [*self._ends, *self._between(whole)]
        for tick in named:
            yield Label(self.x(tick), foot + 16, short_number(tick), "faint", "middle")
        yield Label(right, foot + 32, plot.across, "faint", "end")
        for mark in plot.marks:
            yield Stroke([(self.x(mark.at), _TOP), (self.x(mark.at), foot)], dashed=True)
        for level in plot.levels:
            y = self.y(level.value)
            yield Stroke([(_LEFT, y), (right, y)], _LEVEL_INK, dashed=True)

    def _between(self, ticks: Sequence[float]) -> list[float]:
        return [
            tick for tick in ticks if all(abs(self.x(tick) - self.x(e)) > 30 for e in self._ends)
        ]

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


def _legend(plot: Plot, pens: Sequence[tuple[str, str]]) -> Iterator[tuple[Item, ...]]:
    """Yield the items of a legend line for each curve, mark and level, relative to the line's top.

    pens: the colour and the sign of each curve.
    """
    for curve, (ink, sign) in zip(plot.curves, pens, strict=True):
        ends = [(_LEFT, 0.0), (_LEFT + _SAMPLE - 6, 0.0)]
        sample = Stroke([(_LEFT + 10, 0.0)], ink, _DOT) if curve.marked else Stroke(ends, ink)
        signs = [Label(_LEFT + 10, 4, sign, "text", "middle", ink=ink)] if not curve.marked else []
        yield sample, *signs, Label(_LEFT + _SAMPLE, 4, curve.name, "text")
    others: list[tuple[str, str | None]] = [
        *((f"{mark.name} from {short_number(mark.at)} on", None) for mark in plot.marks),
        *((level.name, _LEVEL_INK) for level in plot.levels),
    ]
    for name, colour in others:
        line = Stroke([(_LEFT, 0.0), (_LEFT + _SAMPLE - 6, 0.0)], colour, dashed=True)
        yield line, Label(_LEFT + _SAMPLE, 4, name, "text")


def _moved(item: Item, down: float) -> Item:
    if isinstance(item, Stroke):
        points = [(x, y + down) for x, y in item.points]
        return Stroke(points, item.ink, item.dots, item.dashed)
    assert isinstance(item, Label)
    return replace(item, y=item.y + down)


def _histogram(found: Histogram) -> Drawing:
    """Draw a histogram with bars of equal width, whatever the sizes of the bins.

    A gap follows a first bin that begins at 0.
    """
    apart = found.edges[0] == 0
    items: list[Item] = [
        Label(_BARS_LEFT, 14, found.name, "name"),
        Label(_BARS_LEFT, 30, found.words, "faint"),
        Label(_BARS_LEFT - 6, _BARS_TOP + 10, percent(found.top), "faint", "end"),
    ]
    foot = _BARS_TOP + _BARS_TALL

    def left(place: float) -> float:
        return _BARS_LEFT + _BAR * (place + (apart and place > 0))

    for place, share in enumerate(found.shares):
        tall = max(min(share / found.top, 1.0) * _BARS_TALL, 1.0 if share else 0.0)
        if tall:
            items.append(tinted(left(place), foot - tall, _BAR - 1, tall, found.tint))
        words = f"{found.edges[place]:.2g} to {found.edges[place + 1]:.2g}: {percent(share)}"
        items.append(Tip(left(place), _BARS_TOP, _BAR, _BARS_TALL, words))
    for bin_place, name in found.ticks:
        anchor: Anchor = "end" if bin_place >= len(found.shares) else "start"
        items.append(Label(left(bin_place), foot + 14, name, "axis-faint", anchor))
    if found.mark is not None:
        at, words = left(found.mark[0]), found.mark[1]
        items += [
            Stroke([(at, _BARS_TOP), (at, foot)], _LEVEL_INK, dashed=True),
            Label(at, foot + 30, words, "axis-faint", "middle"),
        ]
    across = max(left(len(found.shares)) + 8, _BARS_LEFT + _LETTER * width(found.words))
    return Drawing(found.name, across, foot + 22 + 16 * (found.mark is not None), tuple(items))
