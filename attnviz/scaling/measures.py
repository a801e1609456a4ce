"""Measures of attention scores and of what the softmax makes of them, row by row.

Rows are distributions p over the keys that a query sees; the weight of a hidden key is zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.scaling.records import BIN_EDGES, HIGH_WEIGHT, VANISHED

__all__ = ["histogram", "jacobian_norms", "matrix_measures", "normalised_entropies", "visible_rows"]

Floats = NDArray[np.floating]
Visible = NDArray[np.bool_]


def jacobian_norms(weights: Floats) -> Floats:
    """‖diag(p) − p pᵀ‖ of each row p of (..., query, key), Frobenius: (..., query), in [0, ½].

    The Jacobian of the softmax: ∂p_i/∂s_j = p_i(δ_ij − p_j), so the norm's square is
    Σ_i p_i²(1 − p_i)² + Σ_{i≠j} p_i² p_j². It is ½ where two keys share all, √(n − 1)/n where n
    keys share evenly, and 0 where one key has everything.
    """
    place = weights.argmax(-1, keepdims=True)
    # The largest weight apart: near one all others are lost beside it.
    top = np.take_along_axis(weights, place, -1)[..., 0]
    others = weights.copy()
    np.put_along_axis(others, place, 0, -1)
    rest = np.square(others)
    between = rest.sum(-1)
    pairs = 2 * np.square(top) * between + np.square(between) - np.square(rest).sum(-1)
    own = np.square(top * others.sum(-1)) + (rest * np.square(1 - others)).sum(-1)
    norms: Floats = np.sqrt(own + pairs)
    return norms


def normalised_entropies(weights: Floats, seen: NDArray[np.integer] | int) -> Floats:
    """−Σ p ln p over ln(keys seen) of each row of (..., query, key): (..., query), in [0, 1].

    seen: the keys that each query sees, at least two; (query,) or one number.
    """
    logs = np.log(np.where(weights > 0, weights, 1))
    entropies: Floats = -(weights * logs).sum(-1) / np.log(seen)
    return entropies


def histogram(weights: Floats) -> NDArray[np.intp]:
    """How many weights lie in each bin of ``BIN_EDGES``."""
    # Rounding may carry a weight past one.
    counts, _ = np.histogram(np.minimum(weights, 1), np.array(BIN_EDGES))
    return counts


def visible_rows(visible: Visible) -> NDArray[np.bool_]:
    """The queries that see two keys or more; with a single one there is nothing to choose."""
    chosen: NDArray[np.bool_] = visible.sum(-1) > 1
    return chosen


def matrix_measures(
    scores: Floats, weights: Floats, visible: Visible | None = None
) -> dict[str, Floats]:
    """The measures of ``scaling.MEASURES`` of each matrix (..., query, key): (...).

    visible: (query, key), True where a query sees a key; None for everywhere. Every query of it
        sees two keys or more.
    """
    if visible is None:
        pairs, seen = scores.reshape(*scores.shape[:-2], -1), scores.shape[-1]
        cells = scores.shape[-2] * scores.shape[-1]
    else:
        pairs, seen = scores[..., visible], visible.sum(-1)
        cells = int(visible.sum())
    largest, norms = weights.max(-1), jacobian_norms(weights)
    return {
        "score_variance": pairs.var(-1, ddof=1),
        "normalised_entropy": normalised_entropies(weights, seen).mean(-1),
        "largest_weight": largest.mean(-1),
        "weights_above": (weights > HIGH_WEIGHT).sum((-2, -1)) / cells,
        "queries_above": (largest > HIGH_WEIGHT).mean(-1),
        "jacobian_norm": norms.mean(-1),
        "queries_vanished": (norms < VANISHED).mean(-1),
    }
