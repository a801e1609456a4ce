"""What each row of attention weights adds to a measure, so that no matrix need be there at once.

A function takes weights (..., rows, keys) of some queries and where they stand, and gives one value
a row and whether that row counts; the measure is the mean over all rows that count, in blocks or
whole. The papers are named in ``measures``, which says what each of them means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Place",
    "Rows",
    "alignment_rows",
    "centre_rows",
    "column_rows",
    "confidence_rows",
    "distance_rows",
    "duplicate_rows",
    "entropy_rows",
    "first_rows",
    "induction_rows",
    "next_rows",
    "normalised_entropy_rows",
    "previous_rows",
    "rare_rows",
    "self_rows",
    "uniform_rows",
]

Weights = NDArray[np.floating]

Rows = tuple[Weights, NDArray[np.bool_]]
"""Values (..., rows), and whether each row counts, (rows,) or (..., rows)."""


@dataclass(frozen=True)
class Place:
    """Where a block of rows stands in the attention of a text.

    start: index of its first query.
    queries, keys: tokens of the whole text; a block may leave out last keys that it does not see.
    causal: whether a query sees no later key.
    without_first: whether key 0 was taken out of the weights.
    """

    start: int
    queries: int
    keys: int
    causal: bool
    without_first: bool = False

    def rows(self, weights: Weights) -> NDArray[np.int64]:
        """The index in the text of each row's query."""
        return np.arange(self.start, self.start + weights.shape[-2])

    def visible(self, weights: Weights) -> NDArray[np.int64]:
        """How many keys each row sees."""
        rows = self.rows(weights)
        seen = rows + 1 if self.causal else np.full_like(rows, self.keys)
        return np.asarray(seen - self.without_first)

    @property
    def first_key(self) -> int:
        return int(self.without_first)


def _at(weights: Weights, place: Place, offset: int) -> Rows:
    """Each row's weight on the key ``offset`` away; a row that has no such key does not count."""
    keys = place.rows(weights) + offset
    counts: NDArray[np.bool_] = np.asarray((keys >= place.first_key) & (keys < place.keys))
    inside = keys < weights.shape[-1]
    shown = np.where(counts & inside, keys, 0)
    values = weights[..., np.arange(weights.shape[-2]), shown]
    return np.where(counts & inside, values, 0), counts


def previous_rows(weights: Weights, place: Place) -> Rows:
    """The weight on the key before the query."""
    return _at(weights, place, -1)


def next_rows(weights: Weights, place: Place) -> Rows:
    """The weight on the key behind the query."""
    return _at(weights, place, 1)


def self_rows(weights: Weights, place: Place) -> Rows:
    """The weight on the query itself; a causal row that sees nothing else does not count."""
    values, counts = _at(weights, place, 0)
    if place.causal:
        counts[place.visible(weights) < 2] = False
    return values, counts


def first_rows(weights: Weights, place: Place) -> Rows:
    """The weight on key 0 of every query but the first."""
    return weights[..., 0], np.asarray(place.rows(weights) >= 1)


def duplicate_rows(weights: Weights, place: Place, ids: NDArray[np.integer]) -> Rows:
    """The weight on earlier tokens equal to the query's; values (..., orders, rows).

    ids: (orders, token), the text's, or the text's in several orders.
    """
    rows, keys = place.rows(weights), np.arange(weights.shape[-1])
    equal = ids[:, rows, None] == ids[:, None, : weights.shape[-1]]
    equal &= (keys < rows[:, None]) & (keys >= place.first_key)
    return _mass_on(weights, equal)


def induction_rows(weights: Weights, place: Place, ids: NDArray[np.integer]) -> Rows:
    """The weight on what followed earlier tokens equal to the query's; as ``duplicate_rows``."""
    rows, keys = place.rows(weights), np.arange(weights.shape[-1])
    before = np.roll(ids, 1, axis=-1)[:, None, : weights.shape[-1]]
    # Key 0 follows nothing; the query itself follows its equal neighbour.
    follows = (ids[:, rows, None] == before) & (keys >= 1) & (keys < rows[:, None])
    return _mass_on(weights, follows)


def _mass_on(weights: Weights, keys: NDArray[np.bool_]) -> Rows:
    """The summed weight on ``keys`` (orders, rows, keys); rows without any do not count."""
    chosen = np.moveaxis(keys, 0, -1).astype(weights.dtype)  # (rows, keys, orders)
    by_row = np.moveaxis(weights, -2, -3 if weights.ndim > 2 else 0)  # (..., rows, heads, keys)
    if weights.ndim == 2:
        by_row = weights[:, None, :]
    sums = np.matmul(by_row, chosen)  # (..., rows, heads, orders)
    values = sums[:, 0].T if weights.ndim == 2 else np.moveaxis(sums, -3, -1)
    return values, np.asarray(keys.any(-1))


