"""The effect of a change as a mean over texts: its confidence interval, p-value and base rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.bootstrap import LEAST_TEXTS, adjusted_p, includes_zero

_SIGNIFICANT = 0.05
"""The probability that any change at all is called significant if none has an effect."""

Ends = tuple[float, float]
"""The lower and the upper end of an interval."""


@dataclass(frozen=True)
class Mean:
    """The mean of one number over texts or prompt pairs, with its uncertainty.

    value: the mean; NaN if it was not measured or is not finite.
    interval: its 95% bootstrap-t confidence interval; None for fewer than five texts.
    adjusted: the two-sided p-value, adjusted for all changes that were tested; None for fewer than
        five texts, or if the number has only one sign.
    base_rate: the same number for an unrelated change (the random baseline); None if there is none.
    error: the standard error over random draws of the replacement; None if nothing was drawn.
    signed: whether the number can be below zero; else no interval is said to include zero.
    """

    value: float = math.nan
    interval: Ends | None = None
    adjusted: float | None = None
    base_rate: float | None = None
    error: float | None = None
    signed: bool = True

    @property
    def unclear(self) -> bool:
        """Return whether the confidence interval includes zero; False without an interval."""
        return self.signed and includes_zero(self.interval)

    @property
    def significant(self) -> bool:
        """Return whether the mean differs from zero, corrected for the number of tested changes."""
        return not self.unclear and self.adjusted is not None and self.adjusted <= _SIGNIFICANT

    def times(self, factor: float) -> Mean:
        """Return the mean, its interval and all other fields multiplied by ``factor``.

        For example 100 gives percent.
        """
        ends, base, error = self.interval, self.base_rate, self.error
        return replace(
            self,
            value=self.value * factor,
            interval=None if ends is None else (ends[0] * factor, ends[1] * factor),
            base_rate=None if base is None else base * factor,
            error=None if error is None else error * factor,
        )


NOT_MEASURED = Mean()


def p_values(
    values: NDArray[np.floating], seed: int, known: NDArray[np.floating] | None = None
) -> list[float | None]:
    """Test whether each mean over texts is 0; return the p-values, adjusted for their number.

    Each is None for fewer than five texts. See ``measures.bootstrap.adjusted_p``.

    values: (text, change), the changes of one family. seed: of the bootstrap. known: see
        ``bootstrap_interval``.
    """
    if len(values) < LEAST_TEXTS:
        return [None] * values.shape[1]
    return list(adjusted_p(values, seed, known).tolist())
