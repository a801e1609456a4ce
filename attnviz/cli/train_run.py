"""What ``attnviz train`` does once its options are read: check, train, store, show."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.cli.outlet import open_outlet
from attnviz.cli.output import Output
from attnviz.cli.signals import as_interrupt, between_steps
from attnviz.cli.terminal import messages
from attnviz.cli.train_progress import Report, telling, training
from attnviz.cli.train_wish import (
    TrainWish,
    check_not_overwritten,
    read_texts,
    wished_recipe,
)
from attnviz.learning import TrainedModel
from attnviz.models.placement import find_device
from attnviz.render.blocks import Block
from attnviz.render.export.lock import held
from attnviz.render.labels import visible
from attnviz.render.theme import Theme
from attnviz.render.training.screen import train_screen
from attnviz.training.place import check_place, sweep
from attnviz.training.run import TrainingRun

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.render.export.files import Writer

__all__ = ["Trained", "finished", "show_train"]

_BETWEEN_SAVES = 30.0
"""Seconds that are lost at most when a process is killed; more where saving takes long."""

_LONG_TEXT = 4_000_000
"""Bytes of text from which reading them takes seconds."""

_SAVING_SHARE = 0.05
"""Of the time that may go into saving."""


def show_train(wish: TrainWish, output: Output) -> None:
    """Run the command. What can be refused is refused before anything is trained."""
    outlet = open_outlet(output)
    check_not_overwritten(wish, output.save)
    recipe = wished_recipe(wish)
    check_place(wish.out, wish.resume)
    device = find_device(wish.device)
    train, valid = read_texts(wish)
    notices = messages(output.quiet)
    size = train.bytes + valid.bytes
    words = f"turning {size / 1e6:,.0f} MB of text into tokens"
    with telling(words, outlet.notices) if size > _LONG_TEXT else nullcontext():
        run = TrainingRun(train, valid, recipe, wish.out, device, resume=wish.resume)
    with held(wish.out):
        sweep(wish.out)
        with training(run, outlet.notices) as report:
            trained = _train(run, report)
        result = finished(run, outlet.notices) if trained else None
    if result is None:  # said only now that no bar is in the way
        _say_stopped(run, notices)
        raise KeyboardInterrupt
    run.close()
    outlet.show(Trained(result, wish.explain, () if output.quiet else _hints(result)))


def _train(run: TrainingRun, report: Report) -> bool:
    """To the end of the budget; False, the state saved, where the process was asked to stop."""
    saved, between = time.monotonic(), _BETWEEN_SAVES
    with between_steps() as stopped:
        for point in run.steps():
            report(point)
            validated = point is not None and point.valid_loss is not None
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


def _say_stopped(run: TrainingRun, notices: Console) -> None:
    where = visible(repr(str(run.directory)))
    notices.print(
        f"stopped after {run.trainer.tokens:,} tokens, {run.trainer.used:.0%} of the budget; "
        f"saved in {where}: the same command with --resume goes on",
        soft_wrap=True,
    )


@dataclass(frozen=True)
class Trained:
    """The model, and how it is to be seen."""

    result: TrainedModel
    explain: bool
    hints: tuple[str, ...]

    def screen(self, theme: Theme, console: Console) -> Block:
        return train_screen(self.result, theme, console.width, self.hints, self.explain)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.render.export.training_json import write_train_json

        write_train_json(self.result, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.render.export.files import text_file
        from attnviz.render.export.training_csv import write_train_csv

        return {".csv": text_file(partial(write_train_csv, self.result.points))}


def _hints(result: TrainedModel) -> tuple[str, ...]:
    """What to try next."""
    name = shlex.quote(result.directory)
    return (
        f'next: attnviz heads --model {name} "The cat sat, and the cat slept." draws its heads',
        f"attnviz patterns --model {name} names what each head does",
    )
