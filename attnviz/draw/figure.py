"""Draws a document as one drawing, and each of its parts other than words as a drawing."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from rich.segment import Segment

from attnviz.draw import document as doc
from attnviz.draw import map_figure
from attnviz.draw.arcs import arcs_figure
from attnviz.draw.drawing import (
    Anchor,
    Cells,
    Drawing,
    Filled,
    Item,
    Label,
    Stroke,
    Style,
    Tip,
    flow,
    tinted,
)
from attnviz.draw.drawing import column as below
from attnviz.draw.labels import cut, visible, width
from attnviz.draw.picture_figure import picture_figures
from attnviz.draw.plot_figure import plot_figure
from attnviz.draw.table import bar_tint
from attnviz.draw.terminal import first_screen
from attnviz.draw.theme import VERDICTS, Theme

_ROOM, _MAPS_ROOM = 1000.0, 1400.0
_MARGIN, _GAP, _MAP_GAP, _SMALL_GAP = 28.0, 20.0, 32.0, 14.0
_SECTION_GAP = 12.0
"""The pixels between the drawings below one heading; sections stand side by side if they fit."""
_LETTER: dict[Style, float] = {"title": 9.0, "heading": 7.5, "text": 6.6, "faint": 6.2}
_LINES: dict[Style, float] = {"title": 22.0, "heading": 20.0, "text": 17.0, "faint": 16.0}


def document_drawing(document: doc.Document) -> Drawing:
    """Return the whole document as one figure, without the parts that only pages show."""
    lines: list[tuple[Style, str]] = [("title", document.title), ("heading", document.finding)]
    heading = [line for line in lines if line[1]]
    drawings = [text_drawing(heading)] if heading else []
    drawings += [drawing for group in document.groups for drawing in _group(group)]
    sections: list[list[Drawing]] = [[]]
    for drawing in drawings:
        first = drawing.items[0] if drawing.items else None
        if isinstance(first, Label) and first.style == "heading" and len(sections[0]):
            sections.append([])
        sections[-1].append(_tight(drawing) if len(sections) > 1 else drawing)
    above, *others = (below("section", section, _SECTION_GAP) for section in sections)
    rest = flow("sections", others, _MAPS_ROOM, _MAP_GAP)
    whole = below("document", [above, rest], _GAP)
    across, tall = whole.width + 2 * _MARGIN, whole.height + 2 * _MARGIN
    return Drawing(document.name, across, tall, parts=((_MARGIN, _MARGIN, whole),))


def text_drawing(lines: Sequence[tuple[Style, str]]) -> Drawing:
    """Draw lines of text below each other; long facts are broken, a long title is cut.

    lines: the style and the content of each line.
    """
    items: list[Item] = []
    y = 0.0
    for style, line in lines:
        letters = int(_ROOM / _LETTER[style])
        pieces = textwrap.wrap(visible(line), letters) or [""]
        for piece in [cut(visible(line), letters)] if style == "title" else pieces:
            y += _LINES[style]
            items.append(Label(0, y - 4, piece, style))
    return Drawing("text", _ROOM, y, tuple(items))


def _tight(drawing: Drawing) -> Drawing:
    """Return a drawing of words cut to the width of its longest line; others unchanged."""
    if drawing.name != "text":
        return drawing
    lines = [item for item in drawing.items if isinstance(item, Label)]
    wide = max((_LETTER[line.style] * width(line.content) for line in lines), default=0.0)
    return replace(drawing, width=wide)


def heading_words(title: doc.Words) -> tuple[str, str]:
    """Return a title's heading, and its remarks joined to one string."""
    if not title:
        return "", ""
    return title[0][0], " · ".join(text for text, _ in title[1:])


def _group(group: doc.Group) -> Iterator[Drawing]:
    if group.full:
        return
    members = [list(_member(part)) for part in group.parts]
    if group.beside is None:
        yield from itertools.chain(*members)
        return
    if group.beside.tight:
        members = [[_tight(drawing) for drawing in member] for member in members]
    if stacks := [below(member[0].name, member, 8) for member in members if member]:
        yield flow("side by side", stacks, _MAPS_ROOM, _MAP_GAP)


def _member(part: doc.Part | doc.Group) -> Iterator[Drawing]:
    match part:
        case doc.Group():
            yield from _group(part)
        case doc.Facts(words, name):
            words_line = " · ".join(text.strip() for text, _ in words)
            yield text_drawing([("faint", f"{name}: {words_line}" if name else words_line)])
        case doc.Quote(name, content):
            yield text_drawing([("faint", f"{name}: {' '.join(content.split())}")])
        case doc.Note(text):
            yield text_drawing([("faint", text)])
        case doc.Say(text):
            yield text_drawing([("text", text)])
        case _:
            heading, remarks = heading_words(part.title)
            lines: list[tuple[Style, str]] = [("heading", heading)] if heading else []
            lines += [("faint", remarks)] if remarks else []
            drawings = part_drawings(part)
            if lines and drawings:
                yield text_drawing(lines)
            yield from _arranged(part, drawings)