def column_rows(weights: Weights, place: Place, keys: NDArray[np.bool_]) -> Rows:
    """The weight on marked keys (key,); a row that sees none of them does not count."""
    marked = keys.copy()
    marked[: place.first_key] = False
    return _marked_mass(weights, marked), np.asarray(_marked_seen(weights, place, marked) > 0)


def rare_rows(weights: Weights, place: Place, keys: NDArray[np.bool_]) -> Rows:
    """The weight on marked keys minus their share of the keys that the row sees."""
    values, counts = column_rows(weights, place, keys)
    marked = keys.copy()
    marked[: place.first_key] = False
    seen = np.maximum(place.visible(weights), 1)
    return values - _marked_seen(weights, place, marked) / seen, counts


def _marked_mass(weights: Weights, marked: NDArray[np.bool_]) -> Weights:
    return weights @ marked[: weights.shape[-1]].astype(weights.dtype)


def _marked_seen(weights: Weights, place: Place, marked: NDArray[np.bool_]) -> NDArray[np.int64]:
    rows = place.rows(weights)
    if not place.causal:
        return np.full(len(rows), marked.sum())
    return np.asarray(np.cumsum(marked)[rows])


def entropy_rows(weights: Weights) -> Weights:
    """−Σ A ln A of each row, nats."""
    # The smallest normal number stands in for zero: zero times its logarithm is zero.
    logarithms = np.log(np.maximum(weights, np.finfo(weights.dtype).tiny))
    total = -np.einsum("...k,...k->...", weights, logarithms)
    return np.asarray(np.maximum(total, 0.0) + 0.0)  # rounding, and the sign of zero


def normalised_entropy_rows(weights: Weights, place: Place, entropy: Weights) -> Rows:
    """Each row's entropy over ln(number of keys it sees), from query 1 on."""
    visible = place.visible(weights)
    counts = (visible > 1) & (place.rows(weights) >= 1)
    return entropy / np.log(np.where(counts, visible, 2)), counts


def distance_rows(weights: Weights, place: Place, signed: bool = False) -> Weights:
    """Σⱼ A[i, j]·|i − j| of each row; signed: of j − i, so that later keys count as positive."""
    rows = place.rows(weights)
    positions = np.arange(weights.shape[-1])
    if signed or place.causal:
        # Linear in the key: no second matrix is needed.
        mean = weights @ positions.astype(weights.dtype) - rows * weights.sum(-1)
        return np.asarray(mean if signed else -mean)
    gap = np.abs(rows[:, None] - positions[None, :]).astype(weights.dtype)
    return np.asarray(np.einsum("...rk,rk->...r", weights, gap))


def confidence_rows(weights: Weights, place: Place, special: NDArray[np.bool_]) -> Rows:
    """The largest weight of each row that is no special token's."""
    return weights.max(-1), ~special[place.rows(weights)]


def alignment_rows(weights: Weights, place: Place) -> Rows:
    """Σⱼ A[i, j]·exp(−(i/N − j/M)² / 2g²), g = 0.2: how near the diagonal of two texts a row looks.

    One minus the guided-attention loss of Tachibana et al. 2018, "Efficiently Trainable
    Text-to-Speech System", section 4.1. ``place`` gives N queries and M keys; in [0, 1].
    """
    where = place.rows(weights) / place.queries
    gap = where[:, None] - np.arange(weights.shape[-1]) / place.keys
    near = np.exp(-(gap**2) / (2 * _GUIDE**2)).astype(weights.dtype)
    return np.einsum("...rk,rk->...r", weights, near), np.ones(len(where), bool)


_GUIDE = 0.2


def centre_rows(weights: Weights) -> Weights:
    """Σⱼ A[i, j]·j / Σⱼ A[i, j]: the key that a row looks at on average."""
    positions = np.arange(weights.shape[-1]).astype(weights.dtype)
    total = weights.sum(-1)
    return np.asarray((weights @ positions) / np.where(total > 0, total, 1))


def uniform_rows(place: Place, rows: int) -> NDArray[np.float64]:
    """Attention spread evenly over what each query sees, (rows, key): a block of it."""
    indices = np.arange(place.start, place.start + rows)
    weights = np.ones((rows, place.keys))
    weights[:, : place.first_key] = 0
    if place.causal:
        weights[np.arange(place.keys) > indices[:, None]] = 0
    total = weights.sum(-1, keepdims=True)
    return np.asarray(np.divide(weights, total, out=np.zeros_like(weights), where=total > 0))
