"""The grid of heads: a row per layer, a column per head, the chosen one in the cursor's colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from rich.segment import Segment
from rich.style import Style

from attnviz.draw.axes import tick_line
from attnviz.draw.blocks import BOLD, DIM, Block, Line
from attnviz.draw.grid import strength_glyph
from attnviz.draw.labels import fit, token_labels, width
from attnviz.draw.maps import small_map
from attnviz.draw.numbers import NumberScale
from attnviz.draw.palette import DIVERGING, STEPS, Tint
from attnviz.draw.provenance import share
from attnviz.draw.scale import signed_tint, weight_steps
from attnviz.draw.theme import Theme, sign_glyph
from attnviz.engine.generation import Step
from attnviz.engine.head_run import Head
from attnviz.engine.removals import Effects
from attnviz.inspect.explore.scene import View
from attnviz.inspect.explore.session import Frame
from attnviz.inspect.heads.finding import described
from attnviz.inspect.heads.first import label_grid
from attnviz.inspect.heads.report import compare_heads

_WIDEST = 12
_APART, _NAMED, _LEAST_SIDE = 2, 11, 5
"""Small maps: the columns between two, and the fewest columns and queries of one."""

_LEAST_NUMBER = 4  # columns, such as +.05

_FAINT = "1c2027 68707c"
"""The ends of the grey scale for heads without a label, darker for a lower score."""


class HeadCell(NamedTuple):
    """The cell of one head.

    texts: its text in ever shorter forms, the longest first; the last may be empty.
    tint: the background; None for a faint cell. faint: the colour of that in half a character.
    strength: in [0, 1], or in [−1, 1] with a signed tint; gives the glyph if there is no colour.
    """

    texts: tuple[str, ...]
    tint: Tint | None = None
    strength: float = 0.0
    faint: Tint | None = None


class Heads(NamedTuple):
    """The contents of a grid.

    rows, columns: the names of the layers and heads. layers, numbers: their indices.
    cells: the cell of each head. chosen, removed: heads that are drawn differently.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    layers: Sequence[int]
    numbers: Sequence[int]
    cells: Mapping[Head, HeadCell]
    chosen: Head
    removed: frozenset[Head] = frozenset()

    def at(self, row: int, column: int) -> Head:
        return self.layers[row], self.numbers[column]


class GridPicture(NamedTuple):
    """The lines of a grid, and the places of its cells.

    left, top: of the first cell. wide, tall: columns and lines of one. first: the first row.
    halves: whether two rows share a line.
    """

    lines: Sequence[Line]
    left: int
    wide: int
    first: int
    halves: bool = False
    tall: int = 1
    top: int = 1

    def head_at(self, column: int, line: int, heads: Heads) -> Head | None:
        """Return the head at a place of the pane; of two in one character the one not chosen."""
        row = self.first + (line - self.top) * (2 if self.halves else 1) // self.tall
        number = (column - self.left) // self.wide
        if (
            line < self.top
            or column < self.left
            or not (number < len(heads.columns) and row < len(heads.rows))
        ):
            return None
        if self.halves and heads.at(row, number) == heads.chosen and row + 1 < len(heads.rows):
            row += 1
        return heads.at(row, number)


def columns_wanted(heads: Heads) -> tuple[int, ...]:
    """Return the width of the grid with each form of its texts, the widest first."""
    indent = max(map(width, heads.rows)) + 1
    count = len(heads.columns)
    return (*(indent + (each + 1) * count for each in _widths(heads)), indent + count)


def _widths(heads: Heads) -> list[int]:
    forms = max((len(cell.texts) for cell in heads.cells.values()), default=1)
    return [
        max((width(_text(cell, form)) for cell in heads.cells.values()), default=1) or 1
        for form in range(forms)
    ]


def _text(cell: HeadCell, form: int) -> str:
    return cell.texts[min(form, len(cell.texts) - 1)]


def _fitting(cell: HeadCell, room: int) -> str:
    return next((text for text in cell.texts if width(text) <= room), "")


