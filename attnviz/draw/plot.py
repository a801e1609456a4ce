"""Draws curves with braille dots over an axis of round numbers, and histograms of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import (
    DIM,
    Block,
    Line,
    beside,
    flow,
    stack,
    trimmed,
    widest,
    without_trailing_blanks,
)
from attnviz.draw.document import Curve, Histogram, Plot
from attnviz.draw.labels import at_blanks, width
from attnviz.draw.numbers import percent, round_ticks, short_number
from attnviz.draw.palette import SERIES_SIGNS, series_tint
from attnviz.draw.prose import words_lines
from attnviz.draw.theme import Theme

Points = Sequence[tuple[float, float]]
"""(position on the axis, value), in the order of the positions."""

DOTS_ACROSS, DOTS_DOWN = 2, 4
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bits of the dots of a braille character, by column and row (Unicode's braille block)."""

_FIRST = 0x2800


class Canvas:
    """A drawing area of characters and their styles over two linear axes; curves are drawn into it.

    width: its width in characters. rows: its height in lines.
    across: both ends of the horizontal axis, left first. up: those of the vertical axis, low first.
        Values beyond the ends are drawn at the border.
    """

    def __init__(
        self, width: int, rows: int, across: tuple[float, float], up: tuple[float, float]
    ) -> None:
        self.width, self.rows = width, rows
        self._across, self._up = across, up
        blank: tuple[str, Style | None] = " ", None
        self._cells = [[blank] * width for _ in range(rows)]

    def column(self, value: float, parts: int = 1) -> int:
        """Return the character, in ``parts``, from the left, of a value of the horizontal axis."""
        return _index(value, self._across, self.width * parts)

    def row(self, value: float, parts: int = 1) -> int:
        """Return the line, in ``parts``, from the top, of a value of the vertical axis."""
        return self.rows * parts - 1 - _index(value, self._up, self.rows * parts)

    def put(self, column: int, row: int, glyph: str, style: Style | None) -> None:
        """Put one character at a position, counted from the left and from the top."""
        self._cells[row][column] = glyph, style

    def line(self, points: Points, style: Style | None, glyph: str = "") -> None:
        """Draw a curve in braille dots or a ``glyph``; points of one column by their mean."""
        wide, high = (1, 1) if glyph else (DOTS_ACROSS, DOTS_DOWN)
        before: int | None = None
        for column, value in _by_column(points, self, wide):
            row = self.row(value, high)
            first = row if before is None or before == row else before + (1 if row > before else -1)
            for passed in range(min(first, row), max(first, row) + 1):
                if glyph:
                    self.put(column, passed, glyph, style)
                else:
                    self._dot(column, passed, style)
            before = row

    def _dot(self, column: int, row: int, style: Style | None) -> None:
        x, y = column // DOTS_ACROSS, row // DOTS_DOWN
        there = ord(self._cells[y][x][0]) - _FIRST
        bits = there if 0 <= there < 256 else 0
        bit = _BITS[column % DOTS_ACROSS][row % DOTS_DOWN]
        self.put(x, y, chr(_FIRST | bits | bit), style)

    def lines(self) -> list[Line]:
        """Return the lines of the canvas as segments, without the blanks at their ends."""
        lines = []
        for cells in self._cells:
            runs = groupby(cells, key=itemgetter(1))
            line = [Segment("".join(glyph for glyph, _ in run), style) for style, run in runs]
            lines.append(without_trailing_blanks(line))
        return lines


def _index(value: float, ends: tuple[float, float], count: int) -> int:
    share = (value - ends[0]) / (ends[1] - ends[0])
    return min(max(math.floor(share * count), 0), count - 1)


def _by_column(points: Points, canvas: Canvas, parts: int) -> list[tuple[int, float]]:
    """Return (column in ``parts``, value) from the first point to the last, interpolated."""
    there: dict[int, list[float]] = {}
    for position, value in points:
        there.setdefault(canvas.column(position, parts), []).append(value)
    means = [(column, sum(values) / len(values)) for column, values in there.items()]
    drawn = means[:1]
    for column, value in means[1:]:
        (left, start), steps = drawn[-1], column - drawn[-1][0]
        rise = value - start
        drawn += [(left + step, start + rise * step / steps) for step in range(1, steps + 1)]
    return drawn


