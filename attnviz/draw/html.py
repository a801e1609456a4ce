"""Writes a document as an HTML page that loads nothing: words, tables, and drawings as SVG."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Collection, Iterator
from functools import partial
from html import escape
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from attnviz.draw import document as doc
from attnviz.draw.drawing import Drawing
from attnviz.draw.figure import document_drawing, heading_words, part_drawings
from attnviz.draw.head_grid import SCRIPTS, grid_element
from attnviz.draw.map_figure import scale_figure
from attnviz.draw.palette import paper_table, to_hex
from attnviz.draw.picture_page import pictures_element
from attnviz.draw.svg import STYLE, safe, svg_document, svg_element
from attnviz.draw.table import bar_tint
from attnviz.draw.theme import VERDICTS

PAGE_STYLE = "\n" + (Path(__file__).parent / "page" / "document.css").read_text("utf-8")
"""The style sheet of every page of attnviz."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A second defence: even a token that was not escaped could load and run nothing."""


def document_html(document: doc.Document, palette: str) -> Iterator[str]:
    """Yield the lines of a whole HTML page; each drawing is a separate element.

    If the document has a ``page``, its heads are shown interactively, see ``draw.page``.
    palette: the name of the colours of cells.
    """
    from attnviz.draw.page.shell import joined_scripts, page_html

    if document.page is not None:
        written = partial(plain_parts, document, palette)
        yield from page_html(document, document.page(), palette, written)
        return
    title, parts = document.title or document.name, [*doc.leaves(doc.Group(document.groups))]
    grids = any(isinstance(part, doc.HeadGrid) for part in parts)
    script = joined_scripts(SCRIPTS) if grids else ""
    yield from _page_frame(document.name, script)
    yield f"<h1>{safe(document.finding or title)}</h1>"
    quoted = any(isinstance(part, doc.Quote) and part.content == title for part in parts)
    yield from [f"<p>{safe(title)}</p>"] if document.finding and not quoted else []
    names = {shown.name for part in parts if isinstance(part, doc.Maps) for shown in part.maps}
    for group in document.groups:
        yield from _group(group, palette, names)
    if document.explain:
        from attnviz.draw.terminal import page_reading

        yield "<h2>How to read this</h2>"
        for part in page_reading(document):
            yield from _part(part, palette, names)
    yield "</main>"
    yield from [f"<script>{script}</script>"] if script else []
    yield "</body>\n</html>"


_EMPTY_TITLE = re.compile(r"<th[^>]*></th>")
"""The title of a column without one: readers of a screen expect words in a title."""


def plain_parts(document: doc.Document, palette: str, heads: Collection[str]) -> Iterator[str]:
    """Yield as HTML, without styles, the parts that an interactive page does not show itself.

    These are texts, tables, and the explanation; notes and the first facts stand above the page.
    heads: names that link to a head of the page.
    """
    first, *others = document.groups
    below = first._replace(parts=[part for part in first.parts if not isinstance(part, doc.Facts)])
    for part in (part for group in [below, *others] for part in _written(group)):
        match part:
            case doc.Say(text) if re.split(r"\W", text)[0] in heads:  # of the parts below
                yield f"<h2>{safe(text.partition(':')[0])}</h2>"
                yield from _part(part, palette, ())
            case doc.Quote() | doc.Say() | doc.Facts():
                yield from _part(part, palette, ())
            case doc.Table():
                rows = [row._replace(bar=None, depth=0, tones=None) for row in part.rows]
                titles = [*filter(None, (column.title for column in part.columns))]
                about = ", ".join((titles or [row.cells[0].strip() for row in part.rows])[:5])
                title = " · ".join(filter(None, heading_words(part.title))) or about
                yield f"<details open><summary>{safe(title)}</summary>"
                for piece in _table(part._replace(rows=rows), palette, heads):
                    yield _EMPTY_TITLE.sub("<td></td>", piece)
                yield "</details>"
            case doc.Plot() | doc.Maps(texts=True) | doc.Pictures():
                yield from _heading(part)
                yield from map(_picture, part_drawings(part), repeat(palette))


