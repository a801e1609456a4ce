"""All heads in one drawing: a small map each, rows are layers, columns are heads."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from attnviz.draw.drawing import Cells, Drawing, Item, Label, Tip, flow
from attnviz.draw.maps import cell_steps
from attnviz.draw.provenance import trait_text
from attnviz.draw.words import head_name, head_words
from attnviz.records import HeadScores, HeadsReport

__all__ = ["overview_drawing", "pooling_words"]

_SIDE = 72
_MOST_CELLS = 24
_MANY_HEADS = 256
_NAME_HEIGHT = 16
_TRAIT_HEIGHT = 16
_TRAIT_LETTERS = 14
_GAP = 14
_ROW_GAP = 10


def _blocks(report: HeadsReport) -> tuple[int, int]:
    """The cells (queries, keys) of a small map."""
    most = _MOST_CELLS if len(report.heads) <= _MANY_HEADS else _MOST_CELLS // 2
    return min(len(report.record.queries), most), min(len(report.record.keys), most)


def pooling_words(report: HeadsReport) -> str:
    """What a cell of a small map is where it is more than one token; else nothing."""
    queries, keys = len(report.record.queries), len(report.record.keys)
    rows, columns = _blocks(report)
    if (rows, columns) == (queries, keys):
        return ""
    return (
        f"Small maps are pooled: a cell is about {queries / rows:.3g} queries × "
        f"{keys / columns:.3g} keys, summed over keys and averaged over queries."
    )


def _thumbnail(report: HeadsReport, scores: HeadScores) -> Drawing:
    """One head's small map between its name and its trait."""
    queries, keys = _blocks(report)
    weights = np.nan_to_num(report.weights(scores.layer, scores.head))
    steps = cell_steps(weights, queries, keys, report.record.causal)
    cell = _SIDE / max(queries, keys, 1)
    width, height = keys * cell, queries * cell
    trait = trait_text(scores.trait, _TRAIT_LETTERS)
    if report.sorted_by is not None:
        value = scores.scores[report.sorted_by]
        trait = "not measured" if value is None else f"{value:.3f}"
    name = head_name(report, scores)
    items: tuple[Item, ...] = (
        Label(0, 11, name, "name"),
        Cells(0, _NAME_HEIGHT, width, height, steps),
        Label(0, _NAME_HEIGHT + height + 12, trait, "faint"),
        Tip(0, _NAME_HEIGHT, width, height, f"{name} · {head_words(scores)}"),
    )
    return Drawing(name, _SIDE, _NAME_HEIGHT + height + _TRAIT_HEIGHT, items)


def overview_drawing(report: HeadsReport) -> Drawing:
    """Every kept head: a row a layer, or row by row in the order the heads are sorted by."""
    heads = report.record.model.heads
    if report.sorted_by is not None:
        room = min(heads, 12) * (_SIDE + _GAP)
        maps = [_thumbnail(report, scores) for scores in report.heads]
        return flow(f"heads by {report.sorted_by}", maps, room, _GAP)
    parts: list[tuple[float, float, Drawing]] = []
    y = width = 0.0
    for _, row in groupby(report.heads, lambda scores: scores.layer):
        maps = [_thumbnail(report, scores) for scores in row]
        parts += [(place * (_SIDE + _GAP), y, drawn) for place, drawn in enumerate(maps)]
        width = max(width, len(maps) * (_SIDE + _GAP) - _GAP)
        y += maps[0].height + _ROW_GAP
    return Drawing("all heads", width, max(y - _ROW_GAP, 0), parts=tuple(parts))
