"""What a person sees on standard error while a model is fetched, opened and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from attnviz.render.labels import visible

__all__ = ["Progress", "loading"]

Progress = Callable[[str, int, int | None], None]
"""Called as ``progress(file, bytes_done, bytes_in_all)``."""

_BUILT_IN = ("tiny", "mha")


@contextmanager
def loading(model: str, console: Console) -> Iterator[Progress | None]:
    """A spinner that becomes a bar for each file that is downloaded; gone at the end.

    The built-in models are there at once and get none; without a terminal a line a file is
    printed instead.
    """
    if model in _BUILT_IN or console.quiet:
        yield None
        return
    if not console.is_terminal:
        yield _a_line_a_file(console)
        return
    from rich import progress as bars  # 20 ms that the bundled model does not need

    with bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as shown:
        tasks = {"": shown.add_task(f"opening {visible(model)}", total=None)}

        def report(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = shown.add_task(visible(file), total=total)
            shown.update(tasks[file], completed=done, total=total)

        yield report


def _a_line_a_file(console: Console) -> Progress:
    announced: set[str] = set()

    def report(file: str, done: int, total: int | None) -> None:
        if file not in announced:
            announced.add(file)
            size = "" if total is None else f" ({total / 1e6:,.1f} MB)"
            console.print(f"downloading {visible(file)}{size}")

    return report
