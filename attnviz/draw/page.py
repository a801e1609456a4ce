"""A page: a title, facts and headed drawings, as one drawing or as HTML that loads nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from attnviz.draw.drawing import Drawing, Item, Label, Style, flow
from attnviz.draw.labels import cut, visible
from attnviz.draw.svg import STYLE, safe, svg_element

__all__ = ["Page", "Section", "Table", "page_drawing", "page_html"]

_ROOM, _MAPS_ROOM = 1000.0, 1400.0
_MARGIN, _GAP, _MAP_GAP = 28.0, 20.0, 32.0
_LETTER: dict[Style, float] = {"title": 9.0, "heading": 7.5, "faint": 6.2}
_LINES: dict[Style, float] = {"title": 22.0, "heading": 20.0, "faint": 16.0}

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 2rem auto; padding: 0 1.5rem; max-width: 90rem; background: #ffffff; color: #1f2328;
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "Noto Sans CJK KR",
  "DejaVu Sans", sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2rem 0 .6rem; }
p { margin: .15rem 0; color: #667080; overflow-wrap: anywhere; }
a { color: inherit; }
.scroll { overflow-x: auto; }
.maps { display: flex; flex-wrap: wrap; gap: 2rem; }
.maps > div { max-width: 100%; overflow-x: auto; }
svg { display: block; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #d0d5dc;
  white-space: nowrap; }
th { position: sticky; top: 0; background: #ffffff; font-weight: 600; }
th.word, td.word { text-align: left; }
@media (prefers-color-scheme: dark) {
  body { background: #12161c; color: #e8ebf0; }
  p { color: #98a2b0; }
  th { background: #12161c; }
  th, td { border-color: #39414c; }
}
"""
"""What every page of attnviz looks like."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A second lock: even a token that got past the escaping could load and run nothing."""


@dataclass(frozen=True)
class Section:
    """Drawings under a heading and a line of words, each of which may be empty.

    beside: the drawings stand beside each other as far as there is room, not one below the other.
    anchors: what links to each of these.
    """

    heading: str
    words: str
    drawings: tuple[Drawing, ...]
    beside: bool = False
    anchors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Numbers and words, a row of cells each; ``words`` are the titles of what is no number."""

    heading: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[str] = ()


@dataclass(frozen=True)
class Page:
    """A title, what a reader must know, and the sections.

    name: what the page is, for those who cannot see it.
    tables: at the end of the page; no picture has them.
    """

    name: str
    title: str
    facts: Sequence[str]
    sections: Sequence[Section]
    tables: Sequence[Table] = ()


def _text(lines: list[tuple[Style, str]]) -> Drawing:
    """Lines of text below each other: facts are broken where they are too long, a title is cut."""
    items: list[Item] = []
    y = 0.0
    for style, line in lines:
        letters = int(_ROOM / _LETTER[style])
        pieces = textwrap.wrap(visible(line), letters) or [""]
        for piece in [cut(visible(line), letters)] if style == "title" else pieces:
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
        drawings = list(section.drawings)
        name = section.heading or "maps"
        parts += [flow(name, drawings, _MAPS_ROOM, _MAP_GAP)] if section.beside else drawings
    placed, y = [], _MARGIN
    for part in parts:
        placed.append((_MARGIN, y, part))
        y += part.height + (6 if part.name == "text" else _GAP)
    width = max(part.width for part in parts) + 2 * _MARGIN
    return Drawing(page.name, width, y - _GAP + _MARGIN, parts=tuple(placed))


def page_html(page: Page, palette: str) -> Iterator[str]:
    """The page as HTML that loads nothing, each drawing on its own."""
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    yield f"<title>{safe(page.name)}</title>"
    yield f"<style>{_STYLE}{STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{safe(page.title)}</h1>"
    yield from (f"<p>{safe(line)}</p>" for line in page.facts)
    for section in page.sections:
        if section.heading:
            yield f"<h2>{safe(section.heading)}</h2>"
        if section.words:
            yield f"<p>{safe(section.words)}</p>"
        yield from _drawn(section, palette)
    linked = {anchor for section in page.sections for anchor in section.anchors}
    for table in page.tables:
        yield f'<h2>{safe(table.heading)}</h2>\n<div class="scroll"><table>'
        yield f"<thead>{_row('th', table, table.titles, set())}</thead><tbody>"
        yield from (_row("td", table, row, linked) for row in table.rows)
        yield "</tbody></table></div>"
    yield "</body>\n</html>"


def _row(kind: str, table: Table, cells: Sequence[str], linked: Collection[str]) -> str:
    """A line of a table; a cell that names an anchor links to it."""
    drawn = []
    for title, cell in zip(table.titles, cells, strict=True):
        content = f'<a href="#{cell}">{cell}</a>' if cell in linked else safe(cell)
        opening = f'{kind} class="word"' if title in table.words else kind
        drawn.append(f"<{opening}>{content}</{kind}>")
    return f"<tr>{''.join(drawn)}</tr>"


def _drawn(section: Section, palette: str) -> Iterator[str]:
    elements = [svg_element(drawing, palette) for drawing in section.drawings]
    if not section.beside:
        yield from (f'<div class="scroll">{element}</div>' for element in elements)
        return
    opened = [f'<div id="{anchor}">' for anchor in section.anchors] or ["<div>"] * len(elements)
    yield '<div class="maps">'
    yield from (f"{tag}{element}</div>" for tag, element in zip(opened, elements, strict=True))
    yield "</div>"
