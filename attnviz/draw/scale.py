"""The scale of every heatmap: the square root of a weight, as one of 256 steps.

Most weights of a row are small: the root spreads them out and keeps 0 and 1 in their places.
Weights above 1 (a norm-weighted map, say) count as 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.palette import STEPS

__all__ = ["visible_cells", "weight_steps"]


def weight_steps(weights: NDArray[np.floating]) -> NDArray[np.intp]:
    """Each weight's step in 0 … 255 of a colour table, same shape; −1 for NaN."""
    levels = np.sqrt(np.clip(weights, 0.0, 1.0)) * (STEPS - 1)
    steps: NDArray[np.intp] = np.rint(np.nan_to_num(levels, nan=-1.0)).astype(np.intp)
    return steps


def visible_cells(queries: int, keys: int, causal: bool) -> NDArray[np.bool_]:
    """Which cells (query, key) a map draws: the future of a causal query stays blank."""
    cells = np.ones((queries, keys), dtype=bool)
    return np.tril(cells) if causal else cells
