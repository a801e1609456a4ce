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
from attnviz.draw.numbers import percent, round_ticks, short_number
from attnviz.draw.palette import SERIES_SIGNS, paper_table, series_tint, to_hex
from attnviz.draw.plot import axis_ends
from attnviz.draw.table import bar_tint
from attnviz.draw.terminal import first_screen
from attnviz.draw.theme import VERDICTS, Theme

_ROOM, _MAPS_ROOM = 1000.0, 1400.0
_MOST_WRITTEN = 16  # the most queries or keys of a map whose cells are large enough for numbers
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
    """Draw (style, text) lines below each other; long facts are broken, a long title is cut."""
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
        case doc.Facts() | doc.Quote() | doc.Note():
            yield text_drawing([("faint", part.line)])
        case doc.Say(text):
            yield text_drawing([("text", text)])
        case _:
            heading, remarks = heading_words(part.title)
            lines: list[tuple[Style, str]] = [("heading", heading)] if heading else []
            lines += [("faint", remarks)] if remarks else []
            drawings = part_drawings(part)
            if lines and drawings:
                yield text_drawing(lines)
            if not isinstance(part, doc.Maps | doc.Pictures):
                yield from drawings
                return
            if part.scale is not None:
                yield map_figure.scale_figure(part.scale)
            if isinstance(part, doc.Maps) and part.small is not None:
                yield from _small_maps(part, drawings)
            elif drawings:
                yield flow("maps", drawings, _MAPS_ROOM, _MAP_GAP)


def _small_maps(part: doc.Maps, drawings: Sequence[Drawing]) -> Iterator[Drawing]:
    most = part.across or max(int(_ROOM / (drawings[0].width + _SMALL_GAP)), 1)
    rows = [drawings[start : start + most] for start in range(0, len(drawings), most)]
    yield below("small maps", (flow("maps", row, math.inf, _SMALL_GAP) for row in rows), 10)
    if words := map_figure.pooling_words(part.maps[0]):
        yield text_drawing([("faint", f"small maps {words}")])


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
            return [_plot(part)] if part.curves or part.histograms else []
        case doc.Pictures():
            return map_figure.picture_figures(part)
        case doc.Maps():
            if part.texts:
                return [map_figure.text_figure(shown) for shown in part.maps]
            if part.small is not None:
                return [map_figure.small_map_figure(shown) for shown in part.maps]
            sizes = [size for shown in part.maps for size in shown.weights.shape]
            written = max(sizes, default=0) <= _MOST_WRITTEN  # in all maps, or in none
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
    for index, column in enumerate(table.columns):
        texts = [column.title, *(cut(visible(row.cells[index]), _LONGEST_CELL) for row in rows)]
        depth = max((row.depth for row in rows), default=0) * _INDENT * (index == 0)
        wide = max(map(width, texts)) * _DIGIT + depth
        starts.append(x)
        ends.append(x + wide)
        x += wide + _CELL_GAP
        if index == 0 and barred and table.ranked:
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
    for index, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
        tone = row.tone if row.tone != "plain" else column.tone
        tone = (row.tones or {}).get(index, tone)
        style: Style = "name" if tone == "strong" or (table.ranked and not index) else "text"
        style = "faint" if tone in ("faint", "skipped") else style
        ink = VERDICTS.get(tone)
        anchor: Anchor = "end" if column.right else "start"
        x = sides[1][index] if column.right else sides[0][index]
        x += row.depth * _INDENT * (index == 0)
        yield Label(x, y + 14, cut(visible(cell), _LONGEST_CELL), style, anchor, ink=ink)


# Grids ----------------------------------------------------------------------------------------

_TALL, _NARROW = 24.0, 20.0
_KEY_ROOM = 900.0


def _grid(grid: doc.HeadGrid) -> Drawing:
    """Return the drawing of a grid of coloured cells with tips, and with texts if cells are few."""
    written, cells = grid.written, grid.cells.values()
    left, top = max(max(map(width, grid.rows)) * _DIGIT + 10, 30.0), 26.0
    names = max(map(width, grid.columns)) * _DIGIT + 8
    wide = max([_NARROW, *(width(cell.letter) * 6.2 + 6 for cell in cells)])
    if written:
        wide = max([wide, names, *(width(cell.content) * 6.2 + 12 for cell in cells)])
    across, down = len(grid.columns) * wide, len(grid.rows) * _TALL
    items: list[Item] = [Cells(left, top, across, down, np.full((1, 1), -1))]
    for column in range(0, len(grid.columns), max(math.ceil(names / wide), 1)):
        middle = left + (column + 0.5) * wide
        items.append(Label(middle, top - 8, grid.columns[column], "axis", "middle"))
    for row, name in enumerate(grid.rows):
        items.append(Label(left - 8, top + (row + 0.65) * _TALL, name, "axis", "end"))
    for (row, column), cell in grid.cells.items():
        if math.isnan(cell.strength):
            continue
        x, y = left + column * wide, top + row * _TALL
        if cell.tint is not None:
            items.append(tinted(x, y, wide - 1, _TALL - 1, cell.tint))
        text = cell.content if written else cell.letter
        if text.strip():
            items.append(Label(x + wide / 2, y + 16, text, "value", "middle", on=cell.tint))
        tip = cell.tip or f"{grid.rows[row]}{grid.columns[column]}: {cell.content}"
        items.append(Tip(x, y, wide, _TALL, tip))
    drawing = Drawing("grid", left + across + 8, top + down + 8, tuple(items))
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


