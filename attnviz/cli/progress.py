"""What a person sees on standard error while a model is fetched, opened and run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from attnviz.draw.labels import visible

if TYPE_CHECKING:  # it brings the hub's client
    from attnviz.models.download import Progress

__all__ = ["loading"]

_BUILT_IN = ("tiny", "mha")


@contextmanager
def loading(model: str, console: Console) -> Iterator[Progress | None]:
    """A spinner, with a bar for each file that is downloaded; gone at the end.

    The built-in models are there at once and get none; without a terminal that can move its
    cursor a line a file is printed instead.
    """
    if model in _BUILT_IN or console.quiet:
        yield None
    elif not console.is_terminal or console.is_dumb_terminal:
        yield _a_line_a_file(console)
    else:
        from attnviz.cli.bars import bars

        with bars(model, console) as report:
            yield report


def _a_line_a_file(console: Console) -> Progress:
    announced: set[str] = set()

    def report(file: str, done: int, total: int | None) -> None:
        if file not in announced:
            announced.add(file)
            size = "" if total is None else f" ({total / 1e6:,.1f} MB)"
            console.print(f"downloading {visible(file)}{size}")

    return report
