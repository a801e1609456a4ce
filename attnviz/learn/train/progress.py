"""How far a training is: the curves so far and a line of words, gone at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.text import Text

from attnviz.cli.outlet import Outlet
from attnviz.draw.curve import plot_block
from attnviz.draw.document import Plot
from attnviz.draw.numbers import spoken_time
from attnviz.draw.theme import Theme

Watch = Callable[[bool], None]
"""Called after each step, with whether the step is worth a line where no picture is shown."""

_BETWEEN = 0.25
"""Seconds between two pictures."""

_PATIENCE = 30.0
"""Seconds between two lines where no terminal shows a picture."""

_RECENT = 20.0
"""Seconds over which the speed is measured."""

_ROWS, _LEAST_ROWS, _FRAME = 12, 3, 6
"""Lines of the curves, and beside them: title, axis, legend, words."""


class Pace:
    """Tokens per second and seconds left, from what happened lately.

    Phases differ in speed, so the mean over the whole run would mislead.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int, float]] = deque()

    def add(self, tokens: int, used: float) -> None:
        """So many tokens were read by now, and this share of the work is done."""
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

    @property
    def words(self) -> list[str]:
        """Such as ``40% done`` and ``about 25 min left``."""
        done = [f"{self._marks[-1][2]:.0%} done"] if self._marks else []
        left = self.seconds_left
        return done if left is None else [*done, f"about {spoken_time(left)} left"]

    def _recent(self) -> tuple[float, int, float]:
        if not self._marks:
            return 0.0, 0, 0.0
        first, last = self._marks[0], self._marks[-1]
        return last[0] - first[0], last[1] - first[1], last[2] - first[2]


@contextmanager
def watching(
    outlet: Outlet, words: Callable[[], str], plot: Callable[[], Plot | None]
) -> Iterator[Watch]:
    """A picture that is gone at the end; without a terminal a line now and then.

    words: how far it is. plot: the curves so far, None before there are any.
    """
    console, said = outlet.notices, time.monotonic()

    def due(after: float) -> bool:
        nonlocal said
        now = time.monotonic()
        said, waited = (now, True) if now - said >= after else (said, False)
        return waited

    def line(worth: bool) -> None:
        if due(0 if worth else _PATIENCE):
            console.print(words(), soft_wrap=True)

    if console.quiet:
        yield lambda worth: None
    elif not console.is_terminal or console.is_dumb_terminal:
        yield line
    else:
        from rich.live import Live  # 20 ms that a quiet run does not need

        theme = Theme.of(console, outlet.output.palette, outlet.output.ascii)
        with Live(console=console, auto_refresh=False, transient=True) as live:

            def watch(worth: bool) -> None:
                if due(_BETWEEN):
                    live.update(_picture(words(), plot(), theme, console), refresh=True)

            yield watch


def _picture(words: str, plot: Plot | None, theme: Theme, console: Console) -> Group | Text:
    line = Text(words, no_wrap=True, overflow="ellipsis")
    rows = min(_ROWS, console.height - _FRAME)
    if plot is None or rows < _LEAST_ROWS:
        return line
    return Group(plot_block(plot._replace(rows=rows), theme, console.width - 1), line)


@contextmanager
def telling(said: str, console: Console) -> Iterator[None]:
    """Says what happens while the block runs; in a terminal it is gone at the end."""
    if console.quiet:
        yield
    elif not console.is_terminal or console.is_dumb_terminal:
        console.print(said, soft_wrap=True)
        yield
    else:
        with console.status(Text(said)):
            yield
