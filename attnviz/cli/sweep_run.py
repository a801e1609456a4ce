"""What ``attnviz sweep`` does once its options are read: check, train, measure, show."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from attnviz.cli.outlet import open_outlet
from attnviz.cli.output import Output
from attnviz.cli.scan_progress import spoken_time
from attnviz.cli.signals import between_steps
from attnviz.cli.sweep_progress import Progress, Watch, watching
from attnviz.cli.sweep_wish import SweepWish, sweep_plan
from attnviz.cli.terminal import messages
from attnviz.models.placement import find_device
from attnviz.render.blocks import Block
from attnviz.render.sweep.screen import sweep_screen
from attnviz.render.theme import Theme
from attnviz.sweeping import SweepModel, SweepReport
from attnviz.training.sweep import HeadsTraining, SweepPlan, few_threads

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.render.export.files import Writer

__all__ = ["show_sweep"]

_LONG = 5.0
"""Seconds of a sweep that are worth a word."""


def show_sweep(wish: SweepWish, output: Output) -> None:
    """Run the command. What can be refused is refused before anything is trained.

    Ctrl-C shows the models that are trained, and passes on as KeyboardInterrupt.
    """
    outlet = open_outlet(output)
    plan = sweep_plan(wish)
    device = find_device(wish.device)
    notices = outlet.notices
    began = time.monotonic()
    with watching(notices, output.palette, output.ascii) as watch, few_threads(plan) as threads:
        models = _train(plan, device, watch)
    wanted = len(plan.heads) * len(plan.seeds)
    if models:
        report = _report(plan, device, threads, models, time.monotonic() - began)
        outlet.show(_Swept(report, wish, () if output.quiet else _hints(wish)))
        if report.seconds > _LONG:
            notices.print(f"the sweep took {spoken_time(report.seconds)}")
    if len(models) < wanted:
        messages(output.quiet).print(
            f"stopped: {len(models)} of {wanted} models are trained", soft_wrap=True
        )
        raise KeyboardInterrupt


def _train(plan: SweepPlan, device: torch.device, watch: Watch) -> tuple[SweepModel, ...]:
    """All models seed by seed, or those that were finished when it was asked to stop."""
    samples = plan.measured_on()
    progress = Progress(len(plan.heads) * len(plan.seeds), plan.steps)
    models: list[SweepModel] = []
    with between_steps() as stopped:
        for seed in plan.seeds:
            for heads in plan.heads:
                training = HeadsTraining(plan, heads, seed, device)
                progress.begin(heads, seed, training.points)
                for _ in training.steps():
                    progress.step += 1
                    watch(progress)
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


@dataclass(frozen=True)
class _Swept:
    """The models compared, and how they are to be seen."""

    report: SweepReport
    wish: SweepWish
    hints: tuple[str, ...]

    def screen(self, theme: Theme, console: Console) -> Block:
        return sweep_screen(self.report, theme, console.width, self.hints, self.wish.explain)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.render.export.sweep_json import write_sweep_json

        write_sweep_json(self.report, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.render.export.files import text_file
        from attnviz.render.export.sweep_csv import write_sweep_csv

        return {".csv": text_file(partial(write_sweep_csv, self.report))}


def _hints(wish: SweepWish) -> tuple[str, ...]:
    """What to try next."""
    if wish.text is not None:
        return ("next: --task induction, copy or majority has answers that can be known",)
    more = "--explain says how to read this" if not wish.explain else "--steps 1500 trains longer"
    return (f"next: {more}", "--text FILE learns from a text of your own")
