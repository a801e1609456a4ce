"""Writes a document with maps as the interactive page: its words, its data, and the scripts.

The scripts and the style sheet stand in this folder, one idea each, and are joined when a page is
written; the scripts are packed, and ``unpack.js`` hands them to the browser as they are here. The
page's policy names them by their digests, so that nothing else can run or load.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.maps import cell_steps
from attnviz.draw.page.data import Page, PageCapture, page_data
from attnviz.draw.palette import DIVERGING
from attnviz.draw.picture_figure import picture_panes
from attnviz.draw.provenance import share
from attnviz.draw.svg import png_uri, safe
from attnviz.draw.terminal import page_reading

_HERE = Path(__file__).parent

SCRIPTS = (
    *("words", "capture", "state", "colours", "grid", "head", "text", "picture", "steps", "beside"),
    *("canvas", "map", "lines", "vectors", "table", "files", "pointer", "keys", "start"),
)
"""The scripts in the order in which they are joined."""

_COMMENTS = re.compile(r"^\s*(/\*(?:(?!\*/).)*\*/|// [^\n]*)$\n?", re.M | re.S)
_AROUND = re.compile(r"\s*([{};,]|:(?=\s))\s*")  # spaces that a style sheet does not need
_ENDS = re.compile(r"</(script|style)|<!--|<script", re.I)
_FACTS = 3  # lines above the picture: a phone shows few
_SIDE, _ACROSS = 40, 1600  # pixels of a map in the static picture, and of the whole picture


def page_html(
    document: doc.Document,
    page: Page,
    palette: str,
    written: Callable[[Collection[str]], Iterable[str]],
) -> Iterator[str]:
    """Yield the interactive page of a document, whose maps and head grids it shows itself.

    palette: of the picture for readers without scripts. written: returns the other parts, given
    the names of heads to link to.
    """
    data = page_data(page, palette, picture_panes)
    heads = {head.name for capture in data.captures for head in capture.heads}
    facts, notes = _facts(document)
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
        "guide": _guide(data.captures, page, document.finding),
        "facts": "\n".join(facts_lines(document, facts, [*notes, *data.notes])),
        "pictures": "\n".join(_picture(capture, palette) for capture in data.captures),
        "document": "\n".join(written(heads)),
        "data": data.json,
        "blocks": "\n".join(
            f'<script type="text/plain" id="block-{number}">{text}</script>'
            for number, text in enumerate(data.blocks)
        ),
        "code": packed_scripts(),
        "unpack": source("unpack.js"),
    }
    template = (_HERE / "page.html").read_text("utf-8")
    yield re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], template).rstrip("\n")


def facts_lines(
    document: doc.Document, facts: Sequence[str], notes: Sequence[str] = ()
) -> Iterator[str]:
    """Yield what stands below the finding of every page: what was measured, how, and by what.

    facts: of which the first few are always seen. notes: which a reader must know.
    """
    made = [f"Made by attnviz {document.command}"] if document.command else []
    yield from map(_line, [*facts[:_FACTS], *made, *notes])
    if more := "".join(map(_line, facts[_FACTS:])):
        yield f"<details><summary>How it was measured</summary>{more}</details>"
    if reading := "".join(_line(part.text) for part in page_reading(document)):
        opened = ' open=""' * bool(document.explain)
        yield f"<details{opened}><summary>How to read this</summary>{reading}</details>"


def _line(text: str) -> str:
    return f'<p class="soft">{safe(text)}</p>'


def _guide(captures: Sequence[PageCapture], page: Page, finding: str) -> str:
    """Return a line that says what the page shows, with the number of the first place to look at.

    It is empty where the first map is no map of weights.
    """
    capture = captures[0]
    if capture.limit or not capture.of_heads:
        return ""
    if capture.keys.layout is not None and capture.keys.layout.pictures:
        return _line(
            "The fuller a patch's colour, the more of the attention of one token (query) goes to "
            "it; a line holds 60% of it. Point at a patch to look from there. The model saw what "
            "lies under the colours."
        )
    shown = "Each square is the map of one head: a row per token (query), stronger colour where "
    shown += "more attention goes to the column's token (key)."
    for query, weight in _first_weight(captures, page):
        even = 1 / (query + 1 if capture.causal else len(capture.keys))
        if share(weight) in finding:
            shown += f" {share(weight)} means {weight:.0%} of its attention; "
            shown += f"uniform attention: {share(even)}."
    if re.search(r"\busual\b", finding):
        shown += " Usual: the mean weight of the head's links at that distance."
    return _line(shown)


def _first_weight(captures: Sequence[PageCapture], page: Page) -> Iterator[tuple[int, float]]:
    """Yield the query and the weight of the first place to look at, if it is shown."""
    for look in page.look[:1]:
        name = page.captures[look.capture].heads[look.head].name
        places = [at for at, head in enumerate(captures[0].heads) if head.name == name]
        if look.capture == 0 and places and len(captures[0].queries) > look.query:
            weight = float(captures[0].weights[places[0]][look.query, look.key])
            yield from [(look.query, weight)] if math.isfinite(weight) else []


def _facts(document: doc.Document) -> tuple[list[str], list[str]]:
    """Return the lines that say what was measured, and the notes that a reader must know."""
    lines: list[str] = []
    notes: list[str] = []
    for place, group in enumerate(document.groups):
        for part in group.parts:
            if isinstance(part, doc.Facts) and not place:
                words = " · ".join(text.strip() for text, _ in part.words)
                lines.append(f"{part.name}: {words}" if part.name else words)
            elif isinstance(part, doc.Note):
                notes.append(part.text)
    return lines, notes


# Sources -------------------------------------------------------------------------------------


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


_DARK = re.compile(r'@media screen *\{(:root)\[data-theme="dark"\](\{[^}]*\})\}')


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
    """Return all scripts of a page, compressed by zlib, as base64."""
    return base64.b64encode(zlib.compress(joined_scripts(SCRIPTS).encode(), 9)).decode("ascii")


def digest(text: str) -> str:
    """Return the hash of a script or style by which a page's security policy allows it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Without scripts -----------------------------------------------------------------------------


def _picture(capture: PageCapture, palette: str) -> str:
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