# Curves and histograms --------------------------------------------------------------------------

_LEVEL_INK = "#8a94a3"
_PLOT_LEFT, _PLOT_TOP, _PLOT_WIDE, _PLOT_TALL = 62.0, 10.0, 620.0, 250.0
_LEGEND_LINE, _SAMPLE, _CHARACTER, _DOT = 18.0, 26.0, 6.6, 3.2
_MOST_TIPS = 80
_BETWEEN_SIGNS = 80.0  # pixels between two signs of a curve
_BIN, _BARS_LEFT, _BARS_TOP, _BARS_TALL, _APART = 10.0, 48.0, 44.0, 110.0, 40.0


def _plot(plot: doc.Plot) -> Drawing:
    name = plot.title[0][0] if plot.title else "plot"
    if plot.histograms:
        return flow(name, map(_histogram, plot.histograms), _ROOM, _APART)
    axes = _Axes(*axis_ends(plot))
    alone = sum(not curve.marked for curve in plot.curves) == 1
    pens, items = list[tuple[str, str]](), [*axes.drawn(plot)]
    for number, curve in enumerate(plot.curves):
        sign = "" if alone else SERIES_SIGNS[number % len(SERIES_SIGNS)]
        pens.append((to_hex(paper_table(series_tint(number).palette)[0]), sign))
        items += axes.curve(curve, *pens[-1], number)
    foot = _PLOT_TOP + _PLOT_TALL + 44
    items += _legend(plot, pens, foot)
    tall = foot + _LEGEND_LINE * (len(plot.curves) + len(plot.marks) + len(plot.levels))
    names = [*(curve.name for curve in plot.curves), *(level.name for level in plot.levels)]
    longest = max(map(width, names), default=0) * _CHARACTER + _PLOT_LEFT + _SAMPLE + 20
    return Drawing(name, max(_PLOT_LEFT + _PLOT_WIDE + 12, longest), tall, tuple(items))


class _Axes:
    """The two axes of a plot in a figure; they convert values into pixel positions.

    ends: of the horizontal axis, left first. up: of the vertical axis, low first.
    """

    def __init__(self, ends: tuple[float, float], up: tuple[float, float]) -> None:
        self._ends, self._up = ends, up

    def x(self, position: float) -> float:
        left, right = self._ends
        return _PLOT_LEFT + (position - left) / ((right - left) or 1.0) * _PLOT_WIDE

    def y(self, value: float) -> float:
        low, high = self._up
        return _PLOT_TOP + (high - value) / (high - low) * _PLOT_TALL

    def drawn(self, plot: doc.Plot) -> Iterator[Item]:
        """Yield the items that draw both axes: round numbers, and the plot's marks and levels."""
        foot, right = _PLOT_TOP + _PLOT_TALL, _PLOT_LEFT + _PLOT_WIDE
        ticks, digits = round_ticks(*self._up)
        for tick in ticks:
            yield Stroke([(_PLOT_LEFT, self.y(tick)), (right, self.y(tick))])
            yield Label(_PLOT_LEFT - 8, self.y(tick) + 4, f"{tick:.{digits}f}", "faint", "end")
        yield Stroke([(_PLOT_LEFT, _PLOT_TOP), (_PLOT_LEFT, foot), (right, foot)])
        across, _ = round_ticks(min(self._ends), max(self._ends), most=11)
        whole = [tick for tick in across if tick == round(tick)]
        if plot.ends is not None:  # both ends are named, and what does not touch them
            ends = [self.x(end) for end in self._ends]
            apart = [tick for tick in whole if all(abs(self.x(tick) - end) > 30 for end in ends)]
            whole = [*self._ends, *apart]
        for tick in whole:
            yield Label(self.x(tick), foot + 16, short_number(tick), "faint", "middle")
        yield Label(right, foot + 32, plot.across, "faint", "end")
        for mark in plot.marks:
            yield Stroke([(self.x(mark.at), _PLOT_TOP), (self.x(mark.at), foot)], dashed=True)
        for level in plot.levels:
            y = self.y(level.value)
            yield Stroke([(_PLOT_LEFT, y), (right, y)], _LEVEL_INK, dashed=True)

    def curve(self, curve: doc.Curve, ink: str, sign: str, number: int) -> Iterator[Item]:
        """Yield the items that draw a curve: its line, and its sign at intervals.

        The intervals differ between curves. ink: the curve's colour. sign: identifies it for
        readers without colour. number: its index among the curves.
        """
        points = [(self.x(position), self.y(value)) for position, value in curve.points]
        if not curve.marked:
            yield Stroke(points, ink)
        if curve.marked or len(points) == 1:
            yield Stroke(points, ink, dots=_DOT)
        elif sign:
            due = _PLOT_LEFT + _BETWEEN_SIGNS * (0.2 + number % 4 / 4)
            for x, y in points:
                if x >= due:
                    due += _BETWEEN_SIGNS
                    yield Label(x, y + 4, sign, "text", "middle", ink=ink)
        if len(points) > _MOST_TIPS:
            return
        for (x, y), (position, value) in zip(points, curve.points, strict=True):
            text = f"{curve.name}: {value:.4f} at {short_number(position)}"
            yield Tip(x - 5, y - 5, 10, 10, text)


