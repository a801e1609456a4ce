"""Writes a document as an HTML page that loads nothing: words, tables, and drawings as SVG."""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Collection, Iterator
from functools import partial
from html import escape
from itertools import repeat
from typing import NamedTuple

from attnviz.draw import document as doc
from attnviz.draw.drawing import Drawing
from attnviz.draw.figure import document_drawing, grid_legends, heading_words, part_drawings
from attnviz.draw.map_figure import scale_figure
from attnviz.draw.palette import on_grounds
from attnviz.draw.picture_figure import pictures_element
from attnviz.draw.svg import safe, svg_document, svg_element
from attnviz.draw.table import bar_tint

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src"
"""A second defence: even a token that was not escaped could load and run nothing."""

_SCRIPTS = ("words", "heads", "document")
"""The scripts of the interactive page's folder that every other page needs."""


def document_html(document: doc.Document, palette: str) -> Iterator[str]:
    """Yield the lines of a whole HTML page; each drawing is a separate element.

    If the document has a ``page``, its heads are shown interactively, see ``draw.page``.
    palette: the name of the colours of cells.
    """
    from attnviz.draw.page.shell import (
        digest,
        facts_lines,
        joined_scripts,
        page_html,
        source,
        style,
    )

    if document.page is not None:
        written = partial(plain_parts, document, palette)
        yield from page_html(document, document.page(), palette, written)
        return
    title, parts = document.title or document.name, [*doc.leaves(doc.Group(document.groups))]
    early, script = source("early.js"), joined_scripts(_SCRIPTS)
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>'
    policy = f"{_POLICY} {digest(early)} {digest(script)}"
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    yield '<meta name="color-scheme" content="light dark"/>'
    yield f"<title>{safe(document.name)}</title>"
    yield f"<style>{source('drawing.css')}{style('document.css')}</style>"
    yield f"<script>{early}</script>\n</head>\n<body><header>"
    yield f"<h1>{safe(document.finding or title)}</h1>"
    first, *others = document.groups
    above = [part for part in first.parts if isinstance(part, doc.Facts | doc.Quote | doc.Note)]
    below = first._replace(parts=[part for part in first.parts if part not in above])
    quoted = any(isinstance(part, doc.Quote) and part.content == title for part in parts)
    facts = [title] if document.finding and not quoted else []
    facts += [words for words in map(_words, above) if words]
    yield from ['<div id="facts">', *facts_lines(document, facts), "</div>"]
    yield '<div class="corner"><button id="theme" title="Light or dark (d)" '
    yield 'aria-label="Switch between light and dark">◐</button></div></header><main>'
    names = {shown.name for part in parts if isinstance(part, doc.Maps) for shown in part.maps}
    for group in [below, *others]:
        yield from _group(group, palette, names)
    yield f'</main><p id="told" role="status"></p><script>{script}</script>'
    yield "</body>\n</html>"


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
                yield from _table(part._replace(rows=rows), palette, heads)
                yield "</details>"
            case doc.Plot() | doc.Maps(texts=True) | doc.Pictures():
                yield from _heading(part)
                yield from map(_picture, part_drawings(part), repeat(palette))


def _picture(drawing: Drawing, palette: str) -> str:
    """Return a drawing with a style of its own, which the policy of the page does not touch."""
    content = b64encode(svg_document(drawing, palette).encode()).decode()
    address = f"data:image/svg+xml;base64,{content}"
    name = safe(drawing.name)
    reached = f'tabindex="0" role="group" aria-label="{name}"'  # by keys, where it scrolls
    return f'<div class="scroll" {reached}><img alt="{name}" src="{address}"/></div>'


def _written(group: doc.Group) -> Iterator[doc.Part]:
    """Yield the parts of a group, without facts that have no name and are about maps alone."""
    tables = any(isinstance(part, doc.Table) for part in group.parts)
    for part in group.parts:
        if isinstance(part, doc.Group):
            yield from _written(part)
        elif tables or not isinstance(part, doc.Facts) or part.name:
            yield part


def _group(group: doc.Group, palette: str, names: Collection[str]) -> Iterator[str]:
    """Yield the parts of a group; the tables that only pages show are folded under their titles."""
    beside = group.beside is not None
    yield from ['<div class="beside">'] * beside
    for part in group.parts:
        if group.full and isinstance(part, doc.Table) and part.title:
            heading, remarks = heading_words(part.title)
            yield f"<details><summary>{safe(heading)}</summary>"
            yield from [f"<p>{safe(remarks)}</p>"] if remarks else []
            yield from [*_table(part, palette, names), "</details>"]
        else:
            yield from _part(part, palette, names)
    yield from ["</div>"] * beside


def _words(part: doc.Part | doc.Group) -> str:
    """Return the words of a part that is nothing else, in one line."""
    match part:
        case doc.Facts(words, name):
            written = " · ".join(text.strip() for text, _ in words)
            return f"{name}: {written}" if name else written
        case doc.Quote(name, content):
            return f"{name}: {' '.join(content.split())}"
        case doc.Note(text):
            return text
    return ""


