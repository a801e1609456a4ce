"""The first screen of ``attnviz why``: prediction and sum, grid, text or maps, ranking."""

from __future__ import annotations

from attnviz.draw import document as doc
from attnviz.why.document import (
    head_grid,
    prediction_line,
    ranking_table,
    text_parts,
    write_maps,
)
from attnviz.why.records import WhyReport
from attnviz.why.words import sum_words

_GAP = 3
_INDENT, _CELL = 3, 6
"""Columns of the grid: of the layers' names, and of a number such as ``+3.6``."""

_TABLE = 66
"""Columns of the ranking beside other things."""

_LEAST_ROWS = 3
"""Rows that the ranking keeps; it goes as a whole before the grid of all heads loses a layer."""

_WORDS, _WIDE_WORDS, _LEAST_TEXT = 5, 3, 3
"""Lines of prediction and sum in half of the columns, in all of them, and of the text at least."""


def first_groups(report: WhyReport, columns: int, lines: int) -> list[doc.Group]:
    """What ``lines`` of so many columns have room for; the outlet shortens the ranking."""
    words = doc.Group([prediction_line(report), doc.Facts(sum_words(report))])
    if not report.tallies or not report.effects:
        return [words]
    grid = head_grid(report, scaled=False)
    table = ranking_table(report, least=_LEAST_ROWS)
    half, tall = (columns - _GAP) // 2, len(grid.rows) + 2
    beside = doc.Beside(half, _GAP)
    wide = _INDENT + _CELL * len(grid.columns)
    if half >= max(wide, _TABLE):
        example = _example(report, half, lines - tall - _WORDS)
        left = doc.Group([words, grid, *example], spaced=True)
        return [doc.Group([left, table], beside=beside)]
    room = half if half >= wide else columns
    if maps := _maps(report, room, lines - _WIDE_WORDS):
        chosen = [grid, *maps] if half >= wide else maps
        shown = doc.Group(chosen, beside=beside if half >= wide else None)
        rest = [] if half >= wide else [doc.Group([grid], yields=1)]
        return [words, shown, *rest, doc.Group([table], yields=2)]
    if half >= wide:
        below = lines - _LEAST_ROWS - 3 - _WORDS - 2  # the ranking has its lines there
        example = _example(report, half, min(max(tall - _WORDS, _LEAST_TEXT), below))
        right = doc.Group([words, *example], spaced=True)
        return [doc.Group([grid, right], beside=beside), doc.Group([table], yields=1)]
    text = _example(report, columns, lines - tall - _LEAST_ROWS - _WORDS - 3)
    above = [words, doc.Group([grid])]
    if tall + _WIDE_WORDS >= lines:
        above = [doc.Group([*words.parts, grid])]
    return [*above, doc.Group([table], yields=1), doc.Group(text, yields=2)]


def _example(report: WhyReport, columns: int, lines: int) -> list[doc.Part]:
    """Write maps that were asked for where they fit, else the text in colour."""
    if maps := _maps(report, columns, lines):
        return maps
    return text_parts(report, lines - 1) if lines >= _LEAST_TEXT else []


def _maps(report: WhyReport, columns: int, lines: int) -> list[doc.Part]:
    """As many of the chosen heads' maps as fit in full; a line says how many more there are."""
    for part in write_maps(report, scaled=False):
        lines -= len(part.maps) > 1
        queries, keys = part.maps[0].weights.shape
        causal = part.maps[0].causal
        wide, tall = (2 if causal else 5) * keys + 12, queries + 1 + (not causal)
        count = max((columns + _GAP) // (wide + _GAP), 0) * max((lines + 1) // (tall + 1), 0)
        if count:
            hidden = max(len(part.maps) - count, 0)
            return [part._replace(maps=part.maps[:count], title=(), hidden=hidden)]
    return []
