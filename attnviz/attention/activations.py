"""The activation functions of feed-forward blocks in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
"""Activation function of a feed-forward block: x·σ(x), x·Φ(x) (Hendrycks & Gimpel 2016), the tanh
approximation of x·Φ(x), or max(x, 0)."""


def _silu(x: Floats) -> Floats:
    """Return x / (1 + exp(−x)), written so that no exponent overflows."""
    power = np.exp(-np.abs(x))
    silu: Floats = x * np.where(x < 0, power, 1) / (1 + power)
    return silu


def _gelu_tanh(x: Floats) -> Floats:
    """Return GPT-2's GELU: x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""
    inner = np.tanh(x.dtype.type(math.sqrt(2 / math.pi)) * (x + x.dtype.type(0.044715) * x**3))
    gelu: Floats = x * (1 + inner) / 2
    return gelu


def _gelu(x: Floats) -> Floats:
    """Return x · Φ(x) with the error function of Abramowitz & Stegun (1964), 7.1.26, to 1.5e-7.

    NumPy has no error function, and importing SciPy takes longer than running a text.
    """
    wide = x.astype(np.float64, copy=False)
    size = np.abs(wide) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * size)
    series = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    error = np.copysign(1 - series * np.exp(-size * size), wide)
    gelu: Floats = (wide * (1 + error) / 2).astype(x.dtype)
    return gelu


ACTIVATE: Mapping[Activation, Callable[[Floats], Floats]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
}
