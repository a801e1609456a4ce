"""The attention sink of a text: which keys it is, how much a head gives it, and weights without it.

Heads that have nothing to do put their weight on the first token or on special tokens (Xiao et al.
2023, attention sinks; Clark et al. 2019 for BERT's [SEP]): a column of the map, which says little
about the head.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.rows import even_weights
from attnviz.records import AttentionRecord, Tokens

Bools = NDArray[np.bool_]
Floats = NDArray[np.floating]

SINK_WEIGHT = 0.3
"""The mean weight on the sink above which a head rests on it: ε of Gu et al. 2024, "When Attention
Sink Emerges in Language Models"."""

_OVER_UNIFORM = 2.0
"""How many times that of uniform attention it must be as well: a short text has few other keys."""

LEAST_LEFT = 0.005
"""A row that gives all but this to the sink has nothing left that could be rescaled: what would be
shown is its rounding."""


def sink_keys(keys: Tokens, causal: bool) -> Bools:
    """(key,) the special tokens ([CLS], [SEP], BOS, EOS) and, of causal attention, key 0."""
    found = np.asarray(keys.special, bool)
    found[:1] |= causal
    return found


def sink_of(record: AttentionRecord) -> tuple[Bools, Bools]:
    """Return the sink of a record: (query,) which queries are of it themselves, and (key,) which
    keys.

    In cross attention no query is.
    """
    keys = sink_keys(record.keys, record.causal)
    queries = np.zeros(len(record.queries), bool) if record.kind == "cross" else keys
    return queries, keys


def sink_weights(weights: Floats, queries: Bools, keys: Bools) -> Floats:
    """Mean over queries that are not of the sink of Σⱼ A[i, j] over its keys j, in [0, 1].

    weights: (..., query, key); queries, keys: as ``sink_of`` gives them. NaN where every query is
    of the sink.
    """
    if queries.all():
        return np.full(weights.shape[:-2], np.nan)
    return np.asarray(weights[..., ~queries, :][..., keys].sum(-1, dtype=float).mean(-1))


def resting_weight(record: AttentionRecord) -> float:
    """Return the sink weight above which a head rests on the sink.

    ``SINK_WEIGHT``, or twice what uniform attention gives in the layer where it gives most,
    whichever is more; 1 where there is no sink.
    """
    queries, keys = sink_of(record)
    if not keys.any() or queries.all():
        return 1.0
    one_each = {id(layer.mask): layer for layer in record.layers}.values()
    even = (even_weights(record.seen(layer)) for layer in one_each)
    uniform = max(float(sink_weights(weights, queries, keys)) for weights in even)
    return max(SINK_WEIGHT, _OVER_UNIFORM * uniform)


def without_sink(weights: Floats, keys: Bools) -> Floats:
    """Weights (..., query, key) without the sink's keys, each row rescaled to sum to one.

    NaN in the left-out columns, and in rows that keep at most ``LEAST_LEFT``.
    """
    kept = np.where(keys, 0, weights)
    left = kept.sum(-1, keepdims=True)
    enough = left > LEAST_LEFT
    scaled = np.divide(kept, left, out=np.full_like(weights, np.nan), where=enough)
    return np.where(keys, np.nan, scaled)
