"""The statistics of every head, beside its label."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.patterns import PatternReport
from attnviz.render.ablation.table import Column, table
from attnviz.render.blocks import BOLD, Block
from attnviz.render.labels import at_blanks, visible
from attnviz.render.patterns.numbers import score
from attnviz.render.patterns.rows import statistic_columns
from attnviz.render.theme import Theme

__all__ = ["statistics_table"]

_TITLE = (
    "Statistics of every head; the bar is how evenly it spreads its attention (entropy over that "
    "of even attention)"
)


def statistics_table(report: PatternReport, theme: Theme, room: int) -> Block:
    """A row a head: evenness, entropy (nats), distance (tokens), confidence, first share."""
    heads = report.heads
    evenness = [entry.statistics.get("normalised_entropy") for entry in heads]
    labels = [visible(entry.label or "-", theme.encoding) for entry in heads]
    columns = [
        Column("even", [score(value) for value in evenness]),
        Column("label", labels, left=True),
        Column("score", [score(entry.score) if entry.label else "" for entry in heads]),
        *statistic_columns(heads),
    ]
    names = [report.name(entry.layer, entry.head) for entry in heads]
    rows = table(names, [value or 0.0 for value in evenness], 1.0, columns, theme, room)
    title = [[Segment(line, BOLD)] for line in at_blanks(_TITLE, room, "", theme.ellipsis)]
    return Block((*title, *rows.lines), room)
