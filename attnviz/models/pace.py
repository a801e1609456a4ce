"""Measure the speed of this processor, and estimate the time of a run."""

from __future__ import annotations

import math
import sys
import time
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from attnviz.models.threads import blas_alone, workers

if TYPE_CHECKING:
    from attnviz.models.model import Model

_CALIBRATED = 5e-3
"""The seconds of matrix products that measure the speed of the processor."""

_SIDE = 384
"""The rows and columns of these products; larger ones are not faster."""


@cache
def pace() -> float:
    """Return how many operations per second one thread of this processor does.

    It is the best of a few products in the thread's CPU time, which other programs do not affect.
    """
    factor = np.ones((_SIDE, _SIDE), np.float32)
    product = np.empty_like(factor)
    best = math.inf
    with blas_alone():
        np.matmul(factor, factor, out=product)
        end = time.thread_time() + _CALIBRATED
        while (start := time.thread_time()) < end:
            np.matmul(factor, factor, out=product)
            best = min(best, time.thread_time() - start)
    return 2.0 * _SIDE**3 / best


def seconds(model: Model, operations: float, tasks: int) -> float:
    """Return about how many seconds a model takes for this many floating-point operations.

    tasks: the number of equal tasks, such as texts, that NumPy shares among threads.
    """
    torch = sys.modules.get("torch") if model.info.backend == "torch" else None
    threads = workers(tasks) if torch is None else torch.get_num_threads()
    return operations / (pace() * threads)
