"""Writes a document as an HTML page that loads nothing: words, tables, and drawings as SVG.

A document with maps becomes an interactive page. Its scripts and style sheets stand in the folder
``page``, one idea each, and are joined when a page is written; the scripts are packed, and
``unpack.js`` hands them to the browser as they are there. The page's policy names them by their
digests, so that nothing else can run or load.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from html import escape
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.drawing import Drawing
from attnviz.draw.figure import document_drawing, grid_legends, heading_words, part_drawings
from attnviz.draw.map_figure import picture_panes, pictures_element, scale_figure
from attnviz.draw.maps import cell_steps
from attnviz.draw.page.data import Page, PageCapture, page_data
from attnviz.draw.palette import DIVERGING, on_grounds
from attnviz.draw.provenance import share
from attnviz.draw.svg import png_uri, safe, svg_document, svg_element
from attnviz.draw.table import bar_tint
from attnviz.draw.terminal import page_reading

_HERE = Path(__file__).parent / "page"

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src"
"""A second defence: even a token that was not escaped could load and run nothing."""

_SCRIPTS = ("words", "heads", "document")
"""The scripts that every page needs which is not interactive."""

SCRIPTS = (
    *("words", "capture", "state", "colours", "grid", "head", "text", "picture", "steps", "beside"),
    *("canvas", "map", "lines", "vectors", "table", "files", "pointer", "keys", "start"),
)
"""The scripts of the interactive page in the order in which they are joined."""

_COMMENTS = re.compile(r"^\s*(/\*(?:(?!\*/).)*\*/|// [^\n]*)$\n?", re.M | re.S)
_AROUND = re.compile(r"\s*([{};,]|:(?=\s))\s*")  # spaces that a style sheet does not need
_ENDS = re.compile(r"</(script|style)|<!--|<script", re.I)
_DARK = re.compile(r'@media screen *\{(:root)\[data-theme="dark"\](\{[^}]*\})\}')
_FACTS = 3  # lines above the picture: a phone shows few
_SIDE, _ACROSS = 40, 1600  # pixels of a map in the static picture, and of the whole picture


def document_html(document: doc.Document, palette: str) -> Iterator[str]:
    """Yield the lines of a whole HTML page, which is interactive if the document has a ``page``."""
    if document.page is not None:
        yield _page(document, document.page(), palette)
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
    facts += [part.line for part in above if part.line]
    yield from ['<div id="facts">', *_facts_lines(document, facts), "</div>"]
    yield '<div class="corner"><button id="theme" title="Light or dark (d)" '
    yield 'aria-label="Switch between light and dark">◐</button></div></header><main>'
    names = {shown.name for part in parts if isinstance(part, doc.Maps) for shown in part.maps}
    for group in [below, *others]:
        yield from _group(group, palette, names)
    yield f'</main><p id="told" role="status"></p><script>{script}</script>'
    yield "</body>\n</html>"


def _facts_lines(
    document: doc.Document, facts: Sequence[str], notes: Sequence[str] = ()
) -> Iterator[str]:
    """Yield what stands below the finding of every page: what was measured, how, and by what.

    facts: of which the first few are always seen. notes: which a reader must know.
    """
    made = [f"Made by attnviz {document.command}"] if document.command else []
    yield from map(_soft, [*facts[:_FACTS], *made, *notes])
    if more := "".join(map(_soft, facts[_FACTS:])):
        yield f"<details><summary>How it was measured</summary>{more}</details>"
    if reading := "".join(_soft(part.text) for part in page_reading(document)):
        opened = ' open=""' * bool(document.explain)
        yield f"<details{opened}><summary>How to read this</summary>{reading}</details>"


def _soft(text: str) -> str:
    return f'<p class="soft">{safe(text)}</p>'


# The interactive page --------------------------------------------------------------------------


def _page(document: doc.Document, page: Page, palette: str) -> str:
    """Return the interactive page of a document, whose maps and head grids it shows itself."""
    data, blocks, captures, left_out = page_data(page, palette, picture_panes)
    heads = {head.name for capture in captures for head in capture.heads}
    parts = [(number, part) for number, group in enumerate(document.groups) for part in group.parts]
    facts = [part.line for number, part in parts if isinstance(part, doc.Facts) and not number]
    notes = [part.text for _, part in parts if isinstance(part, doc.Note)]
    filled = {
        "policy": (
            f"default-src 'none'; script-src {digest(source('early.js'))} "
            f"{digest(source('unpack.js'))} {digest(joined_scripts(SCRIPTS))}; style-src "
            f"{digest(style('page.css'))}; img-src data: blob:; base-uri 'none'; form-action 'none'"
        ),
        "name": safe(document.name),
        "style": style("page.css"),
        "early": source("early.js"),
        "finding": safe(document.finding or document.title),
        "guide": _guide(captures, page, document.finding),
        "facts": "\n".join(_facts_lines(document, facts, [*notes, *left_out])),
        "pictures": "\n".join(_still(capture, palette) for capture in captures),
        "document": "\n".join(plain_parts(document, palette, heads)),
        "data": data,
        "blocks": "\n".join(
            f'<script type="text/plain" id="block-{number}">{text}</script>'
            for number, text in enumerate(blocks)
        ),
        "code": packed_scripts(),
        "unpack": source("unpack.js"),
    }
    template = (_HERE / "page.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], template).rstrip("\n")


def _still(capture: PageCapture, palette: str) -> str:
    """Return a small picture of all maps, a row for each layer, where scripts do not run."""
    columns = max(head.head for head in capture.heads) + 1
    layers = sorted({head.layer for head in capture.heads})
    side = max(8, min(_SIDE, _ACROSS // columns))
    tokens = max(len(capture.queries), len(capture.keys))
    step = -(-tokens // side)
    times = max(1, side * step // tokens)
    sheet = np.full((len(layers) * (side + 2), columns * (side + 2)), -1)
    for head, weights in zip(capture.heads, capture.weights, strict=True):
        steps = cell_steps(weights, (step, step), capture.causal, capture.limit)
        drawn = steps.repeat(times, 0).repeat(times, 1)
        y, x = layers.index(head.layer) * (side + 2), head.head * (side + 2)
        sheet[y : y + drawn.shape[0], x : x + drawn.shape[1]] = drawn
    colours = DIVERGING if capture.limit else palette
    title = f"<h2>{safe(capture.name)}</h2>" if capture.name else ""
    words = f"Attention maps of {len(capture.heads)} heads, one row for each layer"
    return f'{title}<img alt="{words}" src="{png_uri(sheet, colours)}"/>'


def _guide(captures: Sequence[PageCapture], page: Page, finding: str) -> str:
    """Return a line that says what the page shows; empty if its first map is not one of weights."""
    capture = captures[0]
    if capture.limit or not capture.of_heads:
        return ""
    if capture.keys.layout is not None and capture.keys.layout.pictures:
        return _soft(
            "The fuller a patch's colour, the more of the attention of one token (query) goes to "
            "it; a line holds 60% of it. Point at a patch to look from there. The model saw what "
            "lies under the colours."
        )
    shown = "Each square is the map of one head: a row per token (query), stronger colour where "
    shown += "more attention goes to the column's token (key)."
    for look in page.look[:1]:
        name = page.captures[look.capture].heads[look.head].name
        maps = zip(capture.heads, capture.weights, strict=True)
        kept = [weights for head, weights in maps if head.name == name]
        if look.capture == 0 and kept and len(capture.queries) > look.query:
            weight = float(kept[0][look.query, look.key])
            even = 1 / (look.query + 1 if capture.causal else len(capture.keys))
            if math.isfinite(weight) and share(weight) in finding:
                shown += f" {share(weight)} means {weight:.0%} of its attention; "
                shown += f"uniform attention: {share(even)}."
    if re.search(r"\busual\b", finding):
        shown += " Usual: the mean weight of the head's links at that distance."
    return _soft(shown)


@cache
def source(name: str) -> str:
    """Return a file of this folder as pages contain it: without comments and needless spaces."""
    text = _COMMENTS.sub("", (_HERE / name).read_text("utf-8"))
    text = "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip())
    if name.endswith(".css"):
        text = _AROUND.sub(r"\1", text)
    if _ENDS.search(text):
        raise ValueError(f"{name} would end its element")
    return text


@cache
def style(*names: str) -> str:
    """Return the style sheet of a page: what all pages share, and files of this folder.

    Where no script chooses between light and dark, the reader's system does.
    """
    chosen = r"\g<0>@media screen and (prefers-color-scheme:dark){\1:not([data-theme])\2}"
    return _DARK.sub(chosen, source("theme.css")) + "".join(map(source, names))


@cache
def joined_scripts(names: Sequence[str]) -> str:
    """Return the scripts of this folder with these names as one script."""
    return '"use strict";\n' + "".join(source(f"{name}.js") for name in names)


@cache
def packed_scripts() -> str:
    """Return all scripts of the interactive page, compressed by zlib, as base64."""
    return base64.b64encode(zlib.compress(joined_scripts(SCRIPTS).encode(), 9)).decode("ascii")


def digest(text: str) -> str:
    """Return the hash of a script or style by which a page's security policy allows it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Parts ------------------------------------------------------------------------------------------


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
                yield from map(_image, part_drawings(part), repeat(palette))


