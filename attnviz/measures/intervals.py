"""95% confidence intervals of a mean over a few texts, and of a share of pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_TAIL = 0.025
_Z = 1.959963985
"""The 97.5% quantile of the normal distribution."""

_FEW = (12.706, 4.303, 3.182)
"""The 97.5% quantiles of Student's t for 1 to 3 degrees of freedom."""


def student_t(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t with these degrees of freedom, within .001."""
    from statistics import NormalDist  # imports fractions and decimals

    if freedom <= len(_FEW):
        return _FEW[freedom - 1]
    quantile: float = student_quantile(NormalDist().inv_cdf(1 - _TAIL), freedom)
    return quantile


def student_quantile(z: float, freedom: Any) -> Any:
    """Return the quantile of Student's t with the same tail as the normal deviate ``z``.

    freedom: the degrees of freedom, a number or an array, at least 4. Abramowitz & Stegun 1964,
    26.7.5.
    """
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def student_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return both ends of Student's 95% interval of the mean of values in [−1, 1].

    The result is None for fewer than two values.
    """
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    spread = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    reach = student_t(count - 1) * math.sqrt(spread / count)
    return max(mean - reach, -1.0), min(mean + reach, 1.0)


def share_interval(share: float, count: int) -> tuple[float, float] | None:
    """Return both ends of Wilson's 95% interval (1927) of a share; None if there are no draws.

    share: in [0, 1], of ``count`` word pairs.
    Word pairs are taken as independent draws, which those of one sentence hardly are.
    """
    if not count:
        return None
    scale = 1 + _Z**2 / count
    middle = (share + _Z**2 / (2 * count)) / scale
    reach = _Z / scale * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return max(middle - reach, 0.0), min(middle + reach, 1.0)
