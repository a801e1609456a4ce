"""Estimates as short texts: as many digits as their standard errors allow."""

from __future__ import annotations

import math

from attnviz.draw.theme import Theme
from attnviz.scaling.records import Estimate

__all__ = ["LABELS", "PERCENTS", "error_digits", "measured", "percent", "plain", "whole"]

LABELS = {
    "score_variance": "variance of the scores",
    "normalised_entropy": "entropy (1 is even)",
    "largest_weight": "largest weight",
    "weights_above": "weights above 0.9",
    "queries_above": "queries with one above 0.9",
    "jacobian_norm": "norm of softmax's Jacobian",
    "queries_vanished": "queries with norm below 0.01",
}
"""What each measure is called on screen."""

PERCENTS = frozenset({"weights_above", "queries_above", "queries_vanished"})
"""The measures that are shares, and shown as percentages."""

_MOST_DECIMALS = 4


def measured(name: str, estimate: Estimate, theme: Theme) -> str:
    """A measure with its standard error, such as ``64.0 ± 0.2`` or ``16.2 ± 0.5%``."""
    factor, unit = (100, "%") if name in PERCENTS else (1, "")
    value, error = factor * estimate.value, estimate.error
    if error is None:
        return percent(estimate.value) if unit else plain(value)
    error *= factor
    if error == 0:  # every sample gave the same
        return (f"{value:.0f}" if value in (0, 100) else plain(value)) + unit
    decimals = error_digits(error)
    sign = "+-" if theme.ascii else "±"
    return f"{value:.{decimals}f} {sign} {error:.{decimals}f}{unit}"


def error_digits(error: float) -> int:
    """The decimals that show one digit of an error, two where the first is a one; at most four."""
    exponent = math.floor(math.log10(error))
    leading = error / 10.0**exponent
    return min(max(-exponent + (leading < 2), 0), _MOST_DECIMALS)


def plain(value: float) -> str:
    """Such as ``0.886``, ``8.083`` or ``512.5``: four digits, and no more than three decimals.

    A number that would round to nothing shows one digit, as ``2e-05``.
    """
    if value == 0:
        return "0"
    if abs(value) < 0.0005:
        return f"{value:.0e}"
    decimals = 3 if abs(value) < 1 else max(3 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{decimals}f}"


def percent(share: float) -> str:
    """Such as ``0%``, ``0.17%`` or ``56.0%``."""
    shown = 100 * share
    if shown in (0, 100):
        return f"{shown:.0f}%"
    if shown < 0.01:
        return "under 0.01%"
    return f"{shown:.2f}%" if shown < 1 else f"{shown:.1f}%"


def whole(value: float) -> str:
    """As ``plain``, but a whole number as one, such as ``64``."""
    return f"{round(value):,}" if math.isclose(value, round(value)) else plain(value)
