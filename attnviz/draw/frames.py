"""Draws frames with a title in their upper edge, from which wide first screens are made."""

from __future__ import annotations

from typing import NamedTuple

from rich.box import ASCII, ROUNDED
from rich.segment import Segment

from attnviz.draw.blocks import DIM, Block, Line, stack, widest
from attnviz.draw.theme import Theme

LEAST_COLUMNS = 120
"""The columns of a terminal from which on a first screen has frames."""

SIDES, GAP = 4, 1
"""The columns that the two sides of a frame take with their blanks, and those between frames."""


class Panel(NamedTuple):
    """Some lines in one column of a screen, in a frame unless ``title`` is None.

    title: stands in the upper edge of the frame; no segments for an edge without words.
    """

    block: Block
    title: Line | None = None

    @property
    def wide(self) -> int:
        """Return the columns that the panel needs at least, with its frame."""
        inner = widest([*self.block.lines, [Segment("  "), *(self.title or ())]])
        return inner + (0 if self.title is None else SIDES)

    @property
    def tall(self) -> int:
        """Return the lines that the panel takes, with its frame."""
        return len(self.block.lines) + 2 * (self.title is not None)


def framed_column(panels: list[Panel], wide: int, tall: int, theme: Theme) -> Block:
    """Return the panels below each other, the last frame lengthened until all fill ``tall`` lines.

    wide: of every frame in columns, at least as many as each panel needs.
    """
    used = sum(panel.tall for panel in panels)
    blocks = []
    for place, panel in enumerate(panels):
        spare = max(tall - used, 0) if place == len(panels) - 1 else 0
        blocks.append(_framed(panel, wide, spare, theme))
    return stack(blocks, gap=0)


def _framed(panel: Panel, wide: int, spare: int, theme: Theme) -> Block:
    """Return a panel in a frame of ``wide`` columns, with ``spare`` empty lines at its end."""
    if panel.title is None:
        return Block(panel.block.lines, wide)
    box, inner = ASCII if theme.ascii else ROUNDED, wide - SIDES
    title = [Segment(" "), *panel.title, Segment(" ")] if panel.title else []
    rest = inner + 1 - Segment.get_line_length(title)
    corners = Segment(box.top_left + box.top, DIM), Segment(box.top * rest + box.top_right, DIM)
    lines = [[corners[0], *title, corners[1]]]
    for line in (*panel.block.lines, *([[]] * spare)):
        filled = Segment.adjust_line_length(line, inner)
        lines.append([Segment(f"{box.mid_left} ", DIM), *filled, Segment(f" {box.mid_right}", DIM)])
    bottom = box.bottom_left + box.bottom * (wide - 2) + box.bottom_right
    return Block((*lines, [Segment(bottom, DIM)]), wide)


def shared_widths(needs: list[int], max_width: int) -> list[int]:
    """Return the widths of columns that fill ``max_width``, in proportion to what they need.

    None is narrower than it needs, unless there is too little for all.
    """
    spare = max_width - GAP * (len(needs) - 1) - sum(needs)
    widths = [need + spare * need // max(sum(needs), 1) for need in needs]
    widths[-1] += max_width - GAP * (len(needs) - 1) - sum(widths)
    return widths
