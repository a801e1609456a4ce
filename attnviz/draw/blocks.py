"""Rectangles of styled text, side by side, below each other or in frames: the stuff of all views.

All widths are in characters, all heights in lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.box import ASCII, ROUNDED
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

Line = list[Segment]

BOLD = Style(bold=True)
DIM = Style(dim=True)


@dataclass(frozen=True)
class Block:
    """A rectangle of styled text, at most ``width`` characters wide, that rich can print."""

    lines: tuple[Line, ...]
    width: int

    @property
    def plain(self) -> str:
        """Return the lines of the block as one string without styles."""
        lines = ("".join(segment.text for segment in line).rstrip() for line in self.lines)
        return "".join(f"{line}\n" for line in lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            yield from line
            yield Segment.line()


def text_line(*parts: tuple[str, Style | None] | str) -> Line:
    """Return a line from its parts: plain strings, and tuples (string, style)."""
    return [Segment(part) if isinstance(part, str) else Segment(*part) for part in parts]


def widest(lines: Iterable[Line]) -> int:
    """Return the width in characters of the longest line; 0 if there is none."""
    return max(map(Segment.get_line_length, lines), default=0)


def without_trailing_blanks(line: Line) -> Line:
    """Return the line without unstyled blanks at its end."""
    end = len(line)
    while end and not line[end - 1].text.strip() and not line[end - 1].style:
        end -= 1
    return line[:end]


def tick_line(numbers: Sequence[int], indent: int, cell: int) -> Line:
    """Draw as many numbers as fit in one line, each over its cell.

    numbers: one for each cell, ``cell`` wide. indent: the characters before the first cell.
    Two blanks separate numbers over cells of one character. No number reaches beyond the last cell.
    """
    text, gap = "", 1 if cell > 1 else 2
    for index, number in enumerate(numbers):
        column = index * cell
        fits = column + len(str(number)) <= cell * len(numbers)
        if column >= len(text) + (gap if text else 0) and fits:
            text = text.ljust(column) + str(number)
    return text_line(" " * indent, (text, DIM))


def trimmed(block: Block) -> Block:
    """Return the block without unstyled blanks at the end of its lines."""

    def line(segments: Line) -> Line:
        kept = without_trailing_blanks(segments)
        if kept and (kept[-1].style is None or kept[-1].style.bgcolor is None):
            kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
        return kept

    return Block(tuple(map(line, block.lines)), block.width)


def beside(blocks: Sequence[Block], gap: int = 3) -> Block:
    """Put blocks side by side, aligned at the top. gap: the characters between two blocks."""
    height = max((len(block.lines) for block in blocks), default=0)
    lines = []
    for row in range(height):
        line: Line = []
        pending = 0  # blanks are written only if something follows, so that no line ends in blanks
        for block in blocks:
            content = block.lines[row] if row < len(block.lines) else []
            length = Segment.get_line_length(content)
            if length:
                if pending:
                    line.append(Segment(" " * pending))
                line.extend(content)
                pending = 0
            pending += block.width - length + gap
        lines.append(line)
    return Block(tuple(lines), sum(block.width for block in blocks) + gap * (len(blocks) - 1))


def stack(blocks: Iterable[Block], gap: int = 1) -> Block:
    """Put blocks below each other, with ``gap`` empty lines between them."""
    lines: list[Line] = []
    width = 0
    for block in blocks:
        if lines and block.lines:
            lines.extend([] for _ in range(gap))
        lines.extend(block.lines)
        width = max(width, block.width)
    return Block(tuple(lines), width)


def flow(blocks: Sequence[Block], width: int, gap: int = 3, between: int = 1) -> Block:
    """Put blocks side by side as far as the width allows, rows apart by ``between`` empty lines."""
    rows: list[list[Block]] = []
    used = 0
    for block in blocks:
        if rows and used + gap + block.width <= width:
            rows[-1].append(block)
            used += gap + block.width
        else:
            rows.append([block])
            used = block.width
    return stack([beside(row, gap) for row in rows], between)


# Frames with a title in their upper edge, from which wide first screens are made ---------------


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


def framed_column(panels: Sequence[Panel], wide: int, tall: int, ascii_only: bool) -> Block:
    """Return panels below each other in frames, the last one lengthened to fill ``tall`` lines."""
    box, inner = ASCII if ascii_only else ROUNDED, wide - SIDES
    spare = max(tall - sum(panel.tall for panel in panels), 0)
    lines: list[Line] = []
    for panel in panels:
        if panel.title is None:
            lines += panel.block.lines
            continue
        title = [Segment(" "), *panel.title, Segment(" ")] if panel.title else []
        rest = box.top * (inner + 1 - Segment.get_line_length(title)) + box.top_right
        lines.append([Segment(box.top_left + box.top, DIM), *title, Segment(rest, DIM)])
        for line in (*panel.block.lines, *([[]] * spare * (panel is panels[-1]))):
            middle = Segment.adjust_line_length(line, inner)
            sides = Segment(f"{box.mid_left} ", DIM), Segment(f" {box.mid_right}", DIM)
            lines.append([sides[0], *middle, sides[1]])
        bottom = box.bottom_left + box.bottom * (wide - 2) + box.bottom_right
        lines.append([Segment(bottom, DIM)])
    return Block(tuple(lines), wide)


def shared_widths(needs: Sequence[int], max_width: int) -> list[int]:
    """Return the widths of columns that fill ``max_width``, in proportion to what they need."""
    spare = max_width - GAP * (len(needs) - 1) - sum(needs)
    widths = [need + spare * need // max(sum(needs), 1) for need in needs]
    widths[-1] += max_width - GAP * (len(needs) - 1) - sum(widths)
    return widths
