"""Heads as the rows of a table: score, base rate, margin, agreement and statistics."""

from __future__ import annotations

from collections.abc import Sequence

from rich.color import Color
from rich.style import Style

from attnviz.draw.blocks import Block
from attnviz.draw.table import Column, table
from attnviz.draw.theme import Theme
from attnviz.patterns.colours import label_colour
from attnviz.patterns.numbers import NOT_MEASURED, percent, plain, score, signed
from attnviz.patterns.records import PatternReport, PatternScores

__all__ = ["head_rows", "statistic_columns"]

_BESIDE = {"alignment": {"monotone": "monotone"}, "induction": {"prefix_matching": "prefix"}}
"""Of a label, further scores that tell of the same, with the titles of their columns."""


def _margin(entry: PatternScores, name: str) -> float | None:
    value, base = entry.scores.get(name), entry.base_rate.get(name)
    return None if value is None or base is None else value - base


def head_rows(
    report: PatternReport,
    name: str,
    heads: Sequence[PatternScores],
    theme: Theme,
    room: int,
    ranking: bool = False,
) -> Block:
    """A row a head: the bar of its score, then as many columns as ``room`` has space for.

    ranking: the heads need not have the label: its own one stands beside the score.
    """
    columns = [
        Column("score", [score(entry.scores.get(name)) for entry in heads]),
        Column("base", [score(entry.base_rate.get(name)) for entry in heads]),
        Column("margin", [signed(_margin(entry, name)) for entry in heads]),
    ]
    if report.control is not None:
        columns.append(Column("random", [score(entry.control.get(name)) for entry in heads]))
    if ranking:
        columns.append(Column("label", [entry.label or "-" for entry in heads], left=True))
    elif any(entry.agreement is not None for entry in heads):  # of a single text there is none
        columns.append(Column("agree", [percent(entry.agreement) for entry in heads]))
    columns += [
        Column(title, [score(entry.scores.get(other)) for entry in heads])
        for other, title in _BESIDE.get(name, {}).items()
        if any(entry.scores.get(other) is not None for entry in heads)
    ]
    columns += statistic_columns(heads)
    style = Style(color=Color.from_rgb(*label_colour(name)))
    names = [report.name(entry.layer, entry.head) for entry in heads]
    values = [max(entry.scores.get(name) or 0.0, 0.0) for entry in heads]
    return table(names, values, 1.0, columns, theme, room, style)


def statistic_columns(heads: Sequence[PatternScores]) -> list[Column]:
    """Entropy in nats, mean distance in tokens, confidence, first-token share."""

    def cells(name: str, decimals: bool) -> list[str]:
        values = [entry.statistics.get(name) for entry in heads]
        return [plain(value) if decimals else score(value) for value in values]

    columns = [
        Column("entropy", cells("entropy", True)),
        Column("distance", cells("distance", True)),
        Column("confidence", cells("confidence", False)),
        Column("first", cells("first", False)),
    ]
    return [column for column in columns if set(column.cells) != {NOT_MEASURED}]
