"""Large maps made small: blocks of tokens instead of tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["block_starts", "pool"]


def block_starts(tokens: int, blocks: int) -> NDArray[np.intp]:
    """The index of the first token of each of ``blocks`` almost equal blocks."""
    return np.arange(blocks) * tokens // blocks


def pool(weights: NDArray[np.floating], queries: int, keys: int) -> NDArray[np.floating]:
    """Weights (query, key) pooled to at most ``queries`` × ``keys`` blocks.

    A block's weight is summed over its keys and averaged over its queries, so that rows keep
    their sum: it is the share of attention that the block of queries pays to the block of keys.
    """
    rows, columns = weights.shape
    if keys < columns:
        weights = np.add.reduceat(weights, block_starts(columns, keys), axis=1)
    if queries < rows:
        starts = block_starts(rows, queries)
        sizes = np.diff(starts, append=rows)
        weights = np.add.reduceat(weights, starts, axis=0) / sizes[:, None]
    return weights
