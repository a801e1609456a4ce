"""The progress of a running sweep, as a plot and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted
from attnviz.learn.train.progress import Pace
from attnviz.learn.train.report import CurvePoint

CurvesByHeads = Mapping[int, Sequence[Sequence[CurvePoint]]]
"""The curve of each seed, by the number of heads."""

_SMALL = 0.0005
"""Losses below this would be rounded to 0.000."""


class Progress:
    """The progress of a running sweep.

    models: number of models to train. steps: of each. curves: by heads, the points of each seed.
    heads, seed, step: of the model in training. done: number of trained models.
    """

    def __init__(self, models: int, steps: int, pace: Pace | None = None) -> None:
        self.models, self.steps = models, steps
        self.curves: dict[int, list[list[CurvePoint]]] = {}
        self.heads = self.seed = self.step = self.done = 0
        self._pace = pace or Pace()

    def begin(self, heads: int, seed: int, points: list[CurvePoint]) -> None:
        """Record that the training of another model begins.

        heads, seed: of the model. points: its curve, to which the training appends.
        """
        self.heads, self.seed, self.step = heads, seed, 0
        self.curves.setdefault(heads, []).append(points)

    def advance(self) -> None:
        """Record that the model in training has made another training step."""
        self.step += 1
        self._pace.add(0, (self.done + self.step / self.steps) / self.models)

    @property
    def plot(self) -> doc.Plot | None:
        """Return the plot of the curves so far; None if there are no points yet."""
        return curves_plot(self.curves) if any(map(any, self.curves.values())) else None

    @property
    def words(self) -> str:
        """Return the progress: ``model 5 of 12: 1 head, seed 1, loss 0.912, 40% done, …``."""
        points = self.curves[self.heads][-1]
        loss = [f"loss {nats(points[-1].loss)}"] if points else []
        parts = [counted(self.heads, "head"), f"seed {self.seed}", *loss, *self._pace.words]
        return f"model {self.done + 1} of {self.models}: {', '.join(parts)}"


def curves_plot(curves: CurvesByHeads, rows: int = 12) -> doc.Plot:
    """Return a plot with one line per number of heads, the mean over the seeds at each step.

    curves: by the number of heads, the points of each seed. rows: the height of the plot in lines.
    """
    drawn = []
    for heads, seeds in sorted(curves.items()):
        losses: dict[int, list[float]] = {}
        for point in (point for points in seeds for point in points):
            losses.setdefault(point.step, []).append(point.loss)
        means = [(float(step), sum(losses[step]) / len(losses[step])) for step in sorted(losses)]
        if means:
            drawn.append(doc.Curve(counted(heads, "head"), means))
    most = max(map(len, curves.values()), default=1)
    title = [("Training loss", True), ("nats per predictable position, fresh batches", False)]
    title += [(f"mean of {most} seeds", False)] if most > 1 else []
    return doc.Plot(title, drawn, "steps", rows=rows)


def nats(value: float) -> str:
    """Return a loss as a string, such as ``0.066``; one that would round to zero as ``2e-05``."""
    return f"{value:.0e}" if 0 < abs(value) < _SMALL else f"{value:.3f}"
