"""Records of attention that tests make up: random maps, and a report of them."""

import numpy as np
import pytest

from attnviz.measures.one_text import head_scores, notable_heads
from attnviz.measures.rows import Conditions, RowBlock, TextFacts, scores_of
from attnviz.records import AttentionRecord, HeadsRecord, LayerWeights, ModelInfo, Tokens


def tokens_of(texts):
    numbers = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return Tokens(
        tuple(numbers[text] for text in texts), tuple(texts), tuple(t == "<s>" for t in texts)
    )


def random_maps(heads, queries, keys, causal, seed):
    """Weights (head, query, key) between nothing and everything."""
    raw = np.random.default_rng(seed).dirichlet(np.full(keys, 0.3), size=(heads, queries)) + 1e-4
    weights = np.tril(raw) if causal else raw
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def make_report(
    texts=("<s>", " The", " cat", " saw", " the", " cat", "."),
    *,
    keys=None,
    heads=(3, 3),
    weights=None,
    causal=True,
    kind="self",
    kv_heads=None,
    selected=False,
    index_base=0,
    sorted_by=None,
    name="made",
    notes=(),
    revision="0123456789abcdef",
    text="a text",
    target=None,
    kept=None,
    dtype=np.float32,
):
    """A report; ``heads`` counts the heads of each layer, ``weights`` gives each layer's maps.

    kept: the places of those that are there, of a layer that has more.
    """
    queries = tokens_of(texts)
    key_tokens = queries if keys is None else tokens_of(keys)
    causal = causal and keys is None and len(texts) > 1
    if weights is None:
        weights = [
            random_maps(count, len(queries), len(key_tokens), causal, seed)
            for seed, count in enumerate(heads)
        ]
    layers = tuple(
        LayerWeights(at, tuple(places), maps[list(places)].astype(dtype))
        for at, maps in enumerate(weights)
        for places in [range(len(maps)) if kept is None else kept]
    )
    most = max(len(maps) for maps in weights)
    info = ModelInfo(
        name, revision, "None", "float32", len(layers), most, kv_heads or most, 8, notes=notes
    )
    record = AttentionRecord(info, kind, causal, queries, key_tokens, layers)
    scores = head_scores(record)
    if sorted_by is not None:
        scores = tuple(sorted(scores, key=lambda entry: entry.scores[sorted_by] or 0.0))
    notable = notable_heads(scores, 3)
    return HeadsRecord(record, scores, notable, selected, index_base, sorted_by, text, target)


def measured(name, weights, ids=None, special=None, *, causal=True):
    """One measure of whole matrices (..., query, key); every token different unless told."""
    queries, keys = weights.shape[-2:]
    kind = "self" if queries == keys else "cross"

    def tokens(count):
        return Tokens(
            tuple(range(count)) if ids is None else tuple(ids),
            ("x",) * count,
            (False,) * count if special is None or len(special) != count else tuple(special),
        )

    text = TextFacts(tokens(queries), tokens(keys), Conditions(kind, causal))
    return scores_of(RowBlock(text, weights), [name])[name]


@pytest.fixture(scope="session")
def reports():
    return make_report