def _picture(drawing: Drawing, palette: str) -> str:
    """Return a drawing with a style of its own, which the policy of the page does not touch."""
    content = b64encode(svg_document(drawing, palette).encode()).decode()
    address = f"data:image/svg+xml;base64,{content}"
    return (
        f'<div class="scroll" tabindex="0"><img alt="{safe(drawing.name)}" src="{address}"/></div>'
    )


def _written(group: doc.Group) -> Iterator[doc.Part]:
    """Yield the parts of a group, without facts that have no name and are about maps alone."""
    tables = any(isinstance(part, doc.Table) for part in group.parts)
    for part in group.parts:
        if isinstance(part, doc.Group):
            yield from _written(part)
        elif tables or not isinstance(part, doc.Facts) or part.name:
            yield part


def _page_frame(name: str, script: str) -> Iterator[str]:
    """Yield what precedes the content of a page. name: its title. script: that it may run."""
    from attnviz.draw.page.shell import digest

    allowed = f"; script-src {digest(script)}" if script else ""
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}{allowed}"/>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    yield f"<title>{safe(name)}</title>"
    yield f"<style>{PAGE_STYLE}{STYLE}</style>\n</head>\n<body><main>"


def _group(group: doc.Group, palette: str, names: Collection[str]) -> Iterator[str]:
    beside = group.beside is not None
    yield from ['<div class="beside">'] * beside
    for part in group.parts:
        members = _part(part, palette, names)
        yield from ["<div>", *members, "</div>"] if beside else members
    yield from ["</div>"] * beside


def _part(part: doc.Part | doc.Group, palette: str, names: Collection[str]) -> Iterator[str]:
    match part:
        case doc.Group():
            yield from _group(part, palette, names)
        case doc.Facts(words, name):
            written = " · ".join(text.strip() for text, _ in words)
            yield f"<p>{safe(f'{name}: {written}' if name else written)}</p>"
        case doc.Quote(name, content):
            yield f"<p>{safe(name)}: {safe(' '.join(content.split()))}</p>"
        case doc.Note(text):
            yield f"<p>{safe(text)}</p>"
        case doc.Say(text):
            head, colon, rest = text.partition(":")
            written = f"<b>{safe(head)}:</b>{safe(rest)}" if colon else safe(text)
            yield f'<p class="said">{written}</p>'
        case doc.Table():
            yield from _heading(part)
            yield from _table(part, palette, names)
        case doc.Maps():
            yield from _heading(part)
            yield from _maps(part, palette)
        case doc.Pictures(small=False):
            yield from _heading(part)
            yield from pictures_element(part, palette)
        case doc.HeadGrid() if part.cells:
            yield from _heading(part)
            yield from grid_element(part, palette)
        case _:
            yield from _heading(part)
            for drawing in part_drawings(part):
                yield f'<div class="scroll" tabindex="0">{svg_element(drawing, palette)}</div>'


def _heading(part: doc.Part) -> Iterator[str]:
    if isinstance(part, doc.Facts | doc.Quote | doc.Note | doc.Say):
        return
    heading, words = heading_words(part.title)
    yield from [f"<h2>{safe(heading)}</h2>"] if heading else []
    yield from [f"<p>{safe(words)}</p>"] if words else []


def _maps(part: doc.Maps, palette: str) -> Iterator[str]:
    if part.scale is not None:
        yield f'<div class="scroll">{svg_element(scale_figure(part.scale), palette)}</div>'
    if not part.maps:
        return
    yield '<div class="maps">'
    for shown, drawing in zip(part.maps, part_drawings(part), strict=True):
        yield f'<div id="{safe(shown.name)}">{svg_element(drawing, palette)}</div>'
    yield "</div>"


def _table(table: doc.Table, palette: str, names: Collection[str]) -> Iterator[str]:
    barred = any(row.bar is not None for row in table.rows)
    yield '<div class="scroll"><table>'
    if any(column.title for column in table.columns):
        titles = [
            f"<th>{safe(column.title)}</th>"
            if column.right and place
            else f'<th class="word">{safe(column.title)}</th>'
            for place, column in enumerate(table.columns)
        ]
        at = 1 if table.ranked else len(titles)
        titles[at:at] = [f'<th class="word">{safe(table.bars)}</th>'] * barred
        yield f"<thead><tr>{''.join(titles)}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        yield _row(row, table, palette, names, barred)
    yield "</tbody></table></div>"
    yield from [f"<p>{safe(table.more)}</p>"] if table.more else []