def _legend(plot: doc.Plot, pens: Sequence[tuple[str, str]], y: float) -> Iterator[Item]:
    """Yield a legend line, from ``y`` down, for each curve with its pen, mark and level."""
    for curve, (ink, sign) in zip(plot.curves, pens, strict=True):
        ends = [(_PLOT_LEFT, y), (_PLOT_LEFT + _SAMPLE - 6, y)]
        yield Stroke([(_PLOT_LEFT + 10, y)], ink, _DOT) if curve.marked else Stroke(ends, ink)
        if not curve.marked:
            yield Label(_PLOT_LEFT + 10, y + 4, sign, "text", "middle", ink=ink)
        yield Label(_PLOT_LEFT + _SAMPLE, y + 4, curve.name, "text")
        y += _LEGEND_LINE
    others: list[tuple[str, str | None]] = [
        *((f"{mark.name} from {short_number(mark.at)} on", None) for mark in plot.marks),
        *((level.name, _LEVEL_INK) for level in plot.levels),
    ]
    for name, colour in others:
        yield Stroke([(_PLOT_LEFT, y), (_PLOT_LEFT + _SAMPLE - 6, y)], colour, dashed=True)
        yield Label(_PLOT_LEFT + _SAMPLE, y + 4, name, "text")
        y += _LEGEND_LINE


def _histogram(drawn: doc.Histogram) -> Drawing:
    """Draw a histogram with bars of equal width; a gap follows a first bin that begins at 0."""
    apart = drawn.edges[0] == 0
    items: list[Item] = [
        Label(_BARS_LEFT, 14, drawn.name, "name"),
        Label(_BARS_LEFT, 30, drawn.words, "faint"),
        Label(_BARS_LEFT - 6, _BARS_TOP + 10, percent(drawn.top), "faint", "end"),
    ]
    foot = _BARS_TOP + _BARS_TALL

    def left(position: float) -> float:
        return _BARS_LEFT + _BIN * (position + (apart and position > 0))

    for position, share in enumerate(drawn.shares):
        tall = max(min(share / drawn.top, 1.0) * _BARS_TALL, 1.0 if share else 0.0)
        if tall:
            items.append(tinted(left(position), foot - tall, _BIN - 1, tall, drawn.tint))
        words = f"{drawn.edges[position]:.2g} to {drawn.edges[position + 1]:.2g}: {percent(share)}"
        items.append(Tip(left(position), _BARS_TOP, _BIN, _BARS_TALL, words))
    for bin_number, name in drawn.ticks:
        anchor: Anchor = "end" if bin_number >= len(drawn.shares) else "start"
        items.append(Label(left(bin_number), foot + 14, name, "axis-faint", anchor))
    if drawn.mark is not None:
        at, words = left(drawn.mark[0]), drawn.mark[1]
        items += [
            Stroke([(at, _BARS_TOP), (at, foot)], _LEVEL_INK, dashed=True),
            Label(at, foot + 30, words, "axis-faint", "middle"),
        ]
    across = max(left(len(drawn.shares)) + 8, _BARS_LEFT + _CHARACTER * width(drawn.words))
    return Drawing(drawn.name, across, foot + 22 + 16 * (drawn.mark is not None), tuple(items))


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
    for match in re.finditer(r"[▀▄█]+|[^ ▀▄█]+", segment.text):
        at, words = x + width(segment.text[: match.start()]) * _CELL, match[0]
        if words[0] in _HALVES:
            for column, glyph in enumerate(words):
                top, tall = _HALVES[glyph]
                yield Filled(at + column * _CELL, y + top * _LINE, _CELL, tall * _LINE, ink)
        else:
            bold = bool(style and style.bold)
            yield Label(at, y + _BASELINE, words, "mono-bold" if bold else "mono", ink=ink)