def draw_grid(heads: Heads, theme: Theme, lines: int, columns: int, focused: bool) -> GridPicture:
    """Return the grid in so many lines and columns; each cell has its longest text that fits."""
    indent = max(map(width, heads.rows)) + 1
    count, layers = len(heads.columns), len(heads.rows)
    wide = max(min((columns - indent) // count, _WIDEST), 1)
    seen = max(lines - 1, 1)
    halves = layers > seen and theme.half_blocks
    each = 2 if halves else 1
    place = heads.layers.index(heads.chosen[0])
    first = min(max(place - seen * each // 2, 0), max(layers - seen * each, 0))
    first -= first % each
    lit = theme.accent() if focused and theme.colour else BOLD
    drawn: list[Line] = [_headings(heads, indent, wide, lit)]
    for row in range(first, min(first + seen * each, layers), each):
        here = place in range(row, row + each)
        line = [Segment(heads.rows[place if here else row].ljust(indent), lit if here else DIM)]
        for column in range(count):
            if halves:
                line += _halves(heads, row, column, wide, theme)
            else:
                line += _cell(heads, heads.at(row, column), wide, theme)
        drawn.append(line)
    return GridPicture(drawn, indent, wide, first, halves)


# A small map a head --------------------------------------------------------------------------


class Thumbnail(NamedTuple):
    """The size of a small map without its caption line: it has a cell per weight."""

    lines: int
    columns: int

    def columns_of(self, heads: Heads) -> int:
        return max(map(width, heads.rows)) + 1 + (self.columns + _APART) * len(heads.columns)


def thumbnail(heads: Heads, frame: Frame, theme: Theme, lines: int) -> Thumbnail | None:
    """Return the size of small maps of all heads; None if they do not fit or are too small."""
    record = frame.report.record
    queries, keys = len(record.queries), len(record.keys)
    size = Thumbnail((queries + 1) // 2, max(keys, _NAMED))
    fits = (size.lines + 1) * len(heads.rows) <= lines
    return size if fits and theme.half_blocks and queries >= _LEAST_SIDE else None


def draw_thumbnails(
    heads: Heads, frame: Frame, theme: Theme, size: Thumbnail, focused: bool
) -> GridPicture:
    """Return a grid of small maps, each under the name and the cell of its head."""
    maps = _small_maps(frame, theme, size)
    indent = max(map(width, heads.rows)) + 1
    lit = theme.accent() if focused else BOLD
    drawn: list[Line] = []
    for row, name in enumerate(heads.rows):
        here = heads.layers[row] == heads.chosen[0]
        lines: list[Line] = [[Segment(name.ljust(indent), lit if here else DIM)]]
        lines += [[Segment(" " * indent)] for _ in range(size.lines)]
        for column, number in enumerate(heads.columns):
            head = heads.at(row, column)
            lines[0] += _caption(heads, head, number, size.columns, theme)
            block = () if head in heads.removed or head not in maps else maps[head].lines
            for place, line in enumerate(lines[1:]):
                cells = block[place] if place < len(block) else []
                blank = size.columns + _APART - Segment.get_line_length(cells)
                line += [*cells, Segment(" " * blank)]
        drawn += lines
    return GridPicture(drawn, indent, size.columns + _APART, 0, tall=size.lines + 1, top=0)


def _caption(heads: Heads, head: Head, number: str, room: int, theme: Theme) -> Line:
    cell = _cell(heads, head, room - width(number), theme)
    style = theme.accent(ground=True) if head == heads.chosen else DIM
    return [Segment(f"{number} ", style), *cell, Segment(" " * (_APART - 1))]


@lru_cache(maxsize=2)
def _small_maps(frame: Frame, theme: Theme, size: Thumbnail) -> Mapping[Head, Block]:
    record = frame.report.record
    return {
        (layer, head): small_map(weights, *size, record.causal, theme)
        for layer, head, weights in record
    }


def _headings(heads: Heads, indent: int, wide: int, lit: Style) -> Line:
    """Return the names of the columns, with that of the chosen head emphasised."""
    chosen = heads.numbers.index(heads.chosen[1])
    names = heads.columns
    if max(map(width, names)) >= wide:
        names = [name.removeprefix("H") for name in names]
    if max(map(width, names)) >= wide:
        return tick_line([*map(int, names)], indent, wide)
    return [
        Segment(" " * indent),
        *(
            Segment(name.ljust(wide), lit if place == chosen else DIM)
            for place, name in enumerate(names)
        ),
    ]


def _cell(heads: Heads, head: Head, wide: int, theme: Theme) -> Line:
    """Return one cell, followed by a blank if it is wide enough."""
    cell = heads.cells.get(head)
    inner = max(wide - 1, 1)
    gap = [Segment(" " * (wide - inner))] * (wide > inner)
    gone = head in heads.removed
    if cell is None:
        return [Segment(" " * wide)]
    text = ("x" if theme.ascii else "×") if gone else _fitting(cell, inner)
    style: Style | None = DIM
    if not gone and cell.tint is not None:
        style = theme.ground(cell.tint)
        if style is None:
            mark = _glyph(cell, theme)
            text = f"{mark}{text}" if width(text) < inner else text or mark
            style = BOLD
    if head == heads.chosen:
        style = theme.accent(ground=not gone)
        text = text or ("*" if theme.ascii else "●")
    return [Segment(text.center(inner) if gone else fit(text, inner), style), *gap]


def _glyph(cell: HeadCell, theme: Theme) -> str:
    if cell.tint is not None and cell.tint.palette == DIVERGING:
        return sign_glyph(cell.strength * abs(cell.strength), 1.0, theme.ascii)
    return strength_glyph(cell.strength, theme)


def _halves(heads: Heads, row: int, column: int, wide: int, theme: Theme) -> Line:
    """Draw two heads above each other in one line, by colours alone."""
    found: list[Style | None] = []
    for each in range(row, min(row + 2, len(heads.rows))):
        head = heads.at(each, column)
        cell = heads.cells.get(head)
        if head == heads.chosen:
            found.append(theme.accent())
        else:
            tint = None if cell is None or head in heads.removed else cell.tint or cell.faint
            found.append(None if tint is None else theme.ink(tint))
    found += [None] * (2 - len(found))
    above, below = found
    if above is None:
        return [Segment("▄" * wide, below) if below else Segment("·".ljust(wide), DIM)]
    return [Segment("▀" * wide, above + Style(bgcolor=below.color) if below else above)]


# What a grid shows ---------------------------------------------------------------------------


def heads_of(view: View) -> Heads:
    """Return the grid of a view: labels, effects, moved attention, or the tokens looked at."""
    written = view.written
    if written is not None and written.at:
        return _grid(view, _sources(view, written.steps[written.at - 1]))
    if view.scene.side == "difference" and view.against is not None:
        moved = moved_attention(view.frame, view.against)
        if moved:
            return _grid(view, {head: _amount(value) for head, value in moved.items()})
    if view.by_effect and view.effects is not None:
        return _grid(view, _effects(view.effects))
    return labelled(view)


def labelled(view: View) -> Heads:
    """Return the grid of each head's label and score."""
    return _grid(view, _labels(view.shown))


def _grid(view: View, cells: Mapping[Head, HeadCell]) -> Heads:
    scene = view.scene
    layers = sorted({layer for layer, _ in scene.heads})
    numbers = sorted({head for _, head in scene.heads})
    rows = [scene.name((layer, 0)).partition("H")[0] for layer in layers]
    columns = [f"H{number + scene.index_base}" for number in numbers]
    return Heads(
        rows=rows,
        columns=columns,
        layers=layers,
        numbers=numbers,
        cells=cells,
        chosen=scene.head,
        removed=scene.removed,
    )


@lru_cache(maxsize=4)
def _labels(frame: Frame) -> Mapping[Head, HeadCell]:
    report = frame.report
    grid = label_grid(report)
    layers = sorted({entry.layer for entry in report.heads})
    numbers = sorted({entry.head for entry in report.heads})
    cells = {}
    for entry in report.heads:
        drawn = grid.cells[layers.index(entry.layer), numbers.index(entry.head)]
        what = described(entry)
        letter = entry.label.letter if what.finding else what.short[:1]
        texts = f"{what.short} {drawn.text}".strip(), what.short, letter
        score = 0.0 if math.isnan(what.score) else what.score
        faint = Tint(round(score * (STEPS - 1)), _FAINT)
        cells[entry.layer, entry.head] = HeadCell(texts, drawn.tint, drawn.strength, faint)
    return cells


def _sources(view: View, step: Step) -> dict[Head, HeadCell]:
    """Return for each head the token with its largest weight in a step, sinks excluded."""
    labels = token_labels(view.record.keys)
    cells = {}
    for layer, rows in step.rows.items():
        for head, row in enumerate(rows):
            left = view.without_sink(row)
            place = int(left.argmax())
            weight = float(left[place])
            name = fit(labels[place], min(width(labels[place]), 8))
            tint = Tint(int(weight_steps(np.array(weight)))) if weight >= 0.05 else None
            cells[layer, head] = HeadCell((f"{name} {share(weight)}", name, ""), tint, weight)
    return cells


@lru_cache(maxsize=4)
def moved_attention(frame: Frame, other: Frame) -> Mapping[Head, float]:
    """Return the share of attention that each head moves to other keys; empty if tokens differ."""
    return compare_heads([frame.report, other.report]).moved[1] or {}


def _amount(value: float) -> HeadCell:
    return HeadCell((share(value), ""), Tint(int(weight_steps(np.array(value)))), value)


def _effects(effects: Effects) -> dict[Head, HeadCell]:
    scale = NumberScale(max(map(abs, effects.values.values()), default=0.0) or 1.0)
    cells = {}
    for head, value in effects.values.items():
        rooms = (scale.room, _LEAST_NUMBER)
        texts = [(scale.fitted(value, room) or "").rjust(room) for room in rooms]
        root = float(np.sign(value) * np.sqrt(abs(value) / scale.limit))
        cells[head] = HeadCell((*texts, ""), signed_tint(value, scale.limit), root)
    return cells
