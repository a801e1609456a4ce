"""Sums of numbers that add up to the same bits in any order.

A sum of floats depends on the order of its terms. An exact sum is one of whole numbers instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_HIGH, LOW = 20, 36
"""An exact sum is ``high · 2⁻²⁰ + low · 2⁻⁵⁶``, two whole numbers of 64 bits.

There is room for 10⁸ terms, which add up to less than 8 · 10¹² in size.
"""

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def exact(values: ArrayLike) -> Integers:
    """Return each number as an exact sum: two whole numbers (..., 2), in multiples of 2⁻⁵⁶.

    Raises ValueError for a number that is not finite, or not below 2³⁰ in size.
    """
    scaled = np.ldexp(np.asarray(values, np.float64), _HIGH)
    if not (np.abs(scaled) < 2.0**50).all():  # also False for NaN
        raise ValueError("an exact sum takes finite numbers below 2**30")
    high = np.floor(scaled)
    low = np.rint(np.ldexp(scaled - high, LOW))
    return np.stack([high, low], -1).astype(np.int64)


def known_exact(values: Floats) -> Integers:
    """Return ``exact(values)`` with zero in place of NaN."""
    return exact(np.where(np.isnan(values), 0, values))


def exact_sum(values: ArrayLike) -> Integers:
    """Return the exact sum (..., 2) of numbers over the first axis; see ``exact``."""
    return np.asarray(exact(values).sum(0))


def total(sums: Integers) -> Floats:
    """Return exact sums (..., 2) as floats (...)."""
    high, low = sums[..., 0].astype(np.float64), sums[..., 1].astype(np.float64)
    return np.asarray(np.ldexp(high, -_HIGH) + np.ldexp(low, -_HIGH - LOW))


def mean(sums: Integers, counts: ArrayLike) -> Floats:
    """Return the means (...) of exact sums (..., 2) of ``counts`` terms; NaN without a term."""
    number = np.asarray(counts, np.float64)
    nothing = np.full(sums.shape[:-1], np.nan)
    return np.asarray(np.divide(total(sums), number, out=nothing, where=number > 0))


def variance(sums: Integers, squares: Integers, counts: ArrayLike) -> Floats:
    """Return sample variances from exact sums of ``counts`` terms and squares; NaN below two."""
    # Whole numbers of any size, in units of 2⁻⁵⁶: a difference of floats would cancel.
    whole, square = (
        (part[..., 0].astype(object) << LOW) + part[..., 1] for part in (sums, squares)
    )
    number = np.broadcast_to(np.asarray(counts), whole.shape)
    variances = np.full(whole.shape, np.nan)
    for at in zip(*np.nonzero(number > 1), strict=True):
        n, s, q = int(number[at]), whole[at], square[at]
        apart = (q * n << (_HIGH + LOW)) - s * s
        variances[at] = max(apart, 0) / (n * (n - 1) << 2 * (_HIGH + LOW))
    return variances
