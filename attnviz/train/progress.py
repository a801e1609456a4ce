"""How far a training run is and how long it still takes, on standard error."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from rich.console import Console
from rich.text import Text

from attnviz.cli.progress import spoken_time
from attnviz.draw.labels import visible, width
from attnviz.train.records import CurvePoint
from attnviz.train.trainer import Trainer

__all__ = ["Pace", "Tell", "telling", "training", "words"]

Tell = Callable[[CurvePoint | None], None]
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
def training(trainer: Trainer, console: Console) -> Iterator[Tell]:
    """A bar, gone at the end; without a terminal a line now and then."""
    if console.quiet:
        yield lambda point: None
    elif not console.is_terminal or console.is_dumb_terminal:
        yield _lines(trainer, console)
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
                pace.add(trainer.tokens, trainer.used)
                said = words(trainer, pace, console.width - bar - _BESIDE)
                shown.update(task, completed=trainer.used, description=said)

            yield report


def _lines(trainer: Trainer, console: Console) -> Tell:
    """Speaks at each validation, and every half minute."""
    pace = Pace()
    said = time.monotonic()

    def report(point: CurvePoint | None) -> None:
        nonlocal said
        pace.add(trainer.tokens, trainer.used)
        validated = point is not None and point.valid_loss is not None
        now = time.monotonic()
        if validated or now - said > _PATIENCE:
            said = now
            line = f"{trainer.used:4.0%} {words(trainer, pace)}"
            console.print(line, soft_wrap=True, markup=False, highlight=False)

    return report


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
