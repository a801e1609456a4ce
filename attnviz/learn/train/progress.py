"""The progress of a training: its curve, its speed, and the interface that shows both."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

from attnviz.draw import document as doc
from attnviz.draw.numbers import spoken_time
from attnviz.learn.train.report import CurvePoint

_RECENT = 20.0
"""Seconds over which the speed is measured."""

FRAME = 3
"""Lines of a plot in addition to its curves: title, axis, legend."""

LEAST_ROWS, _MOST_ROWS = 6, 18

OnStep = Callable[[bool], None]
"""Called after each step; True if the step deserves a line of its own if no plot is shown."""


class Watcher:
    """The interface to show a training while it runs; this base class shows nothing."""

    def telling(self, said: str) -> AbstractContextManager[None]:
        """Return a context that shows the sentence ``said`` while its block runs."""
        return nullcontext()

    def watching(
        self, words: Callable[[], str], plot: Callable[[], doc.Plot | None]
    ) -> AbstractContextManager[OnStep]:
        """Return a context that shows the progress; it gives a function to call after each step.

        words: returns the progress as a string. plot: returns the curves, None if there are none
            yet.
        """
        return nullcontext(lambda worth: None)


class Pace:
    """Estimates a training's tokens per second and the seconds left, from the last seconds.

    Phases differ in speed, so the mean over the whole run would mislead.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int, float]] = deque()

    def add(self, tokens: int, used: float) -> None:
        """Record the progress of the training.

        tokens: how many it was trained on so far. used: the share of the work that is done, from 0
            to 1.
        """
        now = self._clock()
        self._marks.append((now, tokens, used))
        while len(self._marks) > 2 and self._marks[1][0] < now - _RECENT:
            self._marks.popleft()

    @property
    def tokens_per_second(self) -> float | None:
        """Return the recent speed in tokens per second; None before it can be measured."""
        seconds, tokens, _ = self._recent()
        return tokens / seconds if seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Return the estimated time left in seconds; None before it can be measured."""
        seconds, _, used = self._recent()
        return (1 - self._marks[-1][2]) * seconds / used if used > 0 else None

    @property
    def words(self) -> list[str]:
        """Return strings on the progress such as ``40% done`` and ``about 25 min left``."""
        done = [f"{self._marks[-1][2]:.0%} done"] if self._marks else []
        left = self.seconds_left
        return done if left is None else [*done, f"about {spoken_time(left)} left"]

    def _recent(self) -> tuple[float, int, float]:
        if not self._marks:
            return 0.0, 0, 0.0
        first, last = self._marks[0], self._marks[-1]
        return last[0] - first[0], last[1] - first[1], last[2] - first[2]


def curve_plot(points: Sequence[CurvePoint]) -> doc.Plot:
    """Return a plot of both losses over the training tokens, with marks where phases begin."""
    valid = [(point.tokens, point.valid_loss) for point in points if point.valid_loss is not None]
    curves = [
        doc.Curve("training", [(point.tokens, point.loss) for point in points]),
        doc.Curve("validation", valid, marked=True),
    ]
    return doc.Plot(
        [("Loss", True), ("nats per token", False)],
        [curve for curve in curves if curve.points],
        "tokens read",
        marks=[
            doc.Mark(before.tokens, f"phase {after.phase}")
            for before, after in pairwise(points)
            if before.phase != after.phase
        ],
    )


def curve_rows(lines: int) -> int:
    """Return how many lines the curves take in a plot of ``lines`` lines in all."""
    return max(min(lines - FRAME, _MOST_ROWS), LEAST_ROWS)
