"""Numbers as people read them, in every outlet: ``53%``, ``-0.012``, ``4.20 ×1e-3``, ``1.25 M``.

A percentage has no blank before its sign. A negative value has the minus of the keyboard, so that
it can be copied into a program. Values of one metric share their power of a thousand and their
decimals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

_LEAST_POWER = -15
_SUFFIXES = ((1e9, " G"), (1e6, " M"), (1e3, " k"))


@dataclass(frozen=True)
class NumberScale:
    """The common number format of the values of a table or a grid.

    limit: the largest absolute value among them, in the displayed unit; 0 if all are zero.
    signed: whether positive values have a plus. percent: whether values are percentages, which have
        no power-of-ten factor and at most one decimal.
    """

    limit: float
    signed: bool = True
    percent: bool = False

    @classmethod
    def over(
        cls, values: Iterable[float], signed: bool = True, percent: bool = False
    ) -> NumberScale:
        """Return the number format that fits these values; infinity and NaN do not count."""
        sizes = (abs(value) for value in values)
        return cls(max(filter(math.isfinite, sizes), default=0.0), signed, percent)

    @property
    def power(self) -> int:
        """Return the exponent of the values' power-of-ten factor, a multiple of 3; 0 for none."""
        if self.percent or self.limit == 0 or 0.01 <= self.limit < 1000:
            return 0
        return max(math.floor((math.log10(self.limit) + 1) / 3) * 3, _LEAST_POWER)

    @property
    def times(self) -> str:
        """Return the power-of-ten factor as printed after a unit: `` ×1e-3``; empty for none."""
        return f" ×1e{self.power}" if self.power else ""

    @property
    def decimals(self) -> int:
        """Return how many decimals give the largest value 3 or 4 digits, a percentage 2 digits."""
        largest = self.limit / 10.0**self.power
        if 0 < largest < 0.1 and not self.percent:
            return 4
        before = max(math.floor(math.log10(largest)) + 1, 1) if largest > 0 else 1
        return max((2 if self.percent else 4) - before, 0)

    def text(self, value: float, decimals: int | None = None) -> str:
        """Return a value divided by the power-of-ten factor, such as ``+0.532``.

        decimals: how many to write; None for as many as the largest value of the scale needs. Zero
            after rounding has no sign.
        """
        sign = "+" if self.signed else ""
        digits = self.decimals if decimals is None else decimals
        text = f"{value / 10.0**self.power:{sign}.{digits}f}"
        return text if any(digit in "123456789" for digit in text) else text.lstrip("+-")

    @property
    def room(self) -> int:
        """Return the width in characters, at most 6, for two digits of the largest value."""
        least = 4 if self.power or self.limit >= 0.1 else 5
        return next((room for room in range(least, 6) if self.fitted(self.limit, room)), 6)

    def fitted(self, value: float, max_width: int) -> str | None:
        """Return a value in at most ``max_width`` characters, with at least one decimal: ``+.53``.

        None if ``max_width`` is too small for some value of this scale.
        """
        largest = abs(self.limit)
        least = 1 if self.decimals and not self.percent else 0
        for decimals in range(self.decimals, least - 1, -1):
            shown, text = self.text(largest, decimals), self.text(value, decimals)
            if len(shown) <= max_width:
                return text
            if len(_without_zero(shown)) <= max_width and largest < 1:
                return _without_zero(text)
        return None


def _without_zero(text: str) -> str:
    """Return a number such as ``+0.53`` without the zero before its point: ``+.53``."""
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text


def short_number(number: float) -> str:
    """Return a number with at most three significant digits: ``850``, ``40 k``, ``1.25 M``."""
    for size, suffix in _SUFFIXES:
        if round(number) >= size:
            return f"{number / size:.3g}{suffix}"
    return f"{number:.0f}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 text`` or ``1,024 tokens``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(names: Sequence[str], last: str = "and") -> str:
    """Return names joined to a string, such as ``a, b and c``, with ``last`` for the ``and``."""
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def spans(indices: Sequence[int]) -> str:
    """Return ascending numbers as runs, such as ``0–2``; shortened if at equal distances."""
    if len(indices) > 3:
        steps = {after - before for before, after in pairwise(indices)}
        if len(steps) == 1 and (step := steps.pop()) > 1:
            return f"{indices[0]}, {indices[0] + step} … {indices[-1]}"
    neighbours = groupby(enumerate(indices), key=lambda entry: entry[1] - entry[0])
    runs = [[index for _, index in run] for _, run in neighbours]
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def layer_names(indices: Sequence[int]) -> str:
    """Return the names of some layers, given in ascending order, such as ``layers 0–2``."""
    return f"layer{'s' * (len(indices) != 1)} {spans(indices)}"


def whole_percent(share: float) -> str:
    """Return a share of either sign in whole percent, such as ``61%``; a small one is ``0%``."""
    return f"{share:.0%}".replace("-0%", "0%")


def percent(share: float, whole: bool = False) -> str:
    """Return a share in [0, 1] in percent, such as ``0.17%``, or, if ``whole``, ``56%``."""
    shown = 100 * share
    if whole:
        return "under 1%" if 0 < shown < 0.5 else f"{shown:.0f}%"
    if shown in (0, 100):
        return f"{shown:.0f}%"
    if shown < 0.01:
        return "under 0.01%"
    return f"{shown:.2f}%" if shown < 1 else f"{shown:.1f}%"


_SLACK = 1e-9
"""A share of a tick by which ends are widened, so that rounding loses no tick on an end."""


def round_ticks(low: float, high: float, most: int = 6) -> tuple[list[float], int]:
    """Return round numbers for an axis from ``low`` to ``high``, and the decimals that they need.

    There are two to ``most`` numbers. low must be below high; ``most`` must be at least 6 to
    guarantee two numbers.
    """
    parts = most - 1
    span = high - low
    power = math.floor(math.log10(span / parts))
    factor = next(factor for factor in (1, 2, 5, 10) if span <= parts * factor * 10.0**power)
    size = factor * 10.0**power
    first, last = math.ceil(low / size - _SLACK), math.floor(high / size + _SLACK)
    digits = max(0, -power - (factor == 10))
    return [number * size for number in range(first, last + 1)], digits


def spoken_time(seconds: float) -> str:
    """Return a number of seconds as a string such as ``40 s``, ``3 min`` or ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
