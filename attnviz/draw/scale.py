"""The scales of maps: a weight, or a value of either sign, as one of 256 steps.

The step of a weight is proportional to its square root: most weights of a row are small, and the
root spreads them while 0 and 1 keep their places. Weights above 1, as in value-weighted maps, count
as 1. Values of either sign use the root of their size, with the same range on both sides; without
colour, two families of glyphs show the sign.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from rich.color import Color, ColorSystem

from attnviz.draw.palette import DIVERGING, STEPS, Tint, colour_table

_MIDDLE = (STEPS - 1) / 2
_COARSE = 15
"""The levels of a scale in 256 colours: odd, so that a signed scale has a level for zero."""


def diverging_steps(values: NDArray[np.floating], limit: float) -> NDArray[np.intp]:
    """Return each value's colour level in 0 … 255, same shape: 0 at −limit, 255 at +limit.

    Zero is level 128 and NaN is −1; values beyond the limit count as the limit.
    """
    roots = np.sign(values) * np.sqrt(np.minimum(np.abs(values) / (limit or 1.0), 1.0))
    levels = np.floor(_MIDDLE + roots * _MIDDLE + 0.5)
    steps: NDArray[np.intp] = np.nan_to_num(levels, nan=-1.0).astype(np.intp)
    return steps


def signed_limit(changes: NDArray[np.floating]) -> float:
    """Return the size with the full colour among changes of weights, all within [−1, 1].

    It is the largest one; where all are below .005, which no screen shows, it is 1, so that nothing
    looks like a change.
    """
    largest = float(np.nanmax(np.abs(changes), initial=0.0))
    return largest if largest >= 0.005 else 1.0


def signed_tint(value: float, limit: float) -> Tint:
    """Return the colour of a value of either sign; values of ±limit have the full colour."""
    return Tint(int(diverging_steps(np.array(value), limit)), DIVERGING)


def weight_steps(weights: NDArray[np.floating]) -> NDArray[np.intp]:
    """Return the colour level in 0 … 255 of each weight, same shape; −1 for NaN."""
    levels = np.sqrt(np.clip(weights, 0.0, 1.0)) * (STEPS - 1)
    steps: NDArray[np.intp] = np.rint(np.nan_to_num(levels, nan=-1.0)).astype(np.intp)
    return steps


def visible_cells(queries: int, keys: int, causal: bool) -> NDArray[np.bool_]:
    """Return a mask (query, key) of the cells that a map draws: if causal, no future keys."""
    cells = np.ones((queries, keys), dtype=bool)
    return np.tril(cells) if causal else cells


@lru_cache(maxsize=8)
def coarse_steps(palette: str) -> NDArray[np.intp]:
    """Return for each colour level the one that replaces it on a terminal of 256 colours.

    The last entry is for −1, blank. The replacements are few, and no two look alike there: equal
    neighbours can then be sent together, which saves most of the bytes that a map costs over ssh.
    """
    table, first = colour_table(palette), dict[int | None, int]()
    kept = []
    for step in range(STEPS):
        level = round(round(step * (_COARSE - 1) / (STEPS - 1)) * (STEPS - 1) / (_COARSE - 1))
        number = Color.from_rgb(*table[level]).downgrade(ColorSystem.EIGHT_BIT).number
        kept.append(first.setdefault(number, level))
    return np.array([*kept, -1])
