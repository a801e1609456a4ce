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
        if self.percent or self.limit == 0 or 0.1 <= self.limit < 1000:
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
        before = max(math.floor(math.log10(largest)) + 1, 1) if largest > 0 else 1
        return max((2 if self.percent else 4) - before, 0)

    def text(self, value: float, decimals: int | None = None) -> str:
        """A value, such as ``+0.532``, without its power."""
        sign = "+" if self.signed else ""
        digits = self.decimals if decimals is None else decimals
        return f"{value / 10.0**self.power:{sign}.{digits}f}"

    def fitted(self, value: float, room: int) -> str | None:
        """A value in at most ``room`` columns with one decimal or more, ``+.53`` if need be.

        None where there is no room for any value of this scale. ``0`` is exactly zero, and ``·``
        stands for what only rounds to it.
        """
        largest = abs(self.limit)
        for decimals in range(self.decimals, -1, -1):
            if decimals == 0 and self.decimals > 0 and not self.percent:
                break
            if len(self.text(largest, decimals)) <= room:
                return self._short(value, decimals)
            if len(_without_zero(self.text(largest, decimals))) <= room and largest < 1:
                return _without_zero(self._short(value, decimals))
        return None

    def _short(self, value: float, decimals: int) -> str:
        if value == 0:
            return "0"
        text = self.text(value, decimals)
        return text if any(digit in "123456789" for digit in text) else "·"


def _without_zero(text: str) -> str:
    """``+0.53`` as ``+.53``."""
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text
