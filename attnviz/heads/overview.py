"""All heads on one screen: a small map each, rows are layers, columns are heads."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Block, beside, flow, stack, text_line
from attnviz.draw.maps import fitted, pooling, small_map
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import label_text
from attnviz.draw.theme import Theme
from attnviz.records import HeadScores, HeadsReport

_GAP = 2
_NAMED_WIDTH = 13  # room for "duplicate .98" below a map
_NAMED_LINES = 3  # name, trait and the empty line between layers
_LEAST_MAP_LINES = 4
_TALLEST = 12
_ALMOST = 1.25
_FEW = 24


def overview(report: HeadsReport, theme: Theme, width: int, height: int) -> Block:
    """The maps of all heads in ``width`` columns and, where possible, ``height`` lines.

    With room for it each map has its name above and its trait below; otherwise rows and columns
    are named once and the trait is a letter at the map's upper right corner. Below stand what a
    cell is, where maps are pooled, and how often each trait occurs.
    """
    maps, factors = _maps(report, theme, width, height)
    caption = pooling(factors)
    lines = (
        wrapped([(f"small maps {theme.spell(caption)}", False)], width, theme) if caption else []
    )
    return stack([maps, stack([Block(tuple(lines), width), _labels(report, width, theme)], 0)])


def _maps(
    report: HeadsReport, theme: Theme, width: int, height: int
) -> tuple[Block, tuple[int, int]]:
    """The maps, and how many queries and keys a cell of each stands for."""
    if report.sorted_by is not None:
        return _ranking(report, theme, width)
    layers = [list(entries) for _, entries in groupby(report.heads, lambda entry: entry.layer)]
    heads = max(map(len, layers))
    columns = (width + _GAP) // heads - _GAP
    lines = height // len(layers)
    if columns >= _NAMED_WIDTH and lines >= _LEAST_MAP_LINES + _NAMED_LINES:
        room = min(lines - _NAMED_LINES, _TALLEST)
        whole = (len(report.record.queries) + 1) // 2
        if room < whole <= room * _ALMOST:  # better a line too many than 13 queries in 12 rows
            room = whole
        rows = [
            beside([_named(report, entry, room, columns, theme) for entry in entries], _GAP)
            for entries in layers
        ]
        return stack(rows), _cells(report, room, columns, theme)
    return _grid(report, layers, theme, width, lines)


def _cells(report: HeadsReport, lines: int, columns: int, theme: Theme) -> tuple[int, int]:
    record = report.record
    return fitted(len(record.queries), len(record.keys), lines, columns, theme).factors


def _named(report: HeadsReport, entry: HeadScores, lines: int, columns: int, theme: Theme) -> Block:
    """A map between its name and its label."""
    weights = report.weights(entry.layer, entry.head)
    drawn = small_map(weights, lines, columns, report.record.causal, theme)
    name = [Segment(report.name(entry.layer, entry.head), BOLD)]
    group = report.record.model.group(entry.head)
    if group is not None:
        name.append(Segment(f" kv{group + report.index_base}", DIM))
    if report.sorted_by is None:
        caption = label_text(entry.label, columns)
    else:
        value = entry.scores[report.sorted_by]
        caption = "not measured" if value is None else f"{value:.3f}"
    width = max(drawn.width, min(columns, _NAMED_WIDTH))
    return Block((name, *drawn.lines, text_line(caption)), width)


def _ranking(report: HeadsReport, theme: Theme, width: int) -> tuple[Block, tuple[int, int]]:
    """Named maps in the order of the measure that the heads are sorted by."""
    lines = 8 if len(report.heads) <= _FEW else 3
    columns = min(max(width // 8, _NAMED_WIDTH), 2 * lines)
    columns = max(columns, min(_NAMED_WIDTH, width))
    maps = [_named(report, entry, lines, columns, theme) for entry in report.heads]
    measure = str(report.sorted_by).replace("_", " ")
    title = wrapped([(f"heads by {measure}", True)], width, theme)
    drawn = stack([Block(tuple(title), width), flow(maps, width, _GAP)])
    return drawn, _cells(report, lines, columns, theme)


def _grid(
    report: HeadsReport, layers: list[list[HeadScores]], theme: Theme, width: int, lines: int
) -> tuple[Block, tuple[int, int]]:
    """Rows of small maps without a line between them, the layer's name on the left."""
    heads = max(map(len, layers))
    indent = max(len(f"L{report.record.model.layers}"), 3) + 1
    columns = max((width - indent) // heads - _GAP, 3)
    longest_name = len(f"H{max(entry.head for entry in report.heads) + report.index_base}")
    columns = max(min(columns, len(report.record.keys)), longest_name + 1 - _GAP)
    per_row = max((width - indent) // (columns + _GAP), 1)
    lines = min(max(lines, 2), (columns + 1) // 2, (len(report.record.queries) + 1) // 2)
    lines = max(lines, 1)
    cell = columns + _GAP

    def head_names(entries: list[HeadScores]) -> Block:
        names = [f"H{entry.head + report.index_base}" for entry in entries]
        text = " " * indent + "".join(name.ljust(cell) for name in names)
        return Block((text_line((text.rstrip(), DIM)),), width)

    rows: list[Block] = []
    if heads <= per_row:
        rows.append(head_names(max(layers, key=len)))
    for entries in layers:
        number = entries[0].layer + report.index_base
        label = "" if report.record.model.is_array else f"L{number}"
        for start in range(0, len(entries), per_row):
            chunk = entries[start : start + per_row]
            if heads > per_row:
                rows.append(head_names(chunk))
            name = Block((text_line((label, BOLD)),), indent)
            maps = [_lettered(report, entry, lines, columns, theme) for entry in chunk]
            rows.append(beside([name, beside(maps, 0)], 0))
            label = ""
    return stack(rows, gap=0), _cells(report, lines, columns, theme)


def _lettered(
    report: HeadsReport, entry: HeadScores, lines: int, columns: int, theme: Theme
) -> Block:
    """A map with the letter of its label at the upper right corner."""
    weights = report.weights(entry.layer, entry.head)
    drawn = small_map(weights, lines, columns, report.record.causal, theme)
    mark = Block((text_line((entry.label.letter, BOLD)),), _GAP)
    return beside([Block(drawn.lines, columns), mark], 0)


def _labels(report: HeadsReport, room: int, theme: Theme) -> Block:
    """Each label on the screen: its letter, its name, how many heads have it."""
    counts = Counter((entry.label.letter, entry.label.name) for entry in report.heads)
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    parts = [(f"{letter} {name} in {count}", False) for (letter, name), count in ranked]
    return Block(tuple(wrapped([("labels", False), *parts], room, theme)), room)
