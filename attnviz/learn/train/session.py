"""What ``attnviz train`` does: it trains, saves what resumes, tells how far it is, and shows."""

from __future__ import annotations

import shlex
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from attnviz.cli.outlet import Found, Outlet
from attnviz.cli.terminal import as_interrupt, between_steps, messages
from attnviz.draw.labels import visible
from attnviz.draw.whole_file import held
from attnviz.learn.train.data import train_data, train_rows
from attnviz.learn.train.directory import clean_directory
from attnviz.learn.train.document import curve_plot, train_document
from attnviz.learn.train.progress import Pace, Watch, telling, watching
from attnviz.learn.train.recipe import Recipe
from attnviz.learn.train.records import TrainedModel
from attnviz.learn.train.run import TrainingRun
from attnviz.learn.train.texts import Corpus
from attnviz.learn.train.trainer import Trainer

_BETWEEN_SAVES = 30.0
"""Seconds that are lost at most when a process is killed; more where saving takes long."""

_LONG_TEXT = 4_000_000
"""Bytes of text from which reading them takes seconds."""

_SAVING_SHARE = 0.05
"""Of the time that may go into saving."""


def train_and_show(
    train: Corpus,
    valid: Corpus,
    recipe: Recipe,
    directory: Path,
    device: torch.device,
    outlet: Outlet,
    *,
    resume: bool,
) -> None:
    """Train a model, and show what came of it; Ctrl-C saves it and passes on.

    Raises as ``TrainingRun`` does.
    """
    size = train.bytes + valid.bytes
    said = f"turning {size / 1e6:,.0f} MB of text into tokens"
    with telling(said, outlet.notices) if size > _LONG_TEXT else nullcontext():
        run = TrainingRun(train, valid, recipe, directory, device, resume=resume)
    quiet = outlet.output.quiet
    with held(directory):
        clean_directory(directory)
        pace, trainer = Pace(), run.trainer
        with watching(
            outlet, lambda: words(trainer, pace), lambda: curve_plot(trainer.points)
        ) as watch:
            done = _train(run, pace, watch)
        result = finished(run, outlet.notices) if done else None
    if result is None:  # said only now that no bar is in the way
        where = visible(repr(str(directory)))
        messages(quiet).print(
            f"stopped after {run.trainer.tokens:,} tokens, {run.trainer.used:.0%} of the budget; "
            f"saved in {where}: the same command with --resume goes on",
            soft_wrap=True,
        )
        raise KeyboardInterrupt
    run.close()
    hints = () if quiet else _hints(result)
    drawn = partial(train_document, result, hints, outlet.output.explain)
    outlet.show(Found(partial(train_data, result), partial(train_rows, result), drawn))


def _train(run: TrainingRun, pace: Pace, watch: Watch) -> bool:
    """To the end of the budget; False, the state saved, where the process was asked to stop."""
    saved, between = time.monotonic(), _BETWEEN_SAVES
    with between_steps() as stopped:
        for point in run.trainer.steps():
            pace.add(run.trainer.tokens, run.trainer.used)
            validated = point is not None and point.valid_loss is not None
            watch(validated)
            if validated or stopped() or time.monotonic() - saved > between:
                began = time.monotonic()
                run.save_state()
                saved = time.monotonic()
                between = max(_BETWEEN_SAVES, (saved - began) / _SAVING_SHARE)
            if validated or stopped():
                run.store()  # another process can look at the heads while they form
            if stopped():
                break
        return run.trainer.used >= 1


def finished(run: TrainingRun, notices: Console) -> TrainedModel | None:
    """What came of the run, whose state is saved; None where the process was asked to stop."""
    try:
        with as_interrupt(), telling("measuring the trained model", notices):
            return run.finish()
    except KeyboardInterrupt:
        return None


def _hints(result: TrainedModel) -> tuple[str, ...]:
    """What to try next: to look at heads only where something was learnt."""
    if not result.learnt:
        return ("--tokens 2000000 --out NEW: train longer",)
    name = shlex.quote(result.directory)
    return (
        f'attnviz heads --model {name} "One cat, two cats."',
        f"attnviz patterns --model {name}",
    )


def words(trainer: Trainer, pace: Pace) -> str:
    """Such as ``text: loss 3.21, validation 3.40, 11,000 tokens/s, 40% done``."""
    parts = []
    if trainer.points:
        parts.append(f"loss {trainer.points[-1].loss:.2f}")
        valid = next((one.valid_loss for one in reversed(trainer.points) if one.valid_loss), None)
        parts += [] if valid is None else [f"validation {valid:.2f}"]
    speed = pace.tokens_per_second
    parts += [] if speed is None else [f"{speed:,.0f} tokens/s"]
    return f"{visible(trainer.phase)}: {', '.join([*parts, *pace.words])}"
