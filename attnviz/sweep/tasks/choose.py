"""The tasks by the names that ``--task`` has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attnviz.errors import UsageError
from attnviz.sweep.tasks.copying import Copying
from attnviz.sweep.tasks.induction import Induction
from attnviz.sweep.tasks.majority import Majority
from attnviz.sweep.tasks.task import Task

__all__ = ["TASKS", "named_task"]

TASKS: Mapping[str, Callable[[], Task]] = {
    "induction": Induction,
    "copy": Copying,
    "majority": Majority,
}


def named_task(name: str) -> Task:
    """The task of this name, of its usual size; UsageError where there is none."""
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}: expected {', '.join(TASKS)}, or --text FILE")
    return TASKS[name]()
