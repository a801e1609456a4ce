"""The activation functions of feed-forward blocks in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from attnviz.attention.functional import Floats

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
"""Activation function of a feed-forward block: x·σ(x), x·Φ(x) (Hendrycks & Gimpel 2016), the tanh
approximation of x·Φ(x), or max(x, 0)."""

NEARLY_ZERO = 0.05
"""An activation or a gate closer to zero than this passes next to nothing on."""


def _silu(x: Floats) -> Floats:
    """Return the SiLU activation x / (1 + exp(−x)), which is 0 where the exponential overflows."""
    silu: Floats = np.negative(x)
    with np.errstate(over="ignore"):
        np.exp(silu, out=silu)
    silu += 1
    np.divide(x, silu, out=silu)
    return silu


def _gelu_tanh(x: Floats) -> Floats:
    """Return x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))); ``x**3`` takes seventy times as long."""
    gelu: Floats = np.multiply(x, x)
    gelu *= x.dtype.type(0.044715)
    gelu += 1
    gelu *= x
    gelu *= x.dtype.type(math.sqrt(2 / math.pi))
    np.tanh(gelu, out=gelu)
    gelu += 1
    gelu *= x
    gelu *= x.dtype.type(0.5)
    return gelu


_ERROR = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
"""The coefficients of Abramowitz & Stegun (1964), 7.1.26, the highest power first."""


def _gelu(x: Floats) -> Floats:
    """Return the GELU activation x · Φ(x).

    It uses the error function of Abramowitz & Stegun (1964), 7.1.26, exact to 1.5e-7. NumPy has no
    error function, and importing SciPy takes longer than running a text. As max(x, 0) minus the
    small rest, which is the same for x and −x, nothing cancels in float32.
    """
    number = x.dtype.type
    size = np.abs(x)
    t = size * number(0.3275911 * math.sqrt(0.5))
    t += 1
    np.reciprocal(t, out=t)
    rest = t * number(_ERROR[0])
    for coefficient in _ERROR[1:]:
        rest += number(coefficient)
        rest *= t
    power = np.multiply(x, x, out=t)
    power *= number(-0.5)
    rest *= np.exp(power, out=power)
    rest *= size
    rest *= number(-0.5)
    rest += np.maximum(x, 0, out=size)
    return rest


ACTIVATE: Mapping[Activation, Callable[[Floats], Floats]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
}
