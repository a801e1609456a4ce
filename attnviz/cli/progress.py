"""Progress on standard error while a model is downloaded and loaded, and while it runs.

``rich.progress`` takes 20 ms to import: short runs do without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnviz.draw.labels import visible
from attnviz.draw.numbers import spoken_time
from attnviz.records import Advance

if TYPE_CHECKING:
    from rich.console import Console

    from attnviz.models.download import Progress

_BUILT_IN = ("tiny", "mha")

_PATIENCE = 10.0
"""Seconds between two lines if no terminal shows a bar."""

_LEAST_SHARE = 0.001


@contextmanager
def loading(model: str, console: Console) -> Iterator[Progress | None]:
    """Show a spinner, and a bar for each file that is downloaded, until the block ends.

    Built-in models load at once and get none; without a terminal, each file gets a line.
    """
    if model in _BUILT_IN or console.quiet:
        yield None
        return
    if not console.is_interactive:
        yield _a_line_a_file(console)
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


def _a_line_a_file(console: Console) -> Progress:
    announced: set[str] = set()

    def report(file: str, done: int, total: int | None) -> None:
        if file not in announced:
            announced.add(file)
            size = "" if total is None else f" ({total / 1e6:,.1f} MB)"
            console.print(f"downloading {visible(file)}{size}")

    return report


@contextmanager
def scanning(what: str, console: Console) -> Iterator[Advance]:
    """Show a bar with the time that is left, until the block ends; without a terminal, some lines.

    Before the first progress, as while torch is imported, the bar has no length.
    """
    if console.quiet:
        yield lambda share: None
        return
    if not console.is_interactive:
        yield _a_line_now_and_then(what, console)
        return
    from rich import progress as bars

    with bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as shown:
        task = shown.add_task("starting", total=None)
        yield lambda share: shown.update(task, description=what, total=1.0, completed=share)


def _a_line_now_and_then(
    what: str, console: Console, clock: Callable[[], float] = time.monotonic
) -> Advance:
    """Return a function that prints progress and time left, at most every ten seconds."""
    start = said = clock()

    def advance(share: float) -> None:
        nonlocal said
        now = clock()
        if now - said < _PATIENCE or not _LEAST_SHARE < share < 1:
            return
        said = now
        left = (now - start) * (1 - share) / share
        console.print(f"{what}: {share:.0%} done, about {spoken_time(left)} left")

    return advance