def _arranged(part: doc.Part, drawings: list[Drawing]) -> list[Drawing]:
    if not isinstance(part, doc.Maps | doc.Pictures):
        return drawings
    scale = [map_figure.scale_figure(part.scale)] if part.scale is not None else []
    if isinstance(part, doc.Pictures) or part.small is None:
        return [*scale, flow("maps", drawings, _MAPS_ROOM, _MAP_GAP)] if drawings else scale
    most = part.across or max(int(_ROOM / (drawings[0].width + _SMALL_GAP)), 1)
    rows = [drawings[start : start + most] for start in range(0, len(drawings), most)]
    lines = [flow("maps", row, math.inf, _SMALL_GAP) for row in rows]
    words = map_figure.pooling_words(part.maps[0])
    pooled = [text_drawing([("faint", f"small maps {words}")])] if words else []
    return [*scale, below("small maps", lines, 10), *pooled]


def part_drawings(
    part: doc.Table | doc.HeadGrid | doc.Maps | doc.Pictures | doc.Arcs | doc.Plot,
) -> list[Drawing]:
    """Return a drawing for each map or large picture, else a single one; [] for an empty part."""
    match part:
        case doc.Table():
            return [_table(part)] if part.rows else []
        case doc.HeadGrid():
            return [_grid(part)] if part.cells else []
        case doc.Arcs():
            return [arcs_figure(part)]
        case doc.Plot():
            return [plot_figure(part)] if part.curves or part.histograms else []
        case doc.Pictures():
            return picture_figures(part)
        case doc.Maps():
            if part.texts:
                return [map_figure.text_figure(shown) for shown in part.maps]
            if part.small is not None:
                return [map_figure.small_map_figure(shown) for shown in part.maps]
            written = all(
                map(map_figure.room_for_values, part.maps)
            )  # all maps have values, or none has
            return [map_figure.map_figure(shown, written) for shown in part.maps]


# Tables ---------------------------------------------------------------------------------------

_ROW, _CELL_GAP, _BAR = 20.0, 18.0, 180.0
_DIGIT = 6.7
_INDENT = 14.0
_LONGEST_CELL = 84


def _table(table: doc.Table) -> Drawing:
    """Draw a table; bars follow the names in ranked tables, else they are the last column."""
    rows = [row for row in table.rows if len(row.cells) > 1]
    barred = any(row.bar is not None for row in rows)
    x, starts, ends = 0.0, [], []
    for place, column in enumerate(table.columns):
        texts = [column.title, *(cut(visible(row.cells[place]), _LONGEST_CELL) for row in rows)]
        depth = max((row.depth for row in rows), default=0) * _INDENT * (place == 0)
        wide = max(map(width, texts)) * _DIGIT + depth
        starts.append(x)
        ends.append(x + wide)
        x += wide + _CELL_GAP
        if place == 0 and barred and table.ranked:
            x += _BAR + _CELL_GAP
    bar_at = ends[0] + _CELL_GAP if table.ranked else x
    across = x + (_BAR if barred and not table.ranked else 0)
    items: list[Item] = []
    y = 0.0
    if any(column.title for column in table.columns):
        for column, start, end in zip(table.columns, starts, ends, strict=True):
            side: Anchor = "end" if column.right else "start"
            at = end if column.right else start
            items.append(Label(at, y + 14, column.title, "faint", side))
        items += [Label(bar_at, y + 14, table.bars, "faint")] * barred
        y += _ROW
    for row in table.rows:
        y += 10 if row.spaced or (row.ruled and len(row.cells) == 1) else 0
        if row.ruled:
            items.append(Stroke([(0, y + 1), (x - _CELL_GAP, y + 1)]))
        items += _row(row, table, (starts, ends), y)
        value, limit = row.bar or (0.0, 0.0)
        if value:
            long = _BAR * min(abs(value) / limit, 1.0) if limit else 0.0
            items.append(tinted(bar_at, y + 4, max(long, 1.0), _ROW - 8, bar_tint(row, table)))
        y += _ROW
        for text in row.below:
            for piece in textwrap.wrap(visible(text), 150):
                items.append(Label(_INDENT * (row.depth + 1), y + 12, piece, "faint"))
                y += _ROW - 4
    if table.more:
        items.append(Label(0, y + 14, table.more, "faint"))
        y += _ROW
    name = heading_words(table.title)[0] or "table"
    return Drawing(name, max(across, 1.0), max(y, 1.0), tuple(items))


