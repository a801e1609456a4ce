"""All layers or heads of a model, a row each: what the scale changes there."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.render.ablation.table import Column, table
from attnviz.render.blocks import BOLD, Block
from attnviz.render.labels import at_blanks
from attnviz.render.scaling.numbers import percent, plain
from attnviz.render.theme import Theme
from attnviz.scaling import ScalingCase, ScalingReport

__all__ = ["entropy_gain", "overview"]

_TITLE = "What the scale changes (without → with); the bar is the entropy that it gives back"


def entropy_gain(case: ScalingCase) -> float:
    """The mean normalised entropy with the scale less that without it; in [−1, 1]."""
    name = "normalised_entropy"
    return case.scaled.measures[name].value - case.plain.measures[name].value


def overview(report: ScalingReport, theme: Theme, room: int) -> Block:
    """A row a case; the columns that the width has room for."""
    arrow = "->" if theme.ascii else "→"
    columns = [
        _column("entropy", "normalised_entropy", report, arrow),
        _column("variance", "score_variance", report, arrow),
        _column("Jacobian", "jacobian_norm", report, arrow),
        _column("largest", "largest_weight", report, arrow),
        _column("below 0.01", "queries_vanished", report, arrow),
    ]
    names = [report.name(case) for case in report.cases]
    gains = [max(entropy_gain(case), 0.0) for case in report.cases]
    title = _TITLE.replace("→", arrow)
    heads = [[Segment(line, BOLD)] for line in at_blanks(title, room, "", theme.ellipsis)]
    return Block((*heads, *table(names, gains, 1.0, columns, theme, room).lines), room)


def _column(title: str, measure: str, report: ScalingReport, arrow: str) -> Column:
    show = percent if measure == "queries_vanished" else plain
    cells = [
        f"{show(case.plain.measures[measure].value)} {arrow} "
        f"{show(case.scaled.measures[measure].value)}"
        for case in report.cases
    ]
    return Column(title, cells)
