"""A page: a title, facts and headed drawings, as one drawing or as HTML that loads nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from attnviz.draw.drawing import Drawing, Style, flow
from attnviz.draw.figure import text_drawing
from attnviz.draw.html import page_frame
from attnviz.draw.svg import safe, svg_element

__all__ = ["Page", "Section", "Table", "page_drawing", "page_html"]

_MAPS_ROOM = 1400.0
_MARGIN, _GAP, _MAP_GAP = 28.0, 20.0, 32.0


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


def page_drawing(page: Page) -> Drawing:
    """The whole page as one drawing."""
    title: list[tuple[Style, str]] = [("title", page.title)]
    parts = [text_drawing([*title, *(("faint", line) for line in page.facts)])]
    for section in page.sections:
        said: list[tuple[Style, str]] = [("heading", section.heading)] if section.heading else []
        said += [("faint", section.words)] if section.words else []
        parts += [text_drawing(said)] if said else []
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
    yield from page_frame(page.name)
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
