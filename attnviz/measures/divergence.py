"""How far apart rows of attention weights are, how alike outputs are, and the cheapest pairs.

The cheapest path through a table of two texts is the published way from cross attention to the
times of words: standardise, smooth, align (Radford et al. 2023, "Robust Speech Recognition via
Large-Scale Weak Supervision", in the code of Whisper and of transformers,
``_extract_token_timestamps``).
"""

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
    for shares in (p, q):
        with np.errstate(invalid="ignore"):  # the quotients of zeros and of NaN are replaced
            terms = shares / middle
        terms[~((shares > 0) & (middle > 0))] = 1
        np.log2(terms, out=terms)
        terms *= shares
        total += terms.sum(-1) / 2
    return np.asarray(np.clip(total, 0.0, 1.0))


def _shares(rows: Floats) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = np.nan_to_num(rows.astype(np.float64), copy=False)
    total = shares.sum(-1, keepdims=True)
    shares /= np.where(total > 0, total, np.nan)
    return shares


def cosine(first: Floats, second: Floats) -> NDArray[np.float64]:
    """Return the cosines (...) of vectors (..., width): 1 for two of zeros, 0 for one of zeros."""
    wide = first.astype(np.float64), second.astype(np.float64)
    product = (wide[0] * wide[1]).sum(-1)
    own, other = (np.sqrt((vectors * vectors).sum(-1)) for vectors in wide)
    size, alike = own * other, np.array((own == 0) & (other == 0), np.float64)
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


# The path through two texts ----------------------------------------------------------------------


SMOOTH = 7  # the width of the median filter in frames


def standardised(weights: Floats, width: int = SMOOTH) -> NDArray[np.float32]:
    """Return weights (head, token, frame) standardised over tokens, median-filtered."""
    wide = np.asarray(weights, np.float64)
    spread = wide.std(axis=-2, keepdims=True)
    centred = wide - wide.mean(axis=-2, keepdims=True)
    even = np.divide(centred, spread, out=np.zeros_like(wide), where=spread > 0)
    half = width // 2
    if wide.shape[-1] > half:
        padded = np.pad(even, [(0, 0)] * (wide.ndim - 1) + [(half, half)], mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1)
        even = np.median(windows, axis=-1)
    return even.astype(np.float32)


def aligned(scores: Floats) -> NDArray[np.intp]:
    """Return the frame (set, token) at which each token begins on the path of the largest scores.

    scores: (set, token, frame), such as the mean of the standardised weights of a set of heads.
    Dynamic time warping from the first token and frame to the last ones; a step goes to the next
    token, the next frame or both (Sakoe & Chiba 1978). Of equal costs the next frame is taken, as
    in transformers, and costs are kept in float32 as there. Many sets are aligned at once: a cell
    of all matrices is one step of NumPy.
    """
    sets, tokens, frames = scores.shape
    cost = np.full((tokens + 1, frames + 1, sets), np.inf, np.float32)
    trace = np.full((tokens + 1, frames + 1, sets), 2, np.int8)
    trace[1:, 0] = 1
    cost[0, 0] = 0
    own = -np.moveaxis(np.asarray(scores, np.float64), 0, -1)
    for diagonal in range(2, tokens + frames + 1):
        token = np.arange(max(1, diagonal - frames), min(tokens, diagonal - 1) + 1)
        frame = diagonal - token
        both, down = cost[token - 1, frame - 1], cost[token - 1, frame]
        right = cost[token, frame - 1]
        step = np.where((down < both) & (down < right), 1, 2)
        step[(both < down) & (both < right)] = 0
        least = np.choose(step, [both, down, right])
        cost[token, frame] = own[token - 1, frame - 1] + least
        trace[token, frame] = step
    begins = np.zeros((sets, tokens), np.intp)
    token, frame, all_sets = np.full(sets, tokens), np.full(sets, frames), np.arange(sets)
    for _ in range(tokens + frames):
        inside = (token > 0) & (frame > 0)
        begins[all_sets[inside], token[inside] - 1] = frame[inside] - 1
        step = trace[token, frame, all_sets]
        going = (token > 0) | (frame > 0)
        token = token - ((step < 2) & going)
        frame = frame - ((step != 1) & going)
    return begins
