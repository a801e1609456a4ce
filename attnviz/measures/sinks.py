"""Even attention over the keys that a query sees, and the attention sink that heads rest on.

Heads that have nothing to do put their weight on the first token or on special tokens (Xiao et al.
2023, attention sinks; Clark et al. 2019 for BERT's [SEP]): a column of the map, which says little
about the head.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.records import AttentionRecord, Bools, Floats, Tokens


def norm_weighted(weights: Floats, norms: Floats) -> Floats:
    """Return weights (..., rows, keys) times values' norms (..., key), as shares of one."""
    return rescaled(weights * norms[..., None, : weights.shape[-1]].astype(weights.dtype))


def rescaled(parts: Floats) -> Floats:
    """Rescale rows (..., row, key) in place to sum to one, and return them; zeros stay zero."""
    total = parts.sum(-1, keepdims=True)
    return np.asarray(np.divide(parts, total, out=parts, where=total > 0))


def uniform_weights(queries: int, keys: int, causal: bool) -> NDArray[np.float64]:
    """Return uniform weights (query, key) over all keys, or if causal up to the query's own."""
    return even_weights(visible_keys(queries, keys, causal))


def visible_keys(queries: int, keys: int, causal: bool, start: int = 0) -> NDArray[np.bool_]:
    """Return a mask (query, key) of the keys that queries from ``start`` on see."""
    if not causal:
        return np.ones((queries, keys), bool)
    return np.asarray(np.arange(keys) <= np.arange(start, start + queries)[:, None])


def even_weights(seen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return weights (query, key) spread evenly over the keys that each query sees."""
    return np.asarray(rescaled(seen.astype(np.float64)), np.float64)


SINK_WEIGHT = 0.3
"""The mean weight on the sink above which a head rests on it: ε of Gu et al. 2024, "When Attention
Sink Emerges in Language Models"."""

_OVER_UNIFORM = 2.0  # the least multiple of uniform attention's weight: short texts have few keys

LEAST_LEFT = 0.005  # the least weight outside the sink that is rescaled: less is rounding error


def sink_keys(keys: Tokens, causal: bool) -> Bools:
    """Return a mask (key,) of the sink: special tokens and, if causal, key 0."""
    sink = np.asarray(keys.special, bool)
    sink[:1] |= causal
    return sink


def sink_of(record: AttentionRecord) -> tuple[Bools, Bools]:
    """Return masks (query,) and (key,) of the sink; in cross attention no query belongs to it."""
    keys = sink_keys(record.keys, record.causal)
    queries = np.zeros(len(record.queries), bool) if record.kind == "cross" else keys
    return queries, keys


def sink_weights(weights: Floats, queries: Bools, keys: Bools) -> Floats:
    """Return each head's weight on the attention sink, in [0, 1], as a mean over queries.

    Queries that belong to the sink are left out. weights: (..., query, key); queries, keys: as
    returned by ``sink_of``. NaN if every query belongs to the sink.
    """
    if queries.all():
        return np.full(weights.shape[:-2], np.nan)
    return np.asarray(weights[..., ~queries, :][..., keys].sum(-1, dtype=float).mean(-1))


def resting_weight(record: AttentionRecord) -> float:
    """Return the sink's weight above which a head rests on it: also twice uniform; 1 without."""
    queries, keys = sink_of(record)
    if not keys.any() or queries.all():
        return 1.0
    one_each = {id(layer.mask): layer for layer in record.layers}.values()
    even = (even_weights(record.seen(layer)) for layer in one_each)
    uniform = max(float(sink_weights(weights, queries, keys)) for weights in even)
    return max(SINK_WEIGHT, _OVER_UNIFORM * uniform)


def without_sink(weights: Floats, keys: Bools) -> Floats:
    """Return attention weights without the sink's keys, each row rescaled to sum to one.

    weights: (..., query, key). keys: a mask (key,), True at the sink. NaN in the left-out columns,
        and in rows whose remaining weight is at most ``LEAST_LEFT``.
    """
    kept = np.where(keys, 0, weights)
    left = kept.sum(-1, keepdims=True)
    enough = left > LEAST_LEFT
    scaled = np.divide(kept, left, out=np.full_like(weights, np.nan), where=enough)
    return np.where(keys, np.nan, scaled)
