"""The first screen of ``attnviz why``: prediction and sum, the grid, the ranking, the text."""

from __future__ import annotations

import math

from attnviz.draw import document as doc
from attnviz.why.document import (
    head_grid,
    prediction_line,
    rankings,
    text_parts,
    write_maps,
)
from attnviz.why.records import WhyReport
from attnviz.why.words import sum_words

_GAP = 3
_CELL = 6
_TABLE = 66
"""Columns of the ranking beside other things."""

_LEAST_ROWS, _MOST_AGAINST = 3, 2
_LEAST_BESIDE = 34
_LEAST_TEXT = 3


def first_groups(report: WhyReport, columns: int, lines: int) -> list[doc.Group]:
    """What ``lines`` of so many columns have room for; the outlet shortens the ranking."""
    top = doc.Group([prediction_line(report), doc.Facts(sum_words(report))])
    if not report.tallies or not report.effects:
        return [top]
    grid = head_grid(report, scaled=False)
    tables = doc.Group(_tables(report))
    wide = 4 + _CELL * len(grid.columns)
    parts = math.ceil(wide / max(columns, 1))
    tall = len(grid.rows) * parts + 2
    beside = columns - wide - _GAP
    if beside >= _TABLE:  # grid and text at the left, the ranking and maps at the right
        left = doc.Group([doc.Group([grid]), *_example(report, wide, lines - tall - 5)], spaced=True)
        return [top, doc.Group([tables, left], beside=doc.Beside(beside, _GAP, yields=True))]
    if beside >= _LEAST_BESIDE:
        example = _example(report, beside, tall)
        middle = doc.Group([grid, *example], beside=doc.Beside(wide, _GAP)) if example else grid
        return [top, doc.Group([middle]), tables]
    rest = lines - tall - _LEAST_ROWS - 7
    text = [doc.Group(_example(report, columns, rest), yields=1)] if rest >= _LEAST_TEXT else []
    return [top, doc.Group([grid]), tables, *text]


def _tables(report: WhyReport) -> list[doc.Part]:
    """The ranking without its titles; of those against the answer a few."""
    found: list[doc.Part] = []
    for place, part in enumerate(rankings(report, len(report.effects))):
        assert isinstance(part, doc.Table)
        if place:
            found.append(part._replace(rows=part.rows[:_MOST_AGAINST], least=1, columns=part.columns))
        else:
            found.append(part._replace(least=_LEAST_ROWS, title=()))
    return found


def _example(report: WhyReport, columns: int, lines: int) -> list[doc.Part]:
    """The write map that was asked for where it fits, else the text in colour."""
    if lines < _LEAST_TEXT:
        return []
    for part in write_maps(report, scaled=False):
        assert isinstance(part, doc.Maps)
        shown = part.maps[0]
        queries, keys = shown.weights.shape
        if queries + 2 <= lines and 2 * keys + 12 <= columns:
            return [part._replace(maps=part.maps[:1], title=())]
    return text_parts(report, lines - 1)
