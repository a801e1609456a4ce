"""Measures of attention weights: arrays (..., query, key) in, one number a head (...) out.

Rows sum to one over the keys. Where a text cannot show a measure the result is NaN, never zero.
Papers: Olsson et al. 2022 (previous), Clark et al. 2019 (next), Xiao et al. 2023 (first), Wang
et al. 2022 (duplicate), Elhage et al. 2021 (induction), Voita et al. 2019 (confidence).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "confidence",
    "distance",
    "duplicate",
    "entropy",
    "first",
    "induction",
    "next_token",
    "normalised_entropy",
    "previous",
    "self_share",
    "uniform_weights",
]

Weights = NDArray[np.floating]


def _mean(values: Weights) -> Weights:
    """Mean over the last axis; NaN where it is empty."""
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan)
    return np.asarray(values.mean(-1))


def _diagonal_mean(weights: Weights, offset: int, start: int = 0) -> Weights:
    return _mean(np.diagonal(weights, offset, axis1=-2, axis2=-1)[..., start:])


def previous(weights: Weights) -> Weights:
    """Mean over queries i ≥ 1 of the weight on key i − 1; in [0, 1]."""
    return _diagonal_mean(weights, -1)


def next_token(weights: Weights) -> Weights:
    """Mean over queries i < n − 1 of the weight on key i + 1; in [0, 1], zero where causal."""
    return _diagonal_mean(weights, 1)


def self_share(weights: Weights, causal: bool) -> Weights:
    """Mean over queries of the weight on themselves; in [0, 1].

    Query 0 of a causal matrix has nothing else to see and is left out.
    """
    return _diagonal_mean(weights, 0, start=1 if causal else 0)


def first(weights: Weights) -> Weights:
    """Mean over queries i ≥ 1 of the weight on key 0, the attention sink; in [0, 1]."""
    return _mean(weights[..., 1:, 0])


def _mass_on(weights: Weights, keys: NDArray[np.bool_]) -> Weights:
    """Mean, over the queries that have such keys, of their summed weight; ``keys`` (query, key)."""
    return _mean(np.where(keys, weights, 0).sum(-1)[..., keys.any(-1)])


def duplicate(weights: Weights, ids: Sequence[int]) -> Weights:
    """Mean, over queries with an equal earlier token, of the weight on those; in [0, 1]."""
    return _mass_on(weights, _earlier_equal(ids))


def induction(weights: Weights, ids: Sequence[int]) -> Weights:
    """Mean, over queries with an equal earlier token j < i − 1, of the weight on keys j + 1.

    In [0, 1]. The induction score on running text: attention to what followed the same token.
    """
    equal = _earlier_equal(ids)
    followers = np.zeros_like(equal)
    followers[:, 1:] = equal[:, :-1]
    np.fill_diagonal(followers, False)  # j = i − 1 would be the query itself
    return _mass_on(weights, followers)


def _earlier_equal(ids: Sequence[int]) -> NDArray[np.bool_]:
    tokens = np.asarray(ids)
    equal: NDArray[np.bool_] = np.tril(tokens[:, None] == tokens[None, :], -1)
    return equal


def _row_entropy(weights: Weights) -> Weights:
    logarithms = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    total = -(weights * logarithms).sum(-1)
    return np.asarray(np.maximum(total, 0.0) + 0.0)  # rounding, and the sign of zero


def entropy(weights: Weights) -> Weights:
    """Mean over queries of −Σ A ln A, with 0 ln 0 = 0; nats, in [0, ln keys]."""
    return _mean(_row_entropy(weights))


def normalised_entropy(weights: Weights, causal: bool) -> Weights:
    """Entropy of each query over ln(number of keys it sees), mean over queries i ≥ 1; in [0, 1]."""
    queries, keys = weights.shape[-2:]
    visible = np.arange(1, queries + 1) if causal else np.full(queries, keys)
    choice = visible > 1
    choice[0] = False
    return _mean(_row_entropy(weights)[..., choice] / np.log(visible[choice]))


def distance(weights: Weights) -> Weights:
    """Mean over queries i of Σⱼ A[i, j]·|i − j|; tokens, ≥ 0."""
    queries, keys = weights.shape[-2:]
    gap = np.abs(np.arange(queries)[:, None] - np.arange(keys)[None, :])
    return _mean((weights * gap).sum(-1))


def confidence(weights: Weights, special: Sequence[bool]) -> Weights:
    """Mean over the queries that are no special token of their largest weight; in [0, 1]."""
    return _mean(weights.max(-1)[..., ~np.asarray(special)])


def uniform_weights(queries: int, keys: int, causal: bool) -> NDArray[np.float64]:
    """Attention spread evenly over the keys that each query sees, shape (query, key)."""
    weights = np.ones((queries, keys))
    if causal:
        weights = np.tril(weights)
    return np.asarray(weights / weights.sum(-1, keepdims=True))
