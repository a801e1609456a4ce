"""Trains a model, saves it so that it can be resumed, and makes the report of ``attnviz train``."""

from __future__ import annotations

import time
from contextlib import nullcontext

from attnviz.draw.labels import visible
from attnviz.draw.whole_file import directory_lock
from attnviz.interrupts import as_interrupt, between_steps
from attnviz.learn.train.directory import check_directory, clean_directory
from attnviz.learn.train.progress import OnStep, Pace, Watcher
from attnviz.learn.train.report import TrainReport
from attnviz.learn.train.request import TrainRequest
from attnviz.learn.train.run import TrainingRun
from attnviz.learn.train.screen import curve_plot
from attnviz.learn.train.trainer import Trainer
from attnviz.models.placement import find_device
from attnviz.models.threads import allowed_processors, use_threads

_BETWEEN_SAVES = 30.0
"""Most seconds of training that a killed process loses; more if saving takes long."""

_LONG_TEXT = 4_000_000
"""Bytes of text from which reading and tokenizing takes seconds."""

_SAVING_SHARE = 0.05
"""Largest share of the time spent on saving."""


class Stopped(KeyboardInterrupt):
    """Raised if the user stops a training that is saved; the message says how to resume it."""


def train(
    request: TrainRequest, *, device: str = "cpu", watcher: Watcher | None = None
) -> TrainReport:
    """Train a small language model with the library's own attention, and store it in a directory.

    device: where to train. watcher: shows the progress of the training.
    Raises ``Stopped`` after Ctrl-C, when the run is saved; UsageError if texts, options or the
    device do not fit, LoadError if a file cannot be read or the directory not be written.
    """
    watcher = watcher or Watcher()
    recipe = request.recipe()
    check_directory(request.out, request.resume)
    place = find_device(device)
    use_threads(allowed_processors())  # a step has many texts at once
    learned, valid = request.texts()
    size = learned.bytes + valid.bytes
    said = f"turning {size / 1e6:,.0f} MB of text into tokens"
    with watcher.telling(said) if size > _LONG_TEXT else nullcontext():
        run = TrainingRun(learned, valid, recipe, request.out, place, resume=request.resume)
    with directory_lock(request.out):
        clean_directory(request.out)
        pace, trainer = Pace(), run.trainer
        with watcher.watching(
            lambda: words(trainer, pace), lambda: curve_plot(trainer.points)
        ) as on_step:
            done = _train(run, pace, on_step)
        report = finish_saved(run, watcher) if done else None
    if report is None:  # raised here, after the progress bar is gone
        raise Stopped(
            f"stopped after {trainer.tokens:,} tokens, {trainer.used:.0%} of the budget; "
            f"saved in {visible(repr(str(request.out)))}: the same command with --resume goes on"
        )
    run.close()
    return report


def _train(run: TrainingRun, pace: Pace, on_step: OnStep) -> bool:
    """Train to the end of the budget; return False if the user stopped the training.

    The run is then saved. pace: measures the speed. on_step: called after each training step.
    """
    saved, between = time.monotonic(), _BETWEEN_SAVES
    with between_steps() as stopped:
        for point in run.trainer.steps():
            pace.add(run.trainer.tokens, run.trainer.used)
            validated = point is not None and point.valid_loss is not None
            on_step(validated)
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


def finish_saved(run: TrainingRun, watcher: Watcher) -> TrainReport | None:
    """Finish a saved training and return its report; None if the user stops meanwhile.

    watcher: shows the progress.
    """
    try:
        with as_interrupt(), watcher.telling("measuring the trained model"):
            return run.finish()
    except KeyboardInterrupt:
        return None


def words(trainer: Trainer, pace: Pace) -> str:
    """Return the progress: ``text: loss 3.21, validation 3.40, 11,000 tokens/s, 40% done``.

    trainer: trains the model. pace: measures the speed.
    """
    parts = []
    if trainer.points:
        parts.append(f"loss {trainer.points[-1].loss:.2f}")
        valid = next((one.valid_loss for one in reversed(trainer.points) if one.valid_loss), None)
        parts += [] if valid is None else [f"validation {valid:.2f}"]
    speed = pace.tokens_per_second
    parts += [] if speed is None else [f"{speed:,.0f} tokens/s"]
    return f"{visible(trainer.phase)}: {', '.join([*parts, *pace.words])}"
