"""Other views of attention weights: without the first token, or weighted by what is moved."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.records import View

__all__ = ["in_view"]

Weights = NDArray[np.floating]


def in_view(view: View, weights: Weights, norms: Weights | None) -> Weights:
    """Weights (head, rows, keys) as ``view`` shows them; rows sum to one, or are zero.

    norms: (head, key), what each key's value moves; needed by ``norm-weighted`` alone.
    A row of ``without-first`` that looked at nothing else is zero.
    """
    if view == "raw":
        return weights
    if view == "without-first":
        kept = weights.copy()
        kept[..., 0] = 0
        return _shares(kept)
    if norms is None:
        raise ValueError("the norms of what is moved are needed to weigh by them")
    return _shares(weights * norms[:, None, : weights.shape[-1]].astype(weights.dtype))


def _shares(parts: Weights) -> Weights:
    total = parts.sum(-1, keepdims=True)
    return np.asarray(np.divide(parts, total, out=parts, where=total > 0))
