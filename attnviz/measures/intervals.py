"""95 % intervals: of a mean over a few texts, and of a share of pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence

_Z = 1.959963985
"""The 97.5 % quantile of the normal distribution."""

_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % quantiles of Student's t for 1 to 10 degrees of freedom."""


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, within .001 (Abramowitz & Stegun 1964, 26.7.5)."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    terms = (
        _Z,
        (_Z**3 + _Z) / 4,
        (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96,
        (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's interval of the mean of shares over texts, within [−1, 1]; None below two texts."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    spread = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    reach = student_t(count - 1) * math.sqrt(spread / count)
    return max(mean - reach, -1.0), min(mean + reach, 1.0)


def share_interval(share: float, count: int) -> tuple[float, float] | None:
    """Wilson's interval (1927) of a share of ``count`` pairs; None without any.

    It takes pairs for independent draws; those of one sentence are few.
    """
    if not count:
        return None
    scale = 1 + _Z**2 / count
    middle = (share + _Z**2 / (2 * count)) / scale
    reach = _Z / scale * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return max(middle - reach, 0.0), min(middle + reach, 1.0)
