"""How far a scan is and how long it still takes, on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

__all__ = ["Advance", "scanning", "spoken_time"]

Advance = Callable[[float], None]
"""Called with the share of the work that is done, from 0 to 1."""

_PATIENCE = 10.0
"""Seconds between two lines where no terminal shows a bar."""

_LEAST_SHARE = 0.001


@contextmanager
def scanning(what: str, console: Console) -> Iterator[Advance]:
    """A bar with the time that is left, gone at the end; without a terminal a line now and then."""
    if console.quiet:
        yield lambda share: None
        return
    if not console.is_terminal:
        yield _lines(what, console)
        return
    from rich import progress as bars  # 20 ms that short runs do not need

    with bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as shown:
        task = shown.add_task(what, total=1.0)
        yield lambda share: shown.update(task, completed=share)


def _lines(what: str, console: Console, clock: Callable[[], float] = time.monotonic) -> Advance:
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


def spoken_time(seconds: float) -> str:
    """Such as ``40 s``, ``3 min`` or ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
