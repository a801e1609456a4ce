"""What a person sees on standard error while a model is fetched and opened, and while it runs.

``rich.progress`` takes 20 ms: it is imported where bars are shown, for short runs do without.
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
"""Seconds between two lines where no terminal shows a bar."""

_LEAST_SHARE = 0.001


@contextmanager
def loading(model: str, console: Console) -> Iterator[Progress | None]:
    """A spinner, with a bar for each file that is downloaded; gone at the end.

    The built-in models are there at once and get none; without a terminal that can move its
    cursor a line a file is printed instead.
    """
    if model in _BUILT_IN or console.quiet:
        yield None
        return
    if not console.is_terminal or console.is_dumb_terminal:
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
    """A bar with the time that is left, gone at the end; without a terminal a line now and then.

    Until something is done, as while torch is imported, there is nothing to count.
    """
    if console.quiet:
        yield lambda share: None
        return
    if not console.is_terminal:
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
    """Speaks after ten seconds and then as often, with the estimate that the pace so far gives."""
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