def _row(
    row: doc.Row, table: doc.Table, sides: tuple[Sequence[float], Sequence[float]], y: float
) -> Iterator[Item]:
    if len(row.cells) == 1:
        yield Label(0, y + 14, row.cells[0], "name")
        return
    for place, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
        tone = row.tone if row.tone != "plain" else column.tone
        tone = (row.tones or {}).get(place, tone)
        style: Style = "name" if tone == "strong" or (table.ranked and not place) else "text"
        style = "faint" if tone in ("faint", "skipped") else style
        ink = VERDICTS.get(tone)
        anchor: Anchor = "end" if column.right else "start"
        x = sides[1][place] if column.right else sides[0][place]
        x += row.depth * _INDENT * (place == 0)
        yield Label(x, y + 14, cut(visible(cell), _LONGEST_CELL), style, anchor, ink=ink)


# Grids ----------------------------------------------------------------------------------------

_TALL, _NARROW = 24.0, 20.0
_KEY_ROOM = 900.0


def _grid(grid: doc.HeadGrid) -> Drawing:
    """Return the drawing of a grid of coloured cells with tips, and with texts if cells are few."""
    texts, written = [cell.content for cell in grid.cells.values()], grid.written
    longest = max(width(name) for name in grid.rows)
    left = max(longest * _DIGIT + 10, 30.0)
    names = max(map(width, grid.columns)) * _DIGIT + 8
    letters = [width(each.letter) * 6.2 + 6 for each in grid.cells.values()]
    cell = max([_NARROW, *letters])
    if written:
        cell = max([cell, names, *(width(text) * 6.2 + 12 for text in texts)])
    x0, y0 = left, 26.0
    across, down = len(grid.columns) * cell, len(grid.rows) * _TALL
    items: list[Item] = [Cells(x0, y0, across, down, np.full((1, 1), -1))]
    every = max(math.ceil(names / cell), 1)
    for place in range(0, len(grid.columns), every):
        middle = x0 + (place + 0.5) * cell
        items.append(Label(middle, y0 - 8, grid.columns[place], "axis", "middle"))
    for place, name in enumerate(grid.rows):
        items.append(Label(left - 8, y0 + (place + 0.65) * _TALL, name, "axis", "end"))
    for (row, place), entry in grid.cells.items():
        if math.isnan(entry.strength):
            continue
        x, y = x0 + place * cell, y0 + row * _TALL
        if entry.tint is not None:
            items.append(tinted(x, y, cell - 1, _TALL - 1, entry.tint))
        text = entry.content if written else entry.letter
        if text.strip():
            items.append(Label(x + cell / 2, y + 16, text, "value", "middle", on=entry.tint))
        tip = entry.tip or f"{grid.rows[row]}{grid.columns[place]}: {entry.content}"
        items.append(Tip(x, y, cell, _TALL, tip))
    drawing = Drawing("grid", x0 + across + 8, y0 + down + 8, tuple(items))
    return below(heading_words(grid.title)[0] or "grid", [drawing, *grid_legends(grid)], 8)


def grid_legends(grid: doc.HeadGrid) -> list[Drawing]:
    """Return drawings of the legends below a grid, which say what its colours mean."""
    legends = [_key(grid.key)] if grid.key else []
    return legends + ([map_figure.scale_figure(grid.scale)] if grid.scale is not None else [])


def _key(key: Sequence[doc.Key]) -> Drawing:
    items = list[Item]()
    x = y = 0.0
    for entry in key:
        words = f"{entry.letter} {entry.words}".strip()
        lead = 24.0 if entry.tint is not None else 0.0
        wide = lead + 12 + 7.0 * width(words)
        if x and x + wide > _KEY_ROOM:
            x, y = 0.0, y + 22
        if entry.tint is not None:
            items.append(tinted(x, y + 4, 18, 14, entry.tint))
        items.append(Label(x + lead, y + 15, words, "text"))
        x += wide
    return Drawing("key", _KEY_ROOM, y + 24, tuple(items))


# The first screen as one slide of 16 to 9, in letters that the last row can read --------------


_WIDE, _HIGH = 1024.0, 576.0
_SLIDE_COLUMNS, _SLIDE_LINES = 100, 28
"""Those of the screen, the letters of which are a thirtieth of the slide's height."""

_CELL, _LINE = 9.6, 19.2
_LEFT, _TOP = (_WIDE - _SLIDE_COLUMNS * _CELL) / 2, (_HIGH - _SLIDE_LINES * _LINE) / 2
_BASELINE = 14.5
_PAPER, _INK, _FAINT = "#16181d", "#e4e7eb", "#98a1ad"
_HALVES = {"▀": (0.0, 0.5), "▄": (0.5, 0.5), "█": (0.0, 1.0)}
"""The glyphs that are drawn as rectangles: where one begins in its line, and its height."""


def slide_drawing(document: doc.Document, palette: str) -> Drawing:
    """Return a drawing of 16 to 9 with the document's short form. palette: the colours of cells."""
    shown = document.shown(explain=False, hints=False)
    screen = first_screen(shown, Theme(palette), _SLIDE_COLUMNS, _SLIDE_LINES)
    items: list[Item] = [Filled(0, 0, _WIDE, _HIGH, _PAPER)]
    for row, line in enumerate(screen.lines[:_SLIDE_LINES]):
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
