"""Measures of attention weights: arrays (..., query, key) in, one number a head (...) out.

Rows sum to one over the keys. Where a text cannot show a measure the result is NaN, never zero.
Papers: Olsson et al. 2022 (previous), Clark et al. 2019 (next), Xiao et al. 2023
(first), Wang et al. 2022 (duplicate), Elhage et al. 2021 (induction), Voita et al. 2019
(confidence). Each is the mean of what its namesake in ``rows`` gives; ``patterns.sums`` takes
the same means over blocks of rows as they pass by.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.measures import rows
from attnviz.measures.rows import Place

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
    "signed_distance",
    "uniform_weights",
]

Weights = NDArray[np.floating]


def _whole(weights: Weights, causal: bool = True) -> Place:
    return Place(0, weights.shape[-2], weights.shape[-1], causal)


def _mean(values: Weights, counts: NDArray[np.bool_] | None = None) -> Weights:
    """Mean over the rows that count; NaN where there are none."""
    chosen = values if counts is None else values[..., counts]
    if not chosen.shape[-1]:
        return np.full(chosen.shape[:-1], np.nan)
    # Side by side in memory: over other strides the same numbers add up to another last bit.
    return np.asarray(np.ascontiguousarray(chosen).mean(-1))


def previous(weights: Weights) -> Weights:
    """Mean over queries i ≥ 1 of the weight on key i − 1; in [0, 1]."""
    return _mean(*rows.previous_rows(weights, _whole(weights)))


def next_token(weights: Weights) -> Weights:
    """Mean over queries i < n − 1 of the weight on key i + 1; in [0, 1], zero where causal."""
    return _mean(*rows.next_rows(weights, _whole(weights)))


def self_share(weights: Weights, causal: bool) -> Weights:
    """Mean over queries of the weight on themselves; in [0, 1].

    Query 0 of a causal matrix has nothing else to see and is left out.
    """
    return _mean(*rows.self_rows(weights, _whole(weights, causal)))


def first(weights: Weights) -> Weights:
    """Mean over queries i ≥ 1 of the weight on key 0, the attention sink; in [0, 1]."""
    return _mean(*rows.first_rows(weights, _whole(weights)))


def duplicate(weights: Weights, ids: Sequence[int]) -> Weights:
    """Mean, over queries with an equal earlier token, of the weight on those; in [0, 1]."""
    return _in_one_order(*rows.duplicate_rows(weights, _whole(weights), np.asarray(ids)[None]))


def induction(weights: Weights, ids: Sequence[int]) -> Weights:
    """Mean, over queries with an equal earlier token j < i − 1, of the weight on keys j + 1.

    In [0, 1]. The induction score on running text: attention to what followed the same token. On
    BOS r₁…r_n r₁…r_n of distinct tokens it is the mean of A[i, i − n + 1] over the second copy's
    queries, and on more copies the prefix-matching score (Olsson et al. 2022).
    """
    return _in_one_order(*rows.induction_rows(weights, _whole(weights), np.asarray(ids)[None]))


def _in_one_order(values: Weights, counts: NDArray[np.bool_]) -> Weights:
    return _mean(values[..., 0, :], counts[0])


def entropy(weights: Weights) -> Weights:
    """Mean over queries of −Σ A ln A, with 0 ln 0 = 0; nats, in [0, ln keys]."""
    return _mean(rows.entropy_rows(weights))


def normalised_entropy(weights: Weights, causal: bool) -> Weights:
    """Entropy of each query over ln(number of keys it sees), mean over queries i ≥ 1; in [0, 1]."""
    place = _whole(weights, causal)
    return _mean(*rows.normalised_entropy_rows(weights, place, rows.entropy_rows(weights)))


def distance(weights: Weights) -> Weights:
    """Mean over queries i of Σⱼ A[i, j]·|i − j|; tokens, ≥ 0."""
    return _mean(rows.distance_rows(weights, _whole(weights, causal=False)))


def signed_distance(weights: Weights) -> Weights:
    """Mean over queries i of Σⱼ A[i, j]·(j − i); tokens, positive where later keys prevail."""
    return _mean(rows.distance_rows(weights, _whole(weights, causal=False), signed=True))


def confidence(weights: Weights, special: Sequence[bool]) -> Weights:
    """Mean over the queries that are no special token of their largest weight; in [0, 1]."""
    return _mean(*rows.confidence_rows(weights, _whole(weights), np.asarray(special)))


def uniform_weights(queries: int, keys: int, causal: bool) -> NDArray[np.float64]:
    """Attention spread evenly over the keys that each query sees, shape (query, key)."""
    return rows.uniform_rows(Place(0, queries, keys, causal), queries)
