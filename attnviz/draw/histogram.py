"""Histograms on a terminal: columns of blocks, side by side where there is room."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.segment import Segment

from attnviz.draw.blocks import DIM, Block, Line, beside, stack
from attnviz.draw.document import Histogram
from attnviz.draw.labels import at_blanks
from attnviz.draw.numbers import percent
from attnviz.draw.theme import Theme

_MOST_ROWS = 6
_GAP = 3
_GUTTER = 6
_LEVELS = " ▁▂▃▄▅▆▇█"
_ASCII_LEVELS = " .:#"


_WIDE_BAR, _FRAMED_BAR = 2, 4
"""The columns of the widest bar, and of that in a frame."""


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
        """Return the number of bars, not counting one that stands apart."""
        return (self.bins - self.apart) // self.merged

    @property
    def columns(self) -> int:
        return self.wide * (self.bars + self.apart) + self.apart

    def column(self, place: float) -> int:
        """Return the character position of ``place``, a position that is counted in bins."""
        if place >= self.bins:
            return self.columns - 1
        bar = math.floor((place - self.apart) / self.merged + 1e-9)
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
    gutters = [not layout.beside or place == 0 for place in range(len(histograms))]
    pairs = zip(histograms, gutters, strict=True)
    drawn = [_block(histogram, layout, theme, gutter) for histogram, gutter in pairs]
    return beside(drawn, _GAP) if layout.beside else stack(drawn)


def _layout(histogram: Histogram, count: int, max_width: int, rows: int, widest: int) -> _Layout:
    bins, apart = len(histogram.shares), histogram.edges[0] == 0
    coarser = [(2, 1), (4, 1)] if count > 2 else []
    for merged, wide in (*((1, wide) for wide in range(widest, 0, -1)), *coarser):
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
    for place, name in histogram.ticks:
        at = layout.column(place)
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