def _image(drawing: Drawing, palette: str) -> str:
    """Return a drawing with a style of its own, which the policy of the page does not touch."""
    content = base64.b64encode(svg_document(drawing, palette).encode()).decode()
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


def _part(part: doc.Part | doc.Group, palette: str, names: Collection[str]) -> Iterator[str]:
    match part:
        case doc.Group():
            yield from _group(part, palette, names)
        case doc.Facts() | doc.Quote() | doc.Note():
            yield _soft(part.line)
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
            _title(column.title, not (column.right and number))
            for number, column in enumerate(table.columns)
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
    # A cell without words is no title, as readers expect some.
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
    for number, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
        usual: doc.Tone = column.tone if row.tone == "plain" else "plain"
        tone: doc.Tone = (row.tones or {}).get(number, usual)
        classes = [*(["word"] if not column.right or not number else []), *["wraps"] * column.wraps]
        classes += [tone] if tone != "plain" else []
        look = f' class="{" ".join(classes)}"' if classes else ""
        if row.depth and not number:
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


def _cell(grid: doc.HeadGrid, position: tuple[int, int], names: list[str], palette: str) -> str:
    cell = grid.cells.get(position)
    if cell is None or math.isnan(cell.strength):
        return "<td></td>"
    name = grid.name(position)
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
