"""Short numbers for axes and sentences."""

from __future__ import annotations

import math

_SLACK = 1e-9
"""Of a tick, so that one that lies on an end is not lost to rounding."""

_SUFFIXES = ((1e9, " G"), (1e6, " M"), (1e3, " k"))


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


def short_number(number: float) -> str:
    """Such as ``850``, ``40 k`` or ``1.25 M``: at most three digits that count."""
    for size, suffix in _SUFFIXES:
        if round(number) >= size:
            return f"{number / size:.3g}{suffix}"
    return f"{number:.0f}"


def percent(share: float) -> str:
    """Such as ``0%``, ``0.17%`` or ``56.0%``."""
    shown = 100 * share
    if shown in (0, 100):
        return f"{shown:.0f}%"
    if shown < 0.01:
        return "under 0.01%"
    return f"{shown:.2f}%" if shown < 1 else f"{shown:.1f}%"
