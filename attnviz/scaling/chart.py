"""A histogram of attention weights as columns of blocks over a logarithmic axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import DIM, Block, Line, beside, stack
from attnviz.draw.labels import at_blanks
from attnviz.draw.palette import colour_table
from attnviz.draw.theme import Theme
from attnviz.scaling.numbers import percent
from attnviz.scaling.records import BIN_EDGES, ScalingCase, Softened

__all__ = ["EDGE_NAMES", "SHADES", "chart_pair", "chart_top", "side_style"]

_ROWS = 6
_GAP = 3
_GUTTER = 6
SHADES = {"plain": 216, "scaled": 112}
"""Steps of the palette that the two sides have."""

_LEVELS = " ▁▂▃▄▅▆▇█"
_ASCII_LEVELS = " .:#"
EDGE_NAMES = {-8: "1e-8", -6: "1e-6", -4: "1e-4", -2: ".01", 0: "1"}
"""The powers of ten that the axis names."""

_LOWEST = min(EDGE_NAMES)


def side_style(side: str, theme: Theme) -> Style | None:
    """The colour of ``plain`` or ``scaled``; None where there is none."""
    if not theme.colour:
        return None
    return Style(color=Color.from_rgb(*colour_table(theme.palette)[SHADES[side]]))


def chart_top(case: ScalingCase) -> float:
    """The share at the top of both charts of a case: of the highest bar but the first ones.

    The first bin has no lower end: without the scale it would hide all others.
    """
    shares = [*case.plain.shares()[1:], *case.scaled.shares()[1:]]
    return max(shares) or 1.0


def chart_pair(case: ScalingCase, even: int | None, theme: Theme, room: int) -> Block:
    """Both histograms, side by side where ``room`` columns allow, over one vertical scale.

    even: the keys of every query, to mark what each gets if attention is even; None where queries
    see different numbers of keys.
    """
    top = chart_top(case)
    layout = _layout(room)
    left = _chart(case.plain, "plain", top, even, layout, theme, gutter=True)
    if layout.beside:
        right = _chart(case.scaled, "scaled", top, even, layout, theme, gutter=False)
        return beside([left, right], _GAP)
    right = _chart(case.scaled, "scaled", top, even, layout, theme, gutter=True)
    return stack([left, right])


@dataclass(frozen=True)
class _Layout:
    """How the bins are laid out.

    beside: whether two charts stand side by side.
    merged: how many bins make one bar; wide: the columns of a bar.
    """

    beside: bool
    merged: int
    wide: int

    @property
    def bars(self) -> int:
        """Without that of the first bin."""
        return (len(BIN_EDGES) - 2) // self.merged

    @property
    def columns(self) -> int:
        """Of the bars; a blank parts the first bin from the others."""
        return self.wide * (self.bars + 1) + 1

    def column(self, exponent: float) -> int:
        """Where the power of ten begins."""
        place = (exponent - _LOWEST) / -_LOWEST * self.bars
        return self.wide + 1 + min(math.floor(place + 1e-9), self.bars - 1) * self.wide


def _layout(room: int) -> _Layout:
    for wide in (2, 1):
        layout = _Layout(True, 1, wide)
        if _GUTTER + 2 * layout.columns + _GAP <= room:
            return layout
    for merged in (1, 2, 4):
        layout = _Layout(False, merged, 1)
        if _GUTTER + layout.columns <= room:
            break
    return layout


def _chart(
    side: Softened,
    name: str,
    top: float,
    even: int | None,
    layout: _Layout,
    theme: Theme,
    gutter: bool,
) -> Block:
    first, *rest = side.shares()
    bars = [
        sum(rest[start : start + layout.merged]) for start in range(0, len(rest), layout.merged)
    ]
    top *= layout.merged
    style = side_style(name, theme)
    lead = _GUTTER if gutter else 0
    width = lead + layout.columns
    lines: list[Line] = []
    title = f"{'without' if name == 'plain' else 'with'} the scale"
    below = f"{percent(first) if first else 'none'} below {EDGE_NAMES[_LOWEST]}"
    for words, shade in ((title, style), (below, DIM)):
        lines += [
            [Segment(" " * lead), Segment(piece, shade)]
            for piece in at_blanks(words, layout.columns, "", theme.ellipsis)
        ]
    levels = _ASCII_LEVELS if theme.ascii else _LEVELS
    for row in reversed(range(_ROWS)):
        marks = [_glyph(share / top, row, levels) for share in (first, *bars)]
        drawn = marks[0] * layout.wide + " " + "".join(mark * layout.wide for mark in marks[1:])
        label = percent(top) if gutter and row == _ROWS - 1 else ""
        lines.append([Segment(label.rjust(lead - 1).ljust(lead), DIM), Segment(drawn, style)])
    lines += [[Segment(" " * lead + line, DIM)] for line in _axis(even, layout)]
    return Block(tuple(lines), width)


def _glyph(share: float, row: int, levels: str) -> str:
    """What a bar of ``share`` of the height shows in a row, counted from the bottom."""
    steps = len(levels) - 1
    height = math.ceil(min(share, 1.0) * _ROWS * steps - 1e-9)  # any weight at all is seen
    return levels[min(max(height - row * steps, 0), steps)]


def _axis(even: int | None, layout: _Layout) -> list[str]:
    """The powers of ten below the bars, and where even attention would be."""
    text = [" "] * layout.columns
    text[0] = "<"
    free = 0
    for exponent, name in EDGE_NAMES.items():
        at = layout.column(exponent) if exponent else layout.columns - 1
        if at >= free and at + len(name) <= layout.columns:
            text[at : at + len(name)] = name
            free = at + len(name) + 1
    lines = ["".join(text).rstrip()]
    if even is not None:
        at = layout.column(max(-math.log10(even), _LOWEST))
        words = f"even: 1/{even} "
        if len(words) <= at:
            lines.append(f"{words:>{at}}^")
        elif at + 1 + len(words) <= layout.columns:
            lines.append(f"{'^':>{at + 1}} {words.rstrip()}")
    return lines
