"""Slow spellings of GELU, replaced while a scan runs by torch's fused one of the same values.

Elementwise work on a large batch is bound by memory; transformers' own spelling of the tanh
approximation (Hendrycks & Gimpel 2016) passes over it six times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["fused_activations"]

_MODULES = "transformers.activations"
_ROUNDING = 2e-6


@contextmanager
def fused_activations(root: nn.Module) -> Iterator[None]:
    """While this is open, the fused GELU computes each activation under ``root`` that equals it."""
    with ExitStack() as restored:
        for module in root.modules():
            plain = type(module).__module__ == _MODULES and "forward" not in vars(module)
            if plain and _is_tanh_gelu(module):
                vars(module)["forward"] = _fused
                restored.callback(vars(module).pop, "forward")
        yield


def _fused(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def _is_tanh_gelu(module: nn.Module) -> bool:
    """Whether the values are the same, over all that matters of the curve."""
    if next(module.parameters(), None) is not None:
        return False
    x = torch.linspace(-9, 9, 181)
    y = module(x)
    return isinstance(y, Tensor) and bool(((y - _fused(x)).abs() <= _ROUNDING).all())
