"""Records of hand-made weights."""

import numpy as np

from attnviz.records import AttentionRecord, LayerWeights, ModelInfo, Tokens


def _tokens(ids):
    return Tokens(tuple(ids), tuple(f" t{i}" for i in ids), tuple(i == 0 for i in ids))


def make_record(heads, ids=None, causal=True, kind="self"):
    """One layer of the given (query, key) maps."""
    weights = np.stack(heads)
    queries = _tokens(range(weights.shape[1]) if ids is None else ids)
    keys = queries if kind != "cross" else _tokens(range(weights.shape[2]))
    info = ModelInfo("made", None, "None", "float64", 1, len(heads), len(heads), 2)
    layer = LayerWeights(0, tuple(range(len(heads))), weights)
    return AttentionRecord(info, kind, causal, queries, keys, (layer,))
