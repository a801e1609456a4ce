"""Draws the first screen as one slide of 16 to 9, in letters that the last row can read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.segment import Segment

from attnviz.draw.document import Document
from attnviz.draw.drawing import Drawing, Filled, Item, Label
from attnviz.draw.labels import width
from attnviz.draw.terminal import first_screen
from attnviz.draw.theme import Theme

_WIDE, _HIGH = 1024.0, 576.0
_COLUMNS, _LINES = 100, 28
"""Those of the screen, the letters of which are a thirtieth of the slide's height."""

_CELL, _LINE = 9.6, 19.2
_LEFT, _TOP = (_WIDE - _COLUMNS * _CELL) / 2, (_HIGH - _LINES * _LINE) / 2
_BASELINE = 14.5
_PAPER, _INK, _FAINT = "#16181d", "#e4e7eb", "#98a1ad"
_HALVES = {"▀": (0.0, 0.5), "▄": (0.5, 0.5), "█": (0.0, 1.0)}
"""The glyphs that are drawn as rectangles: where one begins in its line, and its height."""


def slide_drawing(document: Document, palette: str) -> Drawing:
    """Return a drawing of 16 to 9 with the document's short form. palette: the colours of cells."""
    shown = document.shown(explain=False, hints=False)
    screen = first_screen(shown, Theme(palette), _COLUMNS, _LINES)
    items: list[Item] = [Filled(0, 0, _WIDE, _HIGH, _PAPER)]
    for row, line in enumerate(screen.lines[:_LINES]):
        column = 0
        for segment in line:
            items += _segment(segment, _LEFT + column * _CELL, _TOP + row * _LINE)
            column += segment.cell_length
    return Drawing(document.name, _WIDE, _HIGH, tuple(items))


def _segment(segment: Segment, x: float, y: float) -> Iterator[Item]:
    """Yield the ground and the words of a part of a line. x, y: its upper left corner."""
    style = segment.style
    ground = style.bgcolor and style.bgcolor.triplet if style else None
    colour = style.color and style.color.triplet if style else None
    ink = colour.hex if colour else _FAINT if style and style.dim else _INK
    if ground:
        yield Filled(x, y, segment.cell_length * _CELL, _LINE, ground.hex)
    for found in re.finditer(r"[▀▄█]+|[^ ▀▄█]+", segment.text):
        at, words = x + width(segment.text[: found.start()]) * _CELL, found[0]
        if words[0] in _HALVES:
            for place, glyph in enumerate(words):
                top, tall = _HALVES[glyph]
                yield Filled(at + place * _CELL, y + top * _LINE, _CELL, tall * _LINE, ink)
        else:
            bold = bool(style and style.bold)
            yield Label(at, y + _BASELINE, words, "mono-bold" if bold else "mono", ink=ink)
