"""How fast this processor is, and so how long a run takes."""

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
"""Seconds of products that tell how fast the processor is."""

_SIDE = 384
"""Rows and columns of these products: larger ones are not faster."""


@cache
def pace() -> float:
    """Return how many operations one thread of this processor does in a second.

    It is that of the best of a few products, in the thread's own time: what another program takes
    meanwhile is not the processor's pace.
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
    """Return about how long a model takes for so many operations.

    tasks: how many of equal size NumPy deals out, such as texts.
    """
    torch = sys.modules.get("torch") if model.info.backend == "torch" else None
    threads = workers(tasks) if torch is None else torch.get_num_threads()
    return operations / (pace() * threads)
