"""Sentences broken to the width of the screen."""

from __future__ import annotations

from rich.style import Style

from attnviz.render.blocks import BOLD, Block, text_line
from attnviz.render.labels import at_blanks
from attnviz.render.theme import Theme

__all__ = ["paragraph"]


def paragraph(text: str, room: int, theme: Theme, style: Style | None = None) -> Block:
    """Text broken at blanks, later lines indented by two; safe text only.

    Without a style, what stands before the first colon is bold. A word wider than the room is cut.
    """
    lines = at_blanks(text, room, "  ", theme.ellipsis)
    if style is not None:
        return Block(tuple(text_line((line, style)) for line in lines), room)
    head, colon, rest = lines[0].partition(":")
    first = text_line((head + colon, BOLD), rest) if colon else text_line(lines[0])
    return Block((first, *(text_line(line) for line in lines[1:])), room)
