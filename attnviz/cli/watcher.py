"""Shows the curves so far and a line of words on standard error while a model learns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group
from rich.text import Text

from attnviz.cli.outlet import Outlet
from attnviz.draw.curve import plot_block
from attnviz.draw.document import Plot
from attnviz.draw.theme import Theme
from attnviz.learn.train.progress import OnStep, Watcher

_BETWEEN = 0.25
"""Seconds between two updates of the plot."""

_PATIENCE = 30.0
"""Seconds between two lines if no terminal shows a plot."""

_ROWS, _LEAST_ROWS, _FRAME = 12, 3, 6
"""Most and least lines of the curves, and the lines of title, axis, legend and words."""


@dataclass(frozen=True)
class TerminalWatcher(Watcher):
    """Shows a training in a terminal: its curves and a line of progress.

    Without a terminal it prints some lines. outlet: where they are shown.
    """

    outlet: Outlet

    @contextmanager
    def watching(
        self, words: Callable[[], str], plot: Callable[[], Plot | None]
    ) -> Iterator[OnStep]:
        """Show the progress of a training; yield the function to call after each step.

        words: returns the progress as a string. plot: returns the curves, None if there are none
            yet.
        """
        output, console, said = self.outlet.output, self.outlet.notices, time.monotonic()

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
        elif not console.is_interactive:
            yield line
        else:
            from rich.live import Live  # takes 20 ms, not needed if quiet

            theme = Theme.of(console, output.palette, output.ascii)
            with Live(console=console, auto_refresh=False, transient=True) as live:

                def watch(worth: bool) -> None:
                    if due(_BETWEEN):
                        live.update(_picture(words(), plot(), theme, console), refresh=True)

                yield watch

    @contextmanager
    def telling(self, said: str) -> Iterator[None]:
        """Show the sentence ``said`` while the block runs; a terminal removes it at the end."""
        console = self.outlet.notices
        if console.quiet:
            yield
        elif not console.is_interactive:
            console.print(said, soft_wrap=True)
            yield
        else:
            with console.status(Text(said)):
                yield


def _picture(words: str, plot: Plot | None, theme: Theme, console: Console) -> Group | Text:
    line = Text(words, no_wrap=True, overflow="ellipsis")
    rows = min(_ROWS, console.height - _FRAME)
    if plot is None or rows < _LEAST_ROWS:
        return line
    return Group(plot_block(plot._replace(rows=rows), theme, console.width - 1), line)
