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
    layout = _layout(histograms[0], len(histograms), max_width, min(rows, _MOST_ROWS))
    gutters = [not layout.beside or place == 0 for place in range(len(histograms))]
    drawn = [
        _block(found, layout, theme, gutter)
        for found, gutter in zip(histograms, gutters, strict=True)
    ]
    return beside(drawn, _GAP) if layout.beside else stack(drawn)


def _layout(found: Histogram, count: int, max_width: int, rows: int) -> _Layout:
    bins, apart = len(found.shares), found.edges[0] == 0
    coarser = [(2, 1), (4, 1)] if count > 2 else []
    for merged, wide in ((1, 2), (1, 1), *coarser):
        layout = _Layout(rows, True, merged, wide, bins, apart)
        if count > 1 and _GUTTER + count * (layout.columns + _GAP) - _GAP <= max_width:
            return layout
    for merged in (1, 2, 4):
        layout = _Layout(rows, False, merged, 1, bins, apart)
        if _GUTTER + layout.columns <= max_width:
            break
    return layout


def _block(found: Histogram, layout: _Layout, theme: Theme, gutter: bool) -> Block:
    first, rest = found.shares[: layout.apart], found.shares[layout.apart :]
    bars = [
        sum(rest[start : start + layout.merged]) for start in range(0, len(rest), layout.merged)
    ]
    top = found.top * layout.merged
    style = theme.ink(found.tint)
    lead = _GUTTER if gutter else 0
    lines: list[Line] = []
    for words, shade in ((found.name, style), (found.words, DIM)):
        lines += [
            [Segment(" " * lead), Segment(piece, shade)]
            for piece in at_blanks(theme.spell(words), layout.columns, "", theme.ellipsis)
            if piece
        ]
    levels = _ASCII_LEVELS if theme.ascii else _LEVELS
    for row in reversed(range(layout.rows)):
        heights = [*first, *bars]
        glyphs = [_glyph(layout.rows * share / top, row, levels) * layout.wide for share in heights]
        drawn = " ".join([*glyphs[: len(first)], "".join(glyphs[len(first) :])]).rstrip()
        label = percent(top) if gutter and row == layout.rows - 1 else ""
        lines.append([Segment(label.rjust(lead - 1).ljust(lead), DIM), Segment(drawn, style)])
    lines += [[Segment(" " * lead + line, DIM)] for line in _axis(found, layout)]
    return Block(tuple(lines), lead + layout.columns)


def _glyph(rows: float, row: int, levels: str) -> str:
    """Return the glyph of a bar in one of the lines that it is drawn in.

    rows: the height of the bar in lines. row: the line, counted from the bottom.
    levels: the glyphs from an empty to a full line.
    """
    steps = len(levels) - 1
    height = math.ceil(rows * steps - 1e-9)  # a share above zero is always seen
    return levels[min(max(height - row * steps, 0), steps)]


def _axis(found: Histogram, layout: _Layout) -> list[str]:
    text = [" "] * layout.columns
    text[0] = "<" if layout.apart else " "
    free = 0
    for place, name in found.ticks:
        at = layout.column(place)
        if at >= free and at + len(name) <= layout.columns:
            text[at : at + len(name)] = name
            free = at + len(name) + 1
    lines = ["".join(text).rstrip()]
    if found.mark is not None:
        at, words = layout.column(found.mark[0]), found.mark[1]
        if len(words) + 1 <= at:
            lines.append(f"{words:>{at - 1}} ^")
        elif at + 2 + len(words) <= layout.columns:
            lines.append(f"{'^':>{at + 1}} {words}")
    return lines
