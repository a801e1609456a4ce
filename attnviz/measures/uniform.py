"""Rows of weights as shares of one: which keys a query sees, even attention to them, rescaling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.records import Floats


def norm_weighted(weights: Floats, norms: Floats) -> Floats:
    """Return attention weights multiplied by the norms of the values, as shares of one.

    weights: (..., rows, keys). norms: (..., key). The block may lack the last keys.
    """
    return rescaled(weights * norms[..., None, : weights.shape[-1]].astype(weights.dtype))


def rescaled(parts: Floats) -> Floats:
    """Rescale rows (..., row, key) in place to sum to one, and return them; zeros stay zero."""
    total = parts.sum(-1, keepdims=True)
    return np.asarray(np.divide(parts, total, out=parts, where=total > 0))


def uniform_weights(queries: int, keys: int, causal: bool) -> NDArray[np.float64]:
    """Return uniform weights (query, key) over all keys, or if causal up to the query's own."""
    return even_weights(visible_keys(queries, keys, causal))


def visible_keys(queries: int, keys: int, causal: bool, start: int = 0) -> NDArray[np.bool_]:
    """Return a mask (query, key) of the keys that each query sees.

    They are all, or if causal those up to the query. start: the index of the first query.
    """
    if not causal:
        return np.ones((queries, keys), bool)
    return np.asarray(np.arange(keys) <= np.arange(start, start + queries)[:, None])


def even_weights(seen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return weights (query, key) spread evenly over the keys that each query sees."""
    return np.asarray(rescaled(seen.astype(np.float64)), np.float64)
