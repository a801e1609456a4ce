"""The progress of a training: its curves, its speed, and the interface that shows both."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted, spoken_time
from attnviz.learn.train.report import CurvePoint

_RECENT = 20.0
"""Seconds over which the speed is measured."""

_SMALL = 0.0005
"""Losses below this would be rounded to 0.000."""

OnStep = Callable[[bool], None]
"""Called after each step; True if the step deserves a line of its own if no plot is shown."""


class Watcher:
    """The interface to show a training while it runs; this base class shows nothing."""

    def telling(self, said: str) -> AbstractContextManager[None]:
        """Return a context that shows the sentence ``said`` while its block runs."""
        return nullcontext()

    def watching(
        self, words: Callable[[], str], plot: Callable[[], doc.Plot]
    ) -> AbstractContextManager[OnStep]:
        """Return a context that shows the progress; it gives a function to call after each step.

        words: returns the progress as a string. plot: returns the curves, none if there are no
            points yet.
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
    def words(self) -> list[str]:
        """Return strings such as ``900 tokens/s``, ``40% done`` and ``about 25 min left``."""
        if not self._marks:
            return []
        (began, before, first), (now, tokens, used) = self._marks[0], self._marks[-1]
        seconds, done = now - began, used - first
        words = [f"{(tokens - before) / seconds:,.0f} tokens/s"] if seconds and tokens else []
        words.append(f"{used:.0%} done")
        if done > 0:
            words.append(f"about {spoken_time((1 - used) * seconds / done)} left")
        return words


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


def mean_curves(curves: Sequence[tuple[int, Sequence[CurvePoint]]], rows: int = 12) -> doc.Plot:
    """Return a plot with one line per number of heads, the mean over its models at each step.

    curves: the number of heads and the points of each model. rows: the height in lines.
    """
    losses: dict[int, dict[int, list[float]]] = {}
    for heads, points in curves:
        for point in points:
            losses.setdefault(heads, {}).setdefault(point.step, []).append(point.loss)
    drawn = [
        doc.Curve(
            counted(heads, "head"),
            [(float(step), sum(at[step]) / len(at[step])) for step in sorted(at)],
        )
        for heads, at in sorted(losses.items())
    ]
    most = max((len(at) for steps in losses.values() for at in steps.values()), default=1)
    title = [("Training loss", True), ("nats per predictable position, fresh batches", False)]
    title += [(f"mean of {most} seeds", False)] if most > 1 else []
    return doc.Plot(title, drawn, "steps", rows=rows)


def curve_rows(lines: int) -> int:
    """Return how many lines the curves take in a plot of ``lines`` lines: title, axis, legend."""
    return max(min(lines - 3, 18), 6)


def nats(value: float) -> str:
    """Return a loss as a string, such as ``0.066``; one that would round to zero as ``2e-05``."""
    return f"{value:.0e}" if 0 < abs(value) < _SMALL else f"{value:.3f}"
