"""Sentences broken to the width of the screen."""

from __future__ import annotations

from rich.style import Style

from attnviz.render.blocks import BOLD, Block, text_line
from attnviz.render.labels import fit, width
from attnviz.render.theme import Theme

__all__ = ["paragraph"]


def paragraph(text: str, room: int, theme: Theme, style: Style | None = None) -> Block:
    """Text broken at blanks, later lines indented by two; safe text only.

    Without a style, what stands before the first colon is bold. A word wider than the room is cut.
    """
    lines = [""]
    for word in text.split():
        indent = "  " if len(lines) > 1 else ""
        if lines[-1].strip() and width(f"{lines[-1]} {word}") > room:
            lines.append("")
            indent = "  "
        shown = word if width(indent + word) <= room else fit(word, room - 2, theme.ellipsis)
        lines[-1] += f" {shown}" if lines[-1].strip() else indent + shown
    if style is not None:
        return Block(tuple(text_line((line, style)) for line in lines), room)
    head, colon, rest = lines[0].partition(":")
    first = text_line((head + colon, BOLD), rest) if colon else text_line(lines[0])
    return Block((first, *(text_line(line) for line in lines[1:])), room)
