"""Makes the report of ``attnviz sweep``: trains, measures and compares every model."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from attnviz.draw.numbers import counted
from attnviz.interrupts import between_steps
from attnviz.learn.sweep.document import curves_plot
from attnviz.learn.sweep.findings import nats
from attnviz.learn.sweep.records import SweepModel, SweepReport
from attnviz.learn.sweep.request import SweepRequest
from attnviz.learn.sweep.training import HeadsTraining, SweepPlan
from attnviz.learn.train.progress import OnStep, Pace, Watcher
from attnviz.learn.train.records import CurvePoint
from attnviz.models.placement import find_device
from attnviz.models.threads import threads_for, use_threads

if TYPE_CHECKING:
    from attnviz.draw.document import Plot


class Progress:
    """The progress of a running sweep, as a plot and as a string.

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
        share = (self.done + self.step / self.steps) / self.models
        self._pace.add(0, share)

    @property
    def plot(self) -> Plot | None:
        """Return the plot of the curves so far; None if there are no points yet."""
        return curves_plot(self.curves) if any(map(any, self.curves.values())) else None

    @property
    def words(self) -> str:
        """Return the progress: ``model 5 of 12: 1 head, seed 1, loss 0.912, 40% done, …``."""
        points = self.curves[self.heads][-1]
        loss = [f"loss {nats(points[-1].loss)}"] if points else []
        parts = [counted(self.heads, "head"), f"seed {self.seed}", *loss, *self._pace.words]
        return f"model {self.done + 1} of {self.models}: {', '.join(parts)}"


def sweep(
    request: SweepRequest, *, device: str = "cpu", watcher: Watcher | None = None
) -> SweepReport:
    """Train the same decoder with several numbers of heads, and compare what the heads learn.

    device: where to train. watcher: shows the progress of the training.
    Ctrl-C ends the training between two steps: the report then contains the models trained so far,
    perhaps none, and is not ``complete``. Raises UsageError if the heads do not divide the width,
    the task or device is unknown or the memory is too small, LoadError if the text cannot be read.
    """
    place = find_device(device)
    plan = SweepPlan(
        task=request.subject(),
        heads=request.numbers,
        seeds=tuple(range(request.seed, request.seed + request.seeds)),
        layers=request.layers,
        d_model=request.d_model,
        steps=request.steps,
    )
    began = time.monotonic()
    progress = Progress(len(plan.heads) * len(plan.seeds), plan.steps)
    shown = (watcher or Watcher()).watching(lambda: progress.words, lambda: progress.plot)
    use_threads(threads_for(12 * plan.layers * plan.d_model**2))
    with shown as on_step:
        models = _train(plan, place, progress, on_step)
    return _report(plan, place, models, time.monotonic() - began)


def _train(
    plan: SweepPlan, device: torch.device, progress: Progress, on_step: OnStep
) -> tuple[SweepModel, ...]:
    """Train all models, seed by seed; return them, or only the finished ones after a stop.

    plan: the models to train. progress: the state of the sweep, which is changed. on_step: called
        after each training step.
    """
    samples = plan.measured_on()
    models: list[SweepModel] = []
    with between_steps() as stopped:
        for seed in plan.seeds:
            for heads in plan.heads:
                training = HeadsTraining(plan, heads, seed, device)
                progress.begin(heads, seed, training.points)
                for _ in training.steps():
                    progress.advance()
                    on_step(False)
                    if stopped():
                        return tuple(models)
                models.append(training.measured(samples))
                progress.done, progress.step = len(models), 0
    return tuple(models)


def _report(
    plan: SweepPlan, device: torch.device, models: tuple[SweepModel, ...], seconds: float
) -> SweepReport:
    samples = plan.measured_on()
    report = SweepReport(
        task=plan.task.facts(samples),
        heads=plan.heads,
        seeds=plan.seeds,
        layers=plan.layers,
        d_model=plan.d_model,
        d_ff=plan.d_model,
        steps=plan.steps,
        batch=plan.batch,
        learning_rate=plan.optimiser.learning_rate,
        held_out=len(samples.ids),
        predictions=samples.predictions,
        device=str(device),
        threads=torch.get_num_threads(),
        models=models,
        seconds=seconds,
    )
    if report.complete:
        return report
    note = f"interrupted: {report.trained_words}, the others are left out"
    return replace(report, notes=(note,))
