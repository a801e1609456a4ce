"""What ``attnviz train`` does once its options are read: check, train, store, show."""

from __future__ import annotations

import sys
import time

from rich.console import Console

from attnviz.cli.output import Output
from attnviz.cli.signals import between_steps
from attnviz.cli.streams import printing
from attnviz.cli.terminal import messages, open_console
from attnviz.cli.train_progress import Report, training
from attnviz.cli.train_wish import TrainWish, read_texts, wished_recipe
from attnviz.learning import TrainedModel
from attnviz.models.placement import find_device
from attnviz.render.export.lock import held
from attnviz.render.export.training_save import check_save_path, save_training
from attnviz.render.labels import visible
from attnviz.render.theme import Theme
from attnviz.render.training.screen import train_screen
from attnviz.training.place import check_place, sweep
from attnviz.training.run import TrainingRun

__all__ = ["show_train"]

_BETWEEN_SAVES = 30.0
"""Seconds that are lost at most when a process is killed; more where saving takes long."""

_SAVING_SHARE = 0.05
"""Of the time that may go into saving."""


def show_train(wish: TrainWish, output: Output) -> None:
    """Run the command. What can be refused is refused before anything is trained."""
    console = open_console(output.width, output.colour) if output.drawn else None
    for path in output.save:
        check_save_path(path)
    recipe = wished_recipe(wish)
    check_place(wish.out, wish.resume)
    device = find_device(wish.device)
    train, valid = read_texts(wish)
    notices = messages(output.quiet)
    run = TrainingRun(train, valid, recipe, wish.out, device, resume=wish.resume)
    with held(wish.out), training(run, messages(output.quiet or output.json)) as report:
        if wish.resume:
            sweep(wish.out)
        result = run.finish() if _train(run, report) else None
    if result is None:  # said only now that no bar is in the way
        _say_stopped(run, notices)
        raise KeyboardInterrupt
    run.close()
    with printing():
        if output.json:
            from attnviz.render.export.training_json import write_train_json

            write_train_json(result, sys.stdout)
        elif console is not None:
            theme = Theme.of(console, output.palette, output.ascii)
            hints = () if output.quiet else _hints(result)
            screen = train_screen(result, theme, console.width, hints, wish.explain)
            console.print(screen, end="")
    _save(result, wish, output, console, messages(output.quiet or output.json))


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


def _say_stopped(run: TrainingRun, notices: Console) -> None:
    where = visible(repr(str(run.directory)))
    notices.print(
        f"stopped after {run.trainer.tokens:,} tokens, {run.trainer.used:.0%} of the budget; "
        f"saved in {where}: the same command with --resume goes on"
    )


def _save(
    result: TrainedModel,
    wish: TrainWish,
    output: Output,
    console: Console | None,
    notices: Console,
) -> None:
    drawing = ""
    if console is not None and output.save:
        theme = Theme(output.palette, colour=False, ascii=output.ascii)
        drawing = train_screen(result, theme, console.width, explain=wish.explain).plain
    for path in output.save:
        save_training(result, path, drawing)
        notices.print(f"saved {visible(str(path))}")


def _hints(result: TrainedModel) -> tuple[str, ...]:
    """What to try next."""
    directory = result.directory
    name = directory if directory.isprintable() and " " not in directory else repr(directory)
    return (
        f'next: attnviz heads --model {name} "The cat sat on the mat." shows where its heads look',
        f"attnviz patterns --model {name} names what each head does",
    )
