"""The first screen of ``attnviz ablate``: map and text side by side, the ranking, maps that fit."""

from __future__ import annotations

import math

from attnviz.ablate.document import (
    attention_maps,
    head_grid,
    ranking_tables,
    together,
    token_maps,
    where_it_hurts,
)
from attnviz.ablate.records import AblationReport
from attnviz.draw import document as doc

_GAP = 3
_CELL = 6
"""Columns of a cell of the map: a number such as ``+.44``, a mark and a blank."""

_SCALE_LINES = 3
"""Of what colours mean, with the empty one before."""

_ROWS, _LEAST_ROWS = 5, 3
"""Rows that the ranking has beside other things, and those that it keeps."""

_MOST_HARM = 2

_TABLE = 66
"""Columns of the ranking beside maps."""

_LONG_NAME = 10
_TEXT_LINES = 4
"""Of a further text, with its title."""


def first_groups(report: AblationReport, columns: int, lines: int) -> list[doc.Group]:
    """What ``lines`` of so many columns have room for; the outlet shortens the ranking."""
    tables = _tables(report)
    if report.by_token:
        texts_room = lines - sum(map(_least_lines, tables))
        return [_by_token(report, columns, texts_room), doc.Group(tables, yields=1)]
    grid, texts = head_grid(report, scaled=False), token_maps(report)
    half = (columns - _GAP) // 2
    tall = 0 if grid is None else 1 + _grid_lines(grid, columns)
    left = lines - 1 - sum(map(_least_lines, tables))
    if grid is not None and tall > left:  # colours alone, and what they mean
        scaled = head_grid(report) or grid
        grid = scaled._replace(halved=True)
        tall = 2 + math.ceil(len(grid.rows) / 2) + _SCALE_LINES
    top: list[doc.Group] = []
    if grid is not None and tall <= left:
        top.append(doc.Group([grid]))
        if texts and _grid_lines(grid, half) == tall - 1:
            beside: list[doc.Part] = [grid, _text(report, texts[:1], tall - 1)]
            top, texts = [doc.Group(beside, beside=doc.Beside(half, _GAP))], texts[1:]
        lines -= tall + 1
    if half >= _TABLE + _GAP:
        side = _maps(report, half, lines) or _few_texts(report, texts, lines)
        beside_them = doc.Beside(half, _GAP)
    else:
        side = _maps(report, columns - _TABLE - _GAP, lines, rows=1)
        beside_them = doc.Beside(_TABLE, _GAP, yields=True)
    if side:
        return [*top, doc.Group([doc.Group(tables), *side], beside=beside_them)]
    rows = sum(min(len(table.rows), _ROWS) + 3 for table in tables if isinstance(table, doc.Table))
    below = _maps(report, columns, lines - rows) or _few_texts(report, texts, lines - rows)
    return [*top, doc.Group(tables), doc.Group(below, yields=1)]


def _tables(report: AblationReport) -> list[doc.Part]:
    """The ranking without its title, a few of the harmful, and what was ablated together."""
    found: list[doc.Part] = []
    most = max(len(report.effects), len(report.gradients))
    for place, part in enumerate([*ranking_tables(report, most), *together(report)]):
        if isinstance(part, doc.Table) and place:
            part = part._replace(rows=part.rows[:_MOST_HARM], least=1)
        elif isinstance(part, doc.Table):
            part = part._replace(title=(), least=_LEAST_ROWS)
        found.append(part)
    return found


def _least_lines(part: doc.Part) -> int:
    """Of a table that has lost all the rows that it may lose."""
    if not isinstance(part, doc.Table):
        return 1
    rows = len(part.rows)
    return bool(part.title) + 1 + min(rows, part.least) + (rows > part.least)


def _grid_lines(grid: doc.HeadGrid, columns: int) -> int:
    """Lines of the map without its title."""
    per_row = max((columns - 4) // _CELL, 1)
    parts = math.ceil(len(grid.columns) / per_row)
    return len(grid.rows) * parts + (parts == 1)


def _text(report: AblationReport, texts: list[doc.Map], lines: int) -> doc.Maps:
    """A few lines of the text, where it changes most."""
    named = []
    for text in texts:
        name = text.words[0][0]
        first = ", first text" * (len(report.texts) > 1 and len(name) < _LONG_NAME)
        named.append(text._replace(words=[(f"Δ loss without {name}{first}", True)]))
    return doc.Maps(named, texts=True, lines=lines, scale=None)


def _few_texts(report: AblationReport, texts: list[doc.Map], lines: int) -> list[doc.Part]:
    """As many further texts as have room."""
    count = min(lines // _TEXT_LINES, len(texts))
    return [_text(report, texts[:count], max(lines // count - 1, 1))] if count else []


def _by_token(report: AblationReport, columns: int, lines: int) -> doc.Group:
    """The texts as far as they fit beside the shortest ranking."""
    (part,) = where_it_hurts(report)
    if not isinstance(part, doc.Maps):
        return doc.Group([part])
    tokens = part.maps[0].keys
    whole = sum(map(len, tokens.texts)) // max(columns - 6, 1) + 1
    room = (lines - 4) // len(part.maps) - 1  # with title, scale and a blank line
    return doc.Group([part._replace(lines=0 if whole + 3 <= room else max(room, 1))])


def _maps(report: AblationReport, columns: int, lines: int, rows: int = 0) -> list[doc.Part]:
    """As many attention maps as fit in full, in ``rows`` or any number of them."""
    for part in attention_maps(report):
        if isinstance(part, doc.Maps):
            causal, tokens = part.maps[0].causal, len(part.maps[0].keys)
            cell = 2 if causal else 5  # with a word above each column
            wide = cell * tokens + 12
            tall = len(part.maps[0].queries) + 4 + (not causal)  # with title and scores
            down = max((lines - 4) // tall, 0)
            count = max((columns + _GAP) // (wide + _GAP), 0) * (min(down, rows) if rows else down)
            if count:  # in one row the key would be the widest
                return [part._replace(maps=part.maps[:count], scale=None if rows else part.scale)]
    return []
