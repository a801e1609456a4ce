"""How far apart two rows of attention weights are, and how alike two outputs of a head are."""

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