_WIDEST = 96
_LEAST = 8
_BETWEEN_NAMES = 3
_ASCII_SIGNS = "o+x*#@%&"
_BETWEEN_SIGNS = 9  # columns between two signs of a line


def plot_block(plot: Plot, theme: Theme, max_width: int) -> Block:
    """Draw the curves of a plot, each in its own hue and sign; later ones cover earlier ones."""
    curves, rows = plot.curves, plot.rows
    ends, up = axis_ends(plot)
    ticks, digits = round_ticks(*up)
    labels = [f"{tick:.{digits}f}" for tick in ticks]
    gutter = max(map(len, labels)) + 2
    canvas = Canvas(max(min(max_width - gutter, _WIDEST), _LEAST), rows, ends, up)
    for mark in plot.marks:
        for row in range(rows):
            canvas.put(canvas.column(mark.at), row, _signs(theme)[0], DIM)
    for level in plot.levels:
        for column in range(canvas.width):
            canvas.put(column, canvas.row(level.value), _signs(theme)[1], DIM)
    pens = [_Pen.of(index, curves, theme) for index in range(len(curves))]
    for curve, pen in zip(curves, pens, strict=True):
        pen.draw(curve.points, canvas)
    at = {canvas.row(tick): label for tick, label in zip(ticks, labels, strict=True)}
    wall = "|" if theme.ascii else "▕"
    gutters = [at.get(row, "").rjust(gutter - 1) + wall for row in range(rows)]
    drawn = zip(gutters, canvas.lines(), strict=True)
    lines = [[Segment(number, DIM), *line] for number, line in drawn]
    named, unit = plot.ends is not None, theme.spell(plot.across)
    lines.append([Segment(_axis_numbers(canvas, ends, named, unit, gutter, max_width), DIM)])
    head = words_lines(plot.title, theme, max_width)
    legend = _legend(plot, pens, theme, max_width)
    return trimmed(Block((*head, *lines, *legend), max_width))


@dataclass(frozen=True)
class _Pen:
    """The style in which one curve is drawn.

    sign: marks its points, or some points of its line; empty for the line of a single curve.
    glyph: the character that draws the line, empty for braille dots. line: whether a line is drawn.
        offset: the character position of the first sign.
    """

    style: Style | None
    sign: str
    glyph: str
    line: bool
    offset: int

    @classmethod
    def of(cls, index: int, curves: Sequence[Curve], theme: Theme) -> _Pen:
        signs = _ASCII_SIGNS if theme.ascii else SERIES_SIGNS
        alone = sum(not curve.marked for curve in curves) == 1
        curve = curves[index]
        sign = signs[0 if curve.marked and alone else index % len(signs)]
        glyph = ("." if alone else sign) if theme.ascii else ""
        style = theme.ink(series_tint(index))
        needed = curve.marked or not (alone or theme.ascii)
        return cls(style, sign if needed else "", glyph, not curve.marked, index)

    @property
    def sample(self) -> str:
        if not self.line:
            return f" {self.sign} "
        line = self.glyph or "⠒"
        return line + (self.sign or line) + line

    def draw(self, points: Points, canvas: Canvas) -> None:
        if self.line:
            canvas.line(points, self.style, self.glyph)
        if not self.sign:
            return
        columns = [(canvas.column(position), value) for position, value in points]
        if self.line:
            drawn, shift = _by_column(points, canvas, 1), 2 * self.offset
            signed = [point for point in drawn if (point[0] + shift) % _BETWEEN_SIGNS == 0]
            columns = signed or drawn[-1:]
        for column, value in columns:
            canvas.put(column, canvas.row(value), self.sign, self.style)


