"""The scales of maps: a weight, or a value of either sign, as one of 256 steps.

A weight's step is its square root: most weights of a row are small, and the root spreads them out
and keeps 0 and 1 in their places; weights above 1, as in value-weighted maps, count as 1. A value
of either sign has the root of its size, with the same range both ways; without colour, glyphs of
two families tell the sign.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.palette import STEPS

_MIDDLE = (STEPS - 1) / 2
_LEVELS = (0.125, 0.4, 0.7)
"""The roots from which a value is weak, middling or strong without colour."""
_HELPS, _HARMS = "░▒█", "-=≡"
_ASCII_HELPS, _ASCII_HARMS = "+*#", "-=%"


def diverging_steps(values: NDArray[np.floating], limit: float) -> NDArray[np.intp]:
    """Each value's step in 0 … 255, same shape: 0 at −limit, 255 at +limit; −1 for NaN.

    Zero is step 128; values beyond the limit count as the limit.
    """
    roots = np.sign(values) * np.sqrt(np.minimum(np.abs(values) / (limit or 1.0), 1.0))
    levels = np.floor(_MIDDLE + roots * _MIDDLE + 0.5)
    steps: NDArray[np.intp] = np.nan_to_num(levels, nan=-1.0).astype(np.intp)
    return steps


def strength(value: float, limit: float) -> int:
    """How strong a value is without colour: 0 (almost none) to 3, by its root's share of one."""
    root = min(abs(value) / (limit or 1.0), 1.0) ** 0.5
    return sum(root >= level for level in _LEVELS)


def sign_glyph(value: float, limit: float, ascii_only: bool) -> str:
    """One glyph for a value's sign and strength; a dot for almost none."""
    level = strength(value, limit)
    if not level:
        return "." if ascii_only else "·"
    if ascii_only:
        return (_ASCII_HELPS if value > 0 else _ASCII_HARMS)[level - 1]
    return (_HELPS if value > 0 else _HARMS)[level - 1]


def weight_steps(weights: NDArray[np.floating]) -> NDArray[np.intp]:
    """Each weight's step in 0 … 255 of a colour table, same shape; −1 for NaN."""
    levels = np.sqrt(np.clip(weights, 0.0, 1.0)) * (STEPS - 1)
    steps: NDArray[np.intp] = np.rint(np.nan_to_num(levels, nan=-1.0)).astype(np.intp)
    return steps


def visible_cells(queries: int, keys: int, causal: bool) -> NDArray[np.bool_]:
    """Which cells (query, key) a map draws: the future of a causal query stays blank."""
    cells = np.ones((queries, keys), dtype=bool)
    return np.tril(cells) if causal else cells
