"""Progress on standard error while a model is downloaded and loaded, and while it runs.

``rich.progress`` takes 20 ms to import: short runs do without it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnviz.draw.labels import visible
from attnviz.draw.numbers import spoken_time
from attnviz.progress import UNWATCHED, Watch, watched

if TYPE_CHECKING:
    from rich import progress as bars
    from rich.console import Console, RenderableType

    from attnviz.models.work import Progress

_BUILT_IN = ("tiny", "mha")

_PATIENCE = 10.0  # seconds between two lines if no terminal shows a bar
_LEAST_SHARE = 0.001

_RESULTS = 8  # the most results of single texts under a bar
_OTHER_LINES = 6  # the lines of a terminal that are left to the bar and to what was there before
_BAR = 20  # columns of a bar next to words about what is done


@contextmanager
def loading(model: str, console: Console) -> Iterator[Progress | None]:
    """Show a spinner, and a bar for each downloaded file, until the block ends.

    model: its name. console: where they are shown. Yields the function to call during downloads.
    Built-in models load at once without a spinner; without a terminal, each file gets a line.
    """
    if model in _BUILT_IN or console.quiet:
        yield None
        return
    if not console.is_interactive:
        announced: set[str] = set()

        def announce(file: str, done: int, total: int | None) -> None:
            if file not in announced:
                announced.add(file)
                size = "" if total is None else f" ({total / 1e6:,.1f} MB)"
                console.print(f"downloading {visible(file)}{size}")

        yield announce
        return
    from rich import progress as bars
    from rich.console import Group
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    files = bars.Progress(
        bars.TextColumn("  {task.description}", markup=False),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TimeRemainingColumn(),
    )
    tasks: dict[str, bars.TaskID] = {}

    def report(file: str, done: int, total: int | None) -> None:
        if file not in tasks:
            tasks[file] = files.add_task(visible(file), total=total)
        files.update(tasks[file], completed=done, total=total)

    opening = Spinner("dots", Text(f"opening {visible(model)}"), style="progress.spinner")
    with Live(Group(opening, files), console=console, transient=True):
        yield report


@contextmanager
def scanning(task: str, console: Console) -> Iterator[Watch]:
    """Show the progress of a run and the time left; without a terminal, as some lines.

    task: is shown until the run reports more. console: where it is shown. Yields the object that
        the run reports to.
    """
    if console.quiet:
        yield UNWATCHED
        return
    if not console.is_interactive:
        with watched(_Lines(task, console)) as lines:
            yield lines
        return
    from rich import progress as bars
    from rich.text import Text

    latest: deque[str] = deque(maxlen=max(0, min(_RESULTS, console.height - _OTHER_LINES)))

    class _Progress(bars.Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            yield from super().get_renderables()
            yield from (Text(line, no_wrap=True, overflow="ellipsis") for line in latest)

    with (
        _Progress(
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=_BAR),
            bars.TaskProgressColumn(),
            bars.TimeRemainingColumn(),
            console=console,
            transient=True,
        ) as shown,
        watched(_Bar(shown, shown.add_task(task, total=None), latest)) as bar,
    ):
        yield bar


class _Bar(Watch):
    """Draws a progress bar with the time left, and the ``latest`` results under it."""

    def __init__(self, shown: bars.Progress, task: bars.TaskID, latest: deque[str]) -> None:
        self._shown, self._task, self._latest = shown, task, latest

    def begin(self, words: str) -> None:
        self._shown.reset(self._task, description=words)
        self._shown.refresh()

    def found(self, words: Callable[[], str]) -> None:
        if self._latest.maxlen:
            self._latest.append(visible(words()))

    def aside(self, words: str) -> None:
        self.found(lambda: words)

    def __call__(self, share: float) -> None:
        at_once = share == 0  # later it is drawn ten times a second
        self._shown.update(self._task, total=1.0, completed=share, refresh=at_once)


class _Lines(Watch):
    """Prints progress and time left as lines, at most every ten seconds."""

    def __init__(
        self, task: str, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._task, self._console, self._clock = task, console, clock
        self._start = self._said = clock()

    def begin(self, words: str) -> None:
        self._task, self._start = words, self._clock()

    def aside(self, words: str) -> None:
        self._console.print(words, soft_wrap=True)

    def __call__(self, share: float) -> None:
        now = self._clock()
        if now - self._said < _PATIENCE or not _LEAST_SHARE < share < 1:
            return
        self._said, left = now, (now - self._start) * (1 - share) / share
        self._console.print(
            f"{self._task}: {share:.0%} done, about {spoken_time(left)} left", soft_wrap=True
        )
