"""Rectangles of styled text, put side by side or below each other: every view is made of them.

All widths are in characters, all heights in lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    """Put blocks side by side as far as the width allows, then continue in the next row.

    width: the available width in characters. gap: the characters between two blocks. between: empty
        lines between rows.
    """
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
