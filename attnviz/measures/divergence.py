"""How far apart rows of attention weights are, how alike outputs are, and the cheapest pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.records import Floats


def js_divergence(first: Floats, second: Floats) -> NDArray[np.float64]:
    """Return the Jensen–Shannon divergence (...) of rows (..., key) in bits, in [0, 1].

    ½ KL(p ‖ m) + ½ KL(q ‖ m) with m = (p + q) / 2 and 0·log 0 = 0 (Lin 1991, "Divergence Measures
    Based on the Shannon Entropy"); symmetric; 0 for equal rows, 1 for rows that share no key. The
    rows broadcast and are scaled to sum to one. NaN counts as no weight; a row without weight gives
    NaN.
    """
    p, q = _shares(first), _shares(second)
    middle = (p + q) / 2
    total = np.zeros(middle.shape[:-1])
    for one in (p, q):
        with np.errstate(invalid="ignore"):  # the quotients of zeros and of NaN are replaced
            terms = one / middle
        terms[~((one > 0) & (middle > 0))] = 1
        np.log2(terms, out=terms)
        terms *= one
        total += terms.sum(-1) / 2
    return np.asarray(np.clip(total, 0.0, 1.0))


def _shares(rows: Floats) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = rows.astype(np.float64)
    np.nan_to_num(shares, copy=False, nan=0.0)
    total = shares.sum(-1, keepdims=True)
    shares /= np.where(total > 0, total, np.nan)
    return shares


def cosine(first: Floats, second: Floats) -> NDArray[np.float64]:
    """Return the cosines (...) of vectors (..., width): 1 for two of zeros, 0 for one of zeros."""
    wide = first.astype(np.float64), second.astype(np.float64)
    product = (wide[0] * wide[1]).sum(-1)
    one, other = (np.sqrt((vectors * vectors).sum(-1)) for vectors in wide)
    size, alike = one * other, np.array((one == 0) & (other == 0), np.float64)
    np.divide(product, size, out=alike, where=size > 0)
    return np.asarray(np.clip(alike, -1.0, 1.0))


def kl_divergence(first: Floats, second: Floats) -> NDArray[np.float64]:
    """Return KL(first ‖ second) in nats of log-probabilities (..., vocab): (...), at least 0."""
    terms: NDArray[np.float64] = first.astype(np.float64)
    shares = np.exp(terms)
    with np.errstate(invalid="ignore"):  # −∞ − −∞ of a word without any share
        terms -= second
        terms *= shares
    terms[shares == 0] = 0.0
    return np.asarray(np.maximum(terms.sum(-1), 0.0))


def cheapest_pairs(costs: NDArray[np.floating]) -> list[tuple[int, int]]:
    """Return the pairs (row, column) of a table with the least sum of costs, ordered by row.

    Each row gets a column of its own, or each column a row if there are fewer columns. The
    Hungarian method with shortest augmenting paths (Jonker & Volgenant 1987), O(rows² · columns).
    Raises ValueError for costs that are not finite.
    """
    table = np.asarray(costs, np.float64)
    if not np.isfinite(table).all():
        raise ValueError("the cheapest pairs need finite costs")
    rows, columns = table.shape
    if rows > columns:
        return sorted((row, column) for column, row in cheapest_pairs(table.T))
    # Column 0 stands for no column; row_of[j] is the row that has column j, counted from 1.
    row_prices, column_prices = np.zeros(rows + 1), np.zeros(columns + 1)
    row_of = np.zeros(columns + 1, int)
    for row in range(1, rows + 1):
        row_of[0], column = row, 0
        reach = np.full(columns + 1, np.inf)
        came_from = np.zeros(columns + 1, int)
        done = np.zeros(columns + 1, bool)
        while row_of[column]:
            done[column] = True
            at = row_of[column]
            spare = table[at - 1] - row_prices[at] - column_prices[1:]
            nearer = ~done[1:] & (spare < reach[1:])
            reach[1:][nearer], came_from[1:][nearer] = spare[nearer], column
            following = int(np.where(done, np.inf, reach)[1:].argmin()) + 1
            step = reach[following]
            row_prices[row_of[done]] += step
            column_prices[done] -= step
            reach[~done] -= step
            column = following
        while column:
            row_of[column], column = row_of[came_from[column]], came_from[column]
    taken = np.flatnonzero(row_of[1:])
    return sorted((int(row_of[column + 1]) - 1, int(column)) for column in taken)
