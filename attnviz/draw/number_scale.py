"""Values of one metric written alike: the same power of a thousand, the same decimals."""

from __future__ import annotations

import math
from dataclasses import dataclass

_LEAST_POWER = -15


@dataclass(frozen=True)
class NumberScale:
    """How the values of a view are written.

    limit: the largest size among them, in the unit that is shown; 0 where all are zero.
    signed: whether a plus is written.
    percent: whether they are percent: no power, at most one decimal.
    """

    limit: float
    signed: bool = True
    percent: bool = False

    @property
    def power(self) -> int:
        """The power of ten, a multiple of three, that all values are counted in."""
        if self.percent or self.limit == 0 or 0.01 <= self.limit < 1000:
            return 0
        return max(math.floor((math.log10(self.limit) + 1) / 3) * 3, _LEAST_POWER)

    @property
    def times(self) -> str:
        """The power behind a unit or a value, such as `` x 1e-3``; empty where there is none."""
        return f" x 1e{self.power}" if self.power else ""

    @property
    def decimals(self) -> int:
        """As many as leave the largest value three or four digits, a percentage two."""
        largest = self.limit / 10.0**self.power
        if 0 < largest < 0.1 and not self.percent:
            return 4
        before = max(math.floor(math.log10(largest)) + 1, 1) if largest > 0 else 1
        return max((2 if self.percent else 4) - before, 0)

    def text(self, value: float, decimals: int | None = None) -> str:
        """A value, such as ``+0.532``, without its power."""
        sign = "+" if self.signed else ""
        digits = self.decimals if decimals is None else decimals
        return f"{value / 10.0**self.power:{sign}.{digits}f}"

    def fitted(self, value: float, room: int) -> str | None:
        """A value in at most ``room`` columns with one decimal or more, ``+.53`` if need be.

        None where there is no room for any value of this scale; what rounds to zero has no sign.
        """
        largest = abs(self.limit)
        least = 1 if self.decimals and not self.percent else 0
        for decimals in range(self.decimals, least - 1, -1):
            shown, text = self.text(largest, decimals), self.text(value, decimals)
            text = text if any(digit in "123456789" for digit in text) else text.lstrip("+-")
            if len(shown) <= room:
                return text
            if len(_without_zero(shown)) <= room and largest < 1:
                return _without_zero(text)
        return None


def _without_zero(text: str) -> str:
    """``+0.53`` as ``+.53``."""
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text