def _part(part: doc.Part | doc.Group, palette: str, names: Collection[str]) -> Iterator[str]:
    match part:
        case doc.Group():
            yield from _group(part, palette, names)
        case doc.Facts() | doc.Quote() | doc.Note():
            yield f'<p class="soft">{safe(_words(part))}</p>'
        case doc.Say(text):
            head, colon, rest = text.partition(":")
            yield f"<p><b>{safe(head)}:</b>{safe(rest)}</p>" if colon else f"<p>{safe(text)}</p>"
        case _:
            yield from ["<section>", *_heading(part), *_shown(part, palette, names), "</section>"]


def _shown(
    part: doc.Table | doc.HeadGrid | doc.Maps | doc.Pictures | doc.Arcs | doc.Plot,
    palette: str,
    names: Collection[str],
) -> Iterator[str]:
    """Yield what a part shows below its heading."""
    match part:
        case doc.Table():
            yield from _table(part, palette, names)
        case doc.Maps():
            yield from _maps(part, palette)
        case doc.Pictures(small=False):
            yield from pictures_element(part, palette)
        case doc.HeadGrid() if part.cells:
            yield from grid_element(part, palette)
        case _:
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
            _title(column.title, not (column.right and place))
            for place, column in enumerate(table.columns)
        ]
        at = 1 if table.ranked else len(titles)
        titles[at:at] = [_title(table.bars, True)] * barred
        yield f"<thead><tr>{''.join(titles)}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        yield _row(row, table, palette, names, barred)
    yield "</tbody></table></div>"
    yield from [f"<p>{safe(table.more)}</p>"] if table.more else []


def _title(title: str, word: bool) -> str:
    """Return the title of a column; a cell without words is no title, as readers expect some."""
    kind = ' class="word"' * word
    return f'<th scope="col"{kind}>{safe(title)}</th>' if title else "<td></td>"


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
        classes += [tone] if tone != "plain" else []
        look = f' class="{" ".join(classes)}"' if classes else ""
        if row.depth and not place:
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
    long = 9 * min(abs(value) / limit, 1.0)
    look = f"width:{long:.2f}rem;{on_grounds('background', step, own or palette)}"
    return f'<td class="bar"><i style="{look}"></i></td>'


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
        allowed = "allow-scripts"
        height = document_drawing(document).height + _TABLE_ROW * lines
    return (
        f'<iframe sandbox="{allowed}" title="{escape(document.name)}" srcdoc="{escape(page)}" '
        f'style="width: 100%; height: {high or int(min(max(height, _LEAST), _MOST))}px; border: 0; '
        'resize: vertical; overflow: auto"></iframe>'
    )


# A grid of heads: a table, the cells of which a script puts in order --------------------------


def grid_element(grid: doc.HeadGrid, palette: str) -> Iterator[str]:
    """Yield the table of a grid, and below it what its colours mean."""
    names = [*dict.fromkeys(name for cell in grid.cells.values() for name in cell.values)]
    yield f'<div class="scroll"><table class="heads" data-measures="{safe(json.dumps(names))}">'
    titles = "".join(f'<th scope="col">{safe(name)}</th>' for name in grid.columns)
    yield f"<thead><tr><td></td>{titles}</tr></thead><tbody>"
    for row, name in enumerate(grid.rows):
        cells = [_cell(grid, (row, column), names, palette) for column in range(len(grid.columns))]
        yield f'<tr><th scope="row">{safe(name)}</th>{"".join(cells)}</tr>'
    yield "</tbody></table></div>"
    for legend in grid_legends(grid):
        yield f'<div class="scroll">{svg_element(legend, palette)}</div>'


def _cell(grid: doc.HeadGrid, place: tuple[int, int], names: list[str], palette: str) -> str:
    cell = grid.cells.get(place)
    if cell is None or math.isnan(cell.strength):
        return "<td></td>"
    name = grid.name(place)
    tip = " · ".join((cell.tip or f"{name}: {cell.content}").split("\n"))
    look = [f"border-color:#{cell.hue}"] * bool(cell.hue)
    if cell.tint is not None:
        step, own = cell.tint.step, cell.tint.palette or palette
        look += [on_grounds("background-color", step, own), on_grounds("color", step, own, True)]
    numbers = [f"{cell.values.get(measure, math.nan):.6g}" for measure in names]
    facts = {
        "title": tip if cell.label in tip else f"{tip} · {cell.label}",
        "style": ";".join(look),
        "data-name": name,
        "data-label": cell.label,
        "data-values": ",".join("" if number == "nan" else number for number in numbers),
    }
    written = "".join(f' {key}="{safe(value)}"' for key, value in facts.items() if value)
    return f"<td{written}>{safe(cell.content if grid.written else cell.letter)}</td>"
