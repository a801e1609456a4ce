"""The round numbers of an axis."""

from __future__ import annotations

import math

_SLACK = 1e-9
"""Of a tick, so that one that lies on an end is not lost to rounding."""


def round_ticks(low: float, high: float, most: int = 6) -> tuple[list[float], int]:
    """Two to ``most`` round numbers between two ends, and how many decimals they need.

    low < high; most: at least 6 for two of them to be certain.
    """
    parts = most - 1
    span = high - low
    power = math.floor(math.log10(span / parts))
    factor = next(factor for factor in (1, 2, 5, 10) if span <= parts * factor * 10.0**power)
    size = factor * 10.0**power
    first, last = math.ceil(low / size - _SLACK), math.floor(high / size + _SLACK)
    digits = max(0, -power - (factor == 10))
    return [number * size for number in range(first, last + 1)], digits