def _row(row: doc.Row, table: doc.Table, palette: str, names: Collection[str], barred: bool) -> str:
    looks = [row.tone.removeprefix("plain"), "ruled" * row.ruled, "open" if row.below else ""]
    look = " ".join(filter(None, looks))
    opening = f'<tr class="{look}">' if look else "<tr>"
    span = len(table.columns) + barred
    if len(row.cells) == 1:
        return f'{opening}<td class="word" colspan="{span}">{safe(row.cells[0])}</td></tr>'
    cells = []
    for place, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
        usual: doc.Tone = column.tone if row.tone == "plain" else "plain"
        tone: doc.Tone = (row.tones or {}).get(place, usual)
        classes = [*(["word"] if not column.right or not place else []), *["wraps"] * column.wraps]
        classes += [tone] if tone in ("strong", "faint", "skipped") else []
        look = f' class="{" ".join(classes)}"' if classes else ""
        if tone in VERDICTS and tone != "skipped":
            look += f' style="color:{VERDICTS[tone]};font-weight:600"'
        elif row.depth and not place:
            look += f' style="padding-left:{0.8 + 1.2 * row.depth:.1f}rem"'
        content = f'<a href="#{safe(cell)}">{safe(cell)}</a>' if cell in names else safe(cell)
        cells.append(f"<td{look}>{content}</td>")
    at = 1 if table.ranked else len(cells)
    cells[at:at] = [_bar(row, table, palette)] * barred
    drawn = f"{opening}{''.join(cells)}</tr>"
    if row.below:
        indent = f' style="padding-left:{0.8 + 1.2 * (row.depth + 1):.1f}rem"'
        below = "<br/>".join(map(safe, row.below))
        drawn += f'\n<tr class="below"><td class="word" colspan="{span}"{indent}>{below}</td></tr>'
    return drawn


def _bar(row: doc.Row, table: doc.Table, palette: str) -> str:
    value, limit = row.bar or (0.0, 0.0)
    if not value or not limit:
        return '<td class="bar"></td>'
    step, own = bar_tint(row, table)
    ink = to_hex(paper_table(own or palette)[step])
    long = 9 * min(abs(value) / limit, 1.0)
    return f'<td class="bar"><i style="width:{long:.2f}rem;background:{ink}"></i></td>'


# In a notebook --------------------------------------------------------------------------------

_TABLE_ROW = 30
_LEAST, _MOST, _PAGE = 360, 1000, 900


class Framed(NamedTuple):
    """A document as an element of a notebook. element: its HTML."""

    element: str

    def _repr_html_(self) -> str:
        return self.element


def framed_document(document: doc.Document, palette: str, high: int = 0) -> str:
    """Return a document as an element of a notebook that loads nothing.

    The page stands in a frame, so that its styles and those of the notebook do not affect each
    other. An interactive page and a grid of heads run scripts there, their own, in a frame without
    an origin; the page may offer files. The frame can be resized.
    high: its height in pixels; 0 for that of the content, within limits.
    """
    page = "".join(f"{piece}\n" for piece in document_html(document, palette))
    if document.page is not None:
        allowed, height = "allow-scripts allow-downloads", float(_PAGE)
    else:
        full = [part for group in document.groups if group.full for part in group.parts]
        lines = sum(len(part.rows) + 2 for part in full if isinstance(part, doc.Table))
        allowed = "allow-scripts" * ("<script>" in page)
        height = document_drawing(document).height + _TABLE_ROW * lines
    return (
        f'<iframe sandbox="{allowed}" title="{escape(document.name)}" srcdoc="{escape(page)}" '
        f'style="width: 100%; height: {high or int(min(max(height, _LEAST), _MOST))}px; border: 0; '
        'resize: vertical; overflow: auto"></iframe>'
    )
