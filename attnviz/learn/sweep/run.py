"""What ``attnviz sweep`` does: it trains, tells how far it is, and compares."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import torch

from attnviz.cli.outlet import Found, Outlet
from attnviz.cli.terminal import between_steps, messages
from attnviz.draw.numbers import spoken_time
from attnviz.draw.provenance import counted
from attnviz.learn.sweep.data import sweep_data, sweep_rows
from attnviz.learn.sweep.document import curves_plot, sweep_document
from attnviz.learn.sweep.findings import nats
from attnviz.learn.sweep.records import SweepModel, SweepReport
from attnviz.learn.sweep.training import HeadsTraining, SweepPlan, few_threads
from attnviz.learn.train.progress import Pace, Watch, watching
from attnviz.learn.train.records import CurvePoint

if TYPE_CHECKING:
    from attnviz.draw.document import Plot


class Progress:
    """How far a sweep is.

    models: how many are to be trained. steps: of each. curves: by heads, the points of each seed.
    heads, seed, step: of what is trained now. done: models that are trained.
    """

    def __init__(self, models: int, steps: int, pace: Pace | None = None) -> None:
        self.models, self.steps = models, steps
        self.curves: dict[int, list[list[CurvePoint]]] = {}
        self.heads = self.seed = self.step = self.done = 0
        self._pace = pace or Pace()

    def begin(self, heads: int, seed: int, points: list[CurvePoint]) -> None:
        """Another model, whose curve grows in ``points``."""
        self.heads, self.seed, self.step = heads, seed, 0
        self.curves.setdefault(heads, []).append(points)

    def advance(self) -> None:
        """Another step of the model."""
        self.step += 1
        share = (self.done + self.step / self.steps) / self.models
        self._pace.add(0, share)

    @property
    def plot(self) -> Plot | None:
        """The curves so far."""
        return curves_plot(self.curves) if any(map(any, self.curves.values())) else None

    @property
    def words(self) -> str:
        """Such as ``model 5 of 12: 1 head, seed 1, loss 0.912, 40% done, about 60 s left``."""
        points = self.curves[self.heads][-1]
        loss = [f"loss {nats(points[-1].loss)}"] if points else []
        parts = [counted(self.heads, "head"), f"seed {self.seed}", *loss, *self._pace.words]
        return f"model {self.done + 1} of {self.models}: {', '.join(parts)}"


_LONG = 5.0
"""Seconds of a sweep that are worth a word."""


def train_and_compare(plan: SweepPlan, device: torch.device, outlet: Outlet) -> None:
    """Train all models of a plan, and show how they differ.

    Ctrl-C shows the models that are trained, and passes on as KeyboardInterrupt.
    """
    output, notices = outlet.output, outlet.notices
    began = time.monotonic()
    wanted = len(plan.heads) * len(plan.seeds)
    progress = Progress(wanted, plan.steps)
    with (
        watching(outlet, lambda: progress.words, lambda: progress.plot) as watch,
        few_threads(plan) as threads,
    ):
        models = _train(plan, device, progress, watch)
    if models:
        report = _report(plan, device, threads, models, time.monotonic() - began)
        hints = () if output.quiet else _hints(report, output.explain)
        drawn = partial(sweep_document, report, hints, output.explain)
        outlet.show(Found(partial(sweep_data, report), partial(sweep_rows, report), drawn))
        if report.seconds > _LONG:
            notices.print(f"the sweep took {spoken_time(report.seconds)}")
    if len(models) < wanted:
        messages(output.quiet).print(
            f"stopped: {len(models)} of {wanted} models are trained", soft_wrap=True
        )
        raise KeyboardInterrupt


def _train(
    plan: SweepPlan, device: torch.device, progress: Progress, watch: Watch
) -> tuple[SweepModel, ...]:
    """All models seed by seed, or those that were finished when it was asked to stop."""
    samples = plan.measured_on()
    models: list[SweepModel] = []
    with between_steps() as stopped:
        for seed in plan.seeds:
            for heads in plan.heads:
                training = HeadsTraining(plan, heads, seed, device)
                progress.begin(heads, seed, training.points)
                for _ in training.steps():
                    progress.advance()
                    watch(False)
                    if stopped():
                        return tuple(models)
                models.append(training.measured(samples))
                progress.done, progress.step = len(models), 0
    return tuple(models)


def _report(
    plan: SweepPlan,
    device: torch.device,
    threads: int,
    models: tuple[SweepModel, ...],
    seconds: float,
) -> SweepReport:
    samples = plan.measured_on()
    wanted = len(plan.heads) * len(plan.seeds)
    notes = []
    if len(models) < wanted:
        notes.append(
            f"interrupted: {len(models)} of {wanted} models are trained, the others are left out"
        )
    return SweepReport(
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
        threads=threads,
        models=models,
        seconds=seconds,
        notes=tuple(notes),
    )


def _hints(report: SweepReport, explained: bool) -> tuple[str, ...]:
    """What to try next."""
    if report.task.text is not None:
        return ("--task induction, copy or majority: tasks whose answers are known",)
    more = "--steps 1500: train longer" if explained else "--explain: how to read this"
    return (more, "--text FILE: learn from your own text")