def axis_ends(plot: Plot) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ends of the horizontal axis of curves, left first, and of the vertical one.

    Those of the vertical axis lie far enough apart that noise does not fill it.
    """
    points = [point for curve in plot.curves for point in curve.points]
    end = max([position for position, _ in points], default=0.0) or 1.0
    values = [*(value for _, value in points), *(level.value for level in plot.levels)]
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    lack = max(1e-3 * abs(high) - (high - low), 0.0)
    margin = 0.02 * (high - low)
    up = low - lack / 2 - margin, high + (lack or 1e-9) / 2 + margin
    return plot.ends or (0.0, end), up


def _signs(theme: Theme) -> str:
    """Return the glyph of vertical lines, then that of horizontal ones."""
    return ":-" if theme.ascii else "┊┈"


def _axis_numbers(
    canvas: Canvas, ends: tuple[float, float], named: bool, across: str, gutter: int, max_width: int
) -> str:
    """Return the line of numbers below the canvas, with the unit after the last one that fits.

    ends: the ends of the axis, left first. named: True if both ends must be shown; numbers next to
        them are then left out. across: the unit. gutter: the characters before the canvas.
    """
    ticks, _ = round_ticks(min(ends), max(ends), max(canvas.width // 10, 6))
    if named:
        ticks = _whole_ticks([ends[0], *ticks, ends[1]], canvas)
    text = ""
    unit = ""
    for tick in ticks:
        label = short_number(tick)
        start = max(gutter + canvas.column(tick) - (len(label) // 2 if tick != ends[0] else 0), 0)
        start = min(start, gutter + canvas.width - len(label)) if named else start
        if start > len(text) - (not text) and start + len(label) <= max_width:
            text = text.ljust(start) + label
            if len(text) + 1 + len(across) <= max_width:
                unit = f"{text} {across}"
    if named and not unit.startswith(text):
        return text  # both ends are more important than the unit
    return unit or text


def _whole_ticks(ticks: Sequence[float], canvas: Canvas) -> list[float]:
    """Return those of the ticks that are whole numbers, none of which touches the next."""
    last = ticks[-1]
    before = canvas.column(last) - len(short_number(last)) // 2
    whole = []
    for tick in sorted({*ticks[:-1]}, key=canvas.column):
        if tick == round(tick) and canvas.column(tick) + len(short_number(tick)) < before:
            whole.append(tick)
    return [*whole, last]


def _legend(plot: Plot, pens: Sequence[_Pen], theme: Theme, max_width: int) -> list[Line]:
    curves = zip(plot.curves, pens, strict=True)
    entries = [(pen.sample, pen.style, curve.name) for curve, pen in curves]
    if plot.marks:
        names = ", ".join(f"{mark.name} from {short_number(mark.at)}" for mark in plot.marks)
        entries.append((f" {_signs(theme)[0]} ", DIM, f"{names} on"))
    entries += [(_signs(theme)[1] * 3, DIM, level.name) for level in plot.levels]
    blocks = []
    for sample, style, name in entries:
        lead = width(sample) + 1
        first, *rest = at_blanks(theme.spell(name), max(max_width - lead, 1), "", theme.ellipsis)
        lines = [[Segment(sample, style), Segment(f" {first}")]]
        lines += [[Segment(" " * lead + line)] for line in rest]
        blocks.append(Block(tuple(lines), widest(lines)))
    return list(flow(blocks, max_width, _BETWEEN_NAMES, between=0).lines)


# Histograms ------------------------------------------------------------------------------------


_MOST_ROWS = 6
_GAP = 3
_GUTTER = 6
_LEVELS = " ▁▂▃▄▅▆▇█"
_ASCII_LEVELS = " .:#"


_WIDE_BAR, _FRAMED_BAR = 2, 4  # the columns of the widest bar, and of that in a frame


class _Layout(NamedTuple):
    """The layout of the bars of a histogram.

    rows: the height of the bars in lines. beside: whether histograms stand side by side. merged:
        how many bins make one bar. wide: the width of a bar in characters. bins: the number of
        bins. apart: whether the first bin stands apart, with a blank behind it, because it has no
        lower end.
    """

    rows: int
    beside: bool
    merged: int
    wide: int
    bins: int
    apart: bool

    @property
    def bars(self) -> int:
        return (self.bins - self.apart) // self.merged

    @property
    def columns(self) -> int:
        return self.wide * (self.bars + self.apart) + self.apart

    def column(self, position: float) -> int:
        """Return the character position of a position that is counted in bins."""
        if position >= self.bins:
            return self.columns - 1
        bar = math.floor((position - self.apart) / self.merged + 1e-9)
        return self.apart * (self.wide + 1) + min(max(bar, 0), self.bars - 1) * self.wide


def histogram_blocks(
    histograms: Sequence[Histogram], theme: Theme, max_width: int, rows: int = _MOST_ROWS
) -> Block:
    """Draw histograms side by side if they fit, else below each other.

    max_width: in characters. rows: the most lines of a bar.
    The height of a bar is its share divided by the histogram's ``top``; a bin that is not empty is
    always visible. More than two histograms are made coarser rather than put below each other.
    """
    widest = _FRAMED_BAR if theme.framed else _WIDE_BAR
    layout = _layout(histograms[0], len(histograms), max_width, min(rows, _MOST_ROWS), widest)
    gutters = [not layout.beside or number == 0 for number in range(len(histograms))]
    pairs = zip(histograms, gutters, strict=True)
    drawn = [_block(histogram, layout, theme, gutter) for histogram, gutter in pairs]
    return beside(drawn, _GAP) if layout.beside else stack(drawn)


def _layout(histogram: Histogram, count: int, max_width: int, rows: int, widest: int) -> _Layout:
    bins, apart = len(histogram.shares), histogram.edges[0] == 0
    coarser = [(2, 1), (4, 1)] if count > 2 else []
    for merged, wide in ((1, 4), (1, 3), (1, 2), (2, 3), (1, 1), *coarser):
        if wide > widest:
            continue
        layout = _Layout(rows, True, merged, wide, bins, apart)
        if count > 1 and _GUTTER + count * (layout.columns + _GAP) - _GAP <= max_width:
            return layout
    for merged in (1, 2, 4):
        layout = _Layout(rows, False, merged, 1, bins, apart)
        if _GUTTER + layout.columns <= max_width:
            break
    return layout


def _block(histogram: Histogram, layout: _Layout, theme: Theme, gutter: bool) -> Block:
    first, rest = histogram.shares[: layout.apart], histogram.shares[layout.apart :]
    starts = range(0, len(rest), layout.merged)
    shares = [*first, *(sum(rest[start : start + layout.merged]) for start in starts)]
    top, levels = histogram.top * layout.merged, _ASCII_LEVELS if theme.ascii else _LEVELS
    steps = len(levels) - 1  # of a line; a share above zero is always seen
    heights = [math.ceil(layout.rows * share / top * steps - 1e-9) for share in shares]
    style = theme.ink(histogram.tint)
    lead = _GUTTER if gutter else 0
    lines: list[Line] = []
    for words, shade in ((histogram.name, style), (histogram.words, DIM)):
        lines += [
            [Segment(" " * lead), Segment(piece, shade)]
            for piece in at_blanks(theme.spell(words), layout.columns, "", theme.ellipsis)
            if piece
        ]
    for row in reversed(range(layout.rows)):
        filled = [min(max(height - row * steps, 0), steps) for height in heights]
        glyphs = [levels[step] * layout.wide for step in filled]
        drawn = " ".join([*glyphs[: len(first)], "".join(glyphs[len(first) :])]).rstrip()
        label = percent(top) if gutter and row == layout.rows - 1 else ""
        lines.append([Segment(label.rjust(lead - 1).ljust(lead), DIM), Segment(drawn, style)])
    lines += [[Segment(" " * lead + line, DIM)] for line in _axis(histogram, layout)]
    return Block(tuple(lines), lead + layout.columns)


def _axis(histogram: Histogram, layout: _Layout) -> list[str]:
    text = [" "] * layout.columns
    text[0] = "<" if layout.apart else " "
    free = 0
    for position, name in histogram.ticks:
        at = layout.column(position)
        if at >= free and at + len(name) <= layout.columns:
            text[at : at + len(name)] = name
            free = at + len(name) + 1
    lines = ["".join(text).rstrip()]
    if histogram.mark is not None:
        at, words = layout.column(histogram.mark[0]), histogram.mark[1]
        if len(words) + 1 <= at:
            lines.append(f"{words:>{at - 1}} ^")
        elif at + 2 + len(words) <= layout.columns:
            lines.append(f"{'^':>{at + 1}} {words}")
    return lines
