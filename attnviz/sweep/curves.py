"""The loss of each number of heads while it is trained, as a mean over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnviz.draw.blocks import Block
from attnviz.draw.curve import Curve, curve_plot
from attnviz.draw.theme import Theme
from attnviz.sweep.numbers import heads_name
from attnviz.sweep.records import SweepReport
from attnviz.train.records import CurvePoint

__all__ = ["CurvesByHeads", "curves_by_heads", "mean_curves"]

_PLACES = 200

CurvesByHeads = Mapping[int, Sequence[Sequence[CurvePoint]]]
"""By the number of heads the curve of each seed."""


def curves_by_heads(report: SweepReport) -> CurvesByHeads:
    """The curves of the models that are trained."""
    return {heads: [model.points for model in report.of(heads)] for heads in report.measured}


def mean_curves(curves: CurvesByHeads, theme: Theme, room: int, rows: int = 12) -> Block:
    """A line a number of heads; each point is the mean over the seeds that have got there."""
    drawn = [
        Curve(_name(heads, len(seeds)), _mean(seeds))
        for heads, seeds in sorted(curves.items())
        if any(seeds)
    ]
    title = [
        ("Loss while training", True),
        ("nats per counted prediction, of batches that were never seen before", False),
    ]
    return curve_plot(drawn, theme, room, title=title, across="steps", rows=rows)


def _name(heads: int, seeds: int) -> str:
    return f"{heads_name(heads)}, mean of {seeds} seed{'s' * (seeds != 1)}"


def _mean(seeds: Sequence[Sequence[CurvePoint]]) -> list[tuple[float, float]]:
    """The mean of the seeds at each of their points, and on the straight lines between.

    The plot puts the signs that tell curves apart without colour at points, and needs enough.
    """
    losses: dict[int, list[float]] = {}
    for points in seeds:
        for point in points:
            losses.setdefault(point.step, []).append(point.loss)
    steps = sorted(losses)
    means = [sum(losses[step]) / len(losses[step]) for step in steps]
    places = sorted({*steps, *np.linspace(steps[0], steps[-1], _PLACES)})
    return list(zip(map(float, places), np.interp(places, steps, means).tolist(), strict=True))
