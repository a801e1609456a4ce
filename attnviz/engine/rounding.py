"""How far two ways to compute the same numbers may be apart."""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-3}
_HALF_ROUNDING = 5e-2


def nearly_equal(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors differ by no more than rounding does, at their largest number."""
    rounding = _ROUNDING.get(expected.dtype, _HALF_ROUNDING)
    if found.shape != expected.shape:
        return False
    return bool((found - expected).abs().max() <= rounding * expected.abs().max())
