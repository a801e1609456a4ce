"""Headed drawings below each other: as one drawing, or as the body of a page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnviz.render.export.drawing import Drawing, Item, Label, Style
from attnviz.render.export.heads_html import PAGE_POLICY, PAGE_STYLE
from attnviz.render.export.svg import STYLE, safe, svg_element
from attnviz.render.labels import visible

__all__ = ["Page", "Section", "page_drawing", "page_html"]

_ROOM = 1000.0
_MARGIN, _GAP = 28.0, 20.0
_LETTER: dict[Style, float] = {"title": 9.0, "heading": 7.5, "faint": 6.2}
_LINES: dict[Style, float] = {"title": 22.0, "heading": 20.0, "faint": 16.0}


@dataclass(frozen=True)
class Section:
    """Drawings under a heading and a line of words, each of which may be empty."""

    heading: str
    words: str
    drawings: tuple[Drawing, ...]


@dataclass(frozen=True)
class Page:
    """A title, what a reader must know, and the sections.

    name: what the page is, for those who cannot see it.
    """

    name: str
    title: str
    facts: Sequence[str]
    sections: Sequence[Section]


def _text(lines: list[tuple[Style, str]]) -> Drawing:
    items: list[Item] = []
    y = 0.0
    for style, line in lines:
        for piece in textwrap.wrap(visible(line), int(_ROOM / _LETTER[style])) or [""]:
            y += _LINES[style]
            items.append(Label(0, y - 4, piece, style))
    return Drawing("text", _ROOM, y, tuple(items))


def page_drawing(page: Page) -> Drawing:
    """The whole page as one drawing."""
    title: list[tuple[Style, str]] = [("title", page.title)]
    parts = [_text([*title, *(("faint", line) for line in page.facts)])]
    for section in page.sections:
        said: list[tuple[Style, str]] = [("heading", section.heading)] if section.heading else []
        said += [("faint", section.words)] if section.words else []
        parts += [_text(said)] if said else []
        parts += section.drawings
    placed, y = [], _MARGIN
    for part in parts:
        placed.append((_MARGIN, y, part))
        y += part.height + (6 if part.name == "text" else _GAP)
    width = max(part.width for part in parts) + 2 * _MARGIN
    return Drawing(page.name, width, y - _GAP + _MARGIN, parts=tuple(placed))


def page_html(page: Page, palette: str, tables: Sequence[str] = ()) -> Iterator[str]:
    """The page as HTML that loads nothing, each drawing on its own, ``tables`` at the end."""
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}"/>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    yield f"<title>{safe(page.name)}</title>"
    yield f"<style>{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{safe(page.title)}</h1>"
    yield from (f"<p>{safe(line)}</p>" for line in page.facts)
    for section in page.sections:
        if section.heading:
            yield f"<h2>{safe(section.heading)}</h2>"
        if section.words:
            yield f"<p>{safe(section.words)}</p>"
        for drawing in section.drawings:
            yield f'<div class="scroll">{svg_element(drawing, palette)}</div>'
    yield from tables
    yield "</body>\n</html>"
