"""Large maps made small: blocks of tokens instead of tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["block_starts", "pool", "pooling"]


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


def pooling(tokens: tuple[int, int], cells: tuple[int, int]) -> str | None:
    """What one of ``cells`` (query, key) of a map of ``tokens`` is; None where it is one weight."""
    if tokens == cells:
        return None
    size = [count / blocks for count, blocks in zip(tokens, cells, strict=True)]
    return (
        f"pooled: {size[0]:.1f} queries by {size[1]:.1f} keys a cell, summed over keys, "
        "mean over queries"
    )
