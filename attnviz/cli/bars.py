"""What moves on a terminal while a model is opened; apart, because rich.progress takes 20 ms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)

from attnviz.draw.labels import visible

if TYPE_CHECKING:  # it brings the hub's client
    from attnviz.models.download import Progress as Report

__all__ = ["bars"]


class _OfFiles(ProgressColumn):
    """A column that only files have: opening a model has no bytes to count."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> RenderableType:
        return self._column(task) if task.fields.get("is_file") else ""


@contextmanager
def bars(model: str, console: Console) -> Iterator[Report]:
    """A spinner for the model and a bar for each file on its way; all gone at the end."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        *(_OfFiles(column) for column in (BarColumn(), DownloadColumn(), TimeRemainingColumn())),
        console=console,
        transient=True,
    ) as shown:
        shown.add_task(f"opening {visible(model)}", total=None)
        tasks = {}

        def report(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = shown.add_task(visible(file), total=total, is_file=True)
            shown.update(tasks[file], completed=done, total=total)

        yield report
