"""Where tasks that do not depend on each other are dealt out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

_Task = TypeVar("_Task")
_Found = TypeVar("_Found")


def spread(run: Callable[[_Task], _Found], tasks: Iterable[_Task]) -> list[_Found]:
    """Return what each task gives, in their order; numbers that overflow are no warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return [run(task) for task in tasks]
