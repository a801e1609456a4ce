"""Random weights that are the same for the same seed, and leave other random numbers alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["drawing"]


@contextmanager
def drawing(number_type: torch.dtype, seed: int) -> Iterator[None]:
    """Weights are drawn in ``number_type`` from ``seed``; the caller's random numbers go on."""
    usual = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_default_dtype(number_type)
        try:
            yield
        finally:
            torch.set_default_dtype(usual)
