"""What ``attnviz train`` does once its options are read: train, tell how far it is, show."""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from attnviz.cli.options import Output
from attnviz.cli.outlet import open_outlet
from attnviz.cli.progress import spoken_time
from attnviz.cli.terminal import as_interrupt, between_steps, messages
from attnviz.draw.blocks import Block
from attnviz.draw.labels import visible, width
from attnviz.draw.lock import held
from attnviz.draw.theme import Theme
from attnviz.models.placement import find_device
from attnviz.train.place import check_place, sweep
from attnviz.train.records import CurvePoint, TrainedModel
from attnviz.train.request import (
    TrainWish,
    check_not_overwritten,
    read_texts,
    wished_recipe,
)
from attnviz.train.run import TrainingRun
from attnviz.train.screen import train_screen

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.files import Writer

__all__ = ["Pace", "Report", "Trained", "finished", "show_train", "telling", "training", "words"]

Report = Callable[[CurvePoint | None], None]
"""Called after each step with the point of the curve that it ended with, if any."""

_PATIENCE = 30.0
"""Seconds between two lines where no terminal shows a bar."""

_BESIDE = 10
"""Columns of the spinner and the share, beside the bar."""

_RECENT = 20.0
"""Seconds over which the speed is measured."""


class Pace:
    """Tokens per second and seconds left, from what happened lately.

    Phases differ in speed, so the mean over the whole run would mislead.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int, float]] = deque()

    def add(self, tokens: int, used: float) -> None:
        """So many tokens were read by now, and this share of the budget is used up."""
        now = self._clock()
        self._marks.append((now, tokens, used))
        while len(self._marks) > 2 and self._marks[1][0] < now - _RECENT:
            self._marks.popleft()

    @property
    def tokens_per_second(self) -> float | None:
        """None before there is anything to measure."""
        seconds, tokens, _ = self._recent()
        return tokens / seconds if seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """None before there is anything to measure."""
        seconds, _, used = self._recent()
        return (1 - self._marks[-1][2]) * seconds / used if used > 0 else None

    def _recent(self) -> tuple[float, int, float]:
        if not self._marks:
            return 0.0, 0, 0.0
        first, last = self._marks[0], self._marks[-1]
        return last[0] - first[0], last[1] - first[1], last[2] - first[2]


@contextmanager
def telling(said: str, console: Console) -> Iterator[None]:
    """Says what happens while the block runs; in a terminal it is gone at the end."""
    if console.quiet:
        yield
    elif not console.is_terminal or console.is_dumb_terminal:
        console.print(said, soft_wrap=True, markup=False, highlight=False)
        yield
    else:
        with console.status(Text(said)):
            yield


@contextmanager
def training(run: TrainingRun, console: Console) -> Iterator[Report]:
    """A bar, gone at the end; without a terminal a line now and then."""
    if console.quiet:
        yield lambda point: None
    elif not console.is_terminal or console.is_dumb_terminal:
        yield _lines(run, console)
    else:
        from rich import progress as bars  # 20 ms that a quiet run does not need

        bar = 20 if console.width >= 100 else 8
        with bars.Progress(
            bars.SpinnerColumn(),
            bars.BarColumn(bar_width=bar),
            bars.TaskProgressColumn(),
            bars.TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
        ) as shown:
            task = shown.add_task("training", total=1.0)
            pace = Pace()

            def report(point: CurvePoint | None) -> None:
                pace.add(run.trainer.tokens, run.trainer.used)
                said = words(run, pace, console.width - bar - _BESIDE)
                shown.update(task, completed=run.trainer.used, description=said)

            yield report


def _lines(run: TrainingRun, console: Console) -> Report:
    """Speaks at each validation, and every half minute."""
    pace = Pace()
    said = time.monotonic()

    def report(point: CurvePoint | None) -> None:
        nonlocal said
        pace.add(run.trainer.tokens, run.trainer.used)
        validated = point is not None and point.valid_loss is not None
        now = time.monotonic()
        if validated or now - said > _PATIENCE:
            said = now
            line = f"{run.trainer.used:4.0%} {words(run, pace)}"
            console.print(line, soft_wrap=True, markup=False, highlight=False)

    return report


def words(run: TrainingRun, pace: Pace, room: float = inf) -> str:
    """Such as ``text: loss 3.21, validation 3.40, 11,000 tokens/s, 25 min left``.

    Where there is no room for all, the phase goes first, then the speed, then the losses.
    """
    points = run.trainer.points
    parts = {"phase": f"{visible(run.trainer.phase)}: "}
    if (left := pace.seconds_left) is not None:
        parts["left"] = f"{spoken_time(left)} left"
    if points:
        parts["loss"] = f"loss {points[-1].loss:.2f}, "
        valid = next((one.valid_loss for one in reversed(points) if one.valid_loss), None)
        if valid is not None:
            parts["validation"] = f"validation {valid:.2f}, "
    if (speed := pace.tokens_per_second) is not None:
        parts["speed"] = f"{speed:,.0f} tokens/s, "

    def sentence() -> str:
        order = ("phase", "loss", "validation", "speed", "left")
        return "".join(parts.get(name, "") for name in order).removesuffix(", ").removesuffix(": ")

    for name in ("phase", "speed", "loss", "validation"):
        if width(sentence()) > room:
            parts.pop(name, None)
    return sentence()


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
        from attnviz.train.json import write_train_json

        write_train_json(self.result, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.draw.files import text_file
        from attnviz.train.csv import write_train_csv

        return {".csv": text_file(partial(write_train_csv, self.result.points))}


def _hints(result: TrainedModel) -> tuple[str, ...]:
    """What to try next."""
    name = shlex.quote(result.directory)
    return (
        f'next: attnviz heads --model {name} "The cat sat, and the cat slept." draws its heads',
        f"attnviz patterns --model {name} names what each head does",
    )
