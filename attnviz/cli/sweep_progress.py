"""The curves of a sweep as they grow, on standard error, with how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.text import Text

from attnviz.cli.scan_progress import spoken_time
from attnviz.learning import CurvePoint
from attnviz.render.sweep.curves import mean_curves
from attnviz.render.sweep.numbers import heads_name, nats
from attnviz.render.theme import Theme

__all__ = ["Progress", "Watch", "watching"]

Watch = Callable[["Progress"], None]
"""Called after each step."""

_BETWEEN = 0.25
"""Seconds between two drawings."""

_PATIENCE = 10.0
"""Seconds between two lines where no terminal shows a picture."""

_ROWS = 12
_CHROME = 4
"""Lines beside the rows of the canvas and the legend's: title, axis, progress."""


class Progress:
    """How far a sweep is.

    models: how many are to be trained. steps: of each. curves: by heads, the points of each seed.
    heads, seed, step: of what is trained now. done: models that are trained.
    """

    def __init__(
        self, models: int, steps: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.models, self.steps = models, steps
        self.curves: dict[int, list[list[CurvePoint]]] = {}
        self.heads = self.seed = self.step = self.done = 0
        self._clock, self._began = clock, clock()

    def begin(self, heads: int, seed: int, points: list[CurvePoint]) -> None:
        """Another model, whose curve grows in ``points``."""
        self.heads, self.seed, self.step = heads, seed, 0
        self.curves.setdefault(heads, []).append(points)

    @property
    def share(self) -> float:
        """Of all steps, in [0, 1]."""
        return (self.done + self.step / self.steps) / self.models

    @property
    def words(self) -> str:
        """Such as ``model 5 of 12: 1 head, seed 1, loss 0.912, 40% done, about 60 s left``."""
        parts = [
            f"model {self.done + 1} of {self.models}: {heads_name(self.heads)}, seed {self.seed}"
        ]
        points = self.curves[self.heads][-1]
        if points:
            parts.append(f"loss {nats(points[-1].loss)}")
        parts.append(f"{self.share:.0%} done")
        spent = self._clock() - self._began
        if self.share > 0.01:
            left = spent * (1 - self.share) / self.share
            parts.append(f"about {spoken_time(left)} left")
        return ", ".join(parts)


@contextmanager
def watching(console: Console, palette: str, ascii_only: bool) -> Iterator[Watch]:
    """A picture that is gone at the end; without a terminal a line now and then."""
    if console.quiet:
        yield lambda progress: None
    elif not console.is_terminal or console.is_dumb_terminal:
        yield _lines(console)
    else:
        from rich.live import Live  # 20 ms that a quiet run does not need

        theme = Theme.of(console, palette, ascii_only)
        with Live(console=console, auto_refresh=False, transient=True) as live:
            drawn = 0.0

            def watch(progress: Progress) -> None:
                nonlocal drawn
                if time.monotonic() - drawn < _BETWEEN:
                    return
                drawn = time.monotonic()
                live.update(_picture(progress, theme, console), refresh=True)

            yield watch


def _picture(progress: Progress, theme: Theme, console: Console) -> Group | Text:
    words = Text(progress.words, no_wrap=True, overflow="ellipsis")
    rows = min(_ROWS, console.height - _CHROME - len(progress.curves))
    if rows < 3 or not any(points for seeds in progress.curves.values() for points in seeds):
        return words
    return Group(mean_curves(progress.curves, theme, console.width - 1, rows), words)


def _lines(console: Console) -> Watch:
    said = time.monotonic()

    def watch(progress: Progress) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= _PATIENCE:
            said = now
            console.print(progress.words, soft_wrap=True)

    return watch
