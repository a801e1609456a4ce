"""What ``attnviz train`` does: it trains, saves what resumes, tells how far it is, and shows."""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.text import Text

from attnviz.cli.outlet import Outlet
from attnviz.cli.progress import spoken_time
from attnviz.cli.terminal import as_interrupt, between_steps, messages
from attnviz.draw.labels import visible, width
from attnviz.draw.whole_file import held
from attnviz.train.directory import clean_directory
from attnviz.train.recipe import Recipe
from attnviz.train.records import CurvePoint, TrainedModel
from attnviz.train.run import TrainingRun
from attnviz.train.texts import Corpus
from attnviz.train.trainer import Trainer

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document

Tell = Callable[[CurvePoint | None], None]
"""Called after each step with the point of the curve that it ended with, if any."""

_PATIENCE = 30.0
"""Seconds between two lines where no terminal shows a bar."""

_BESIDE = 10
"""Columns of the spinner and the share, beside the bar."""

_RECENT = 20.0
"""Seconds over which the speed is measured."""

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
        with training(run.trainer, outlet.notices) as tell:
            done = _train(run, tell)
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
    outlet.show(TrainReport(result, outlet.output.explain, () if quiet else _hints(result)))


def _train(run: TrainingRun, tell: Tell) -> bool:
    """To the end of the budget; False, the state saved, where the process was asked to stop."""
    saved, between = time.monotonic(), _BETWEEN_SAVES
    with between_steps() as stopped:
        for point in run.trainer.steps():
            tell(point)
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


@dataclass(frozen=True)
class TrainReport:
    """The model, and how it is to be seen."""

    result: TrainedModel
    explain: bool
    hints: tuple[str, ...]

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.train.data import write_train_json

        write_train_json(self.result, stream)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.train.data import train_rows

        return train_rows(self.result)

    def document(self) -> Document:
        from attnviz.train.document import train_document

        return train_document(self.result, self.hints, self.explain)


def _hints(result: TrainedModel) -> tuple[str, ...]:
    """What to try next: to look at heads only where something was learnt."""
    if not result.learnt:
        return ("--tokens 2000000 --out NEW: train longer",)
    name = shlex.quote(result.directory)
    return (
        f'attnviz heads --model {name} "One cat, two cats."',
        f"attnviz patterns --model {name}",
    )


# How far it is -----------------------------------------------------------------------------


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
def training(trainer: Trainer, console: Console) -> Iterator[Tell]:
    """A bar, gone at the end; without a terminal a line at each validation, and now and then."""
    pace = Pace()
    if console.quiet:
        yield lambda point: None
    elif not console.is_terminal or console.is_dumb_terminal:
        said = time.monotonic()

        def print_line(point: CurvePoint | None) -> None:
            nonlocal said
            pace.add(trainer.tokens, trainer.used)
            validated = point is not None and point.valid_loss is not None
            if validated or time.monotonic() - said > _PATIENCE:
                said = time.monotonic()
                line = f"{trainer.used:4.0%} {words(trainer, pace)}"
                console.print(line, soft_wrap=True, markup=False, highlight=False)

        yield print_line
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

            def move_bar(point: CurvePoint | None) -> None:
                pace.add(trainer.tokens, trainer.used)
                said = words(trainer, pace, console.width - bar - _BESIDE)
                shown.update(task, completed=trainer.used, description=said)

            yield move_bar


def words(trainer: Trainer, pace: Pace, room: float = inf) -> str:
    """Such as ``text: loss 3.21, validation 3.40, 11,000 tokens/s, 25 min left``.

    Where there is no room for all, the phase goes first, then the speed, then the losses.
    """
    points = trainer.points
    parts = {"phase": f"{visible(trainer.phase)}: "}
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
