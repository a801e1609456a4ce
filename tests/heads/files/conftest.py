"""Reports of random weights, small enough to read back whole."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from attnviz.measures.one_text import head_scores, telling_heads
from attnviz.records import (
    AttentionRecord,
    HeadsReport,
    Kind,
    LayerWeights,
    ModelInfo,
    Tokens,
)

Build = Callable[..., HeadsReport]

HOSTILE = (
    "</svg><script>alert(1)</script>",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202eevil\u202c",
    'say "hi", it\'s',
    "line\nbreak\r\n\ttab",
    "nul\x00",
    "<",
    "&amp;",
    "$x^2$",
    "=1+1",
    "]]>-->",
    "\x9bC1\u2028\ufffe",
)


def tokens_of(texts: Sequence[str]) -> Tokens:
    ids = {text: 100 + place for place, text in enumerate(dict.fromkeys(texts))}
    return Tokens(
        tuple(ids[text] for text in texts), tuple(texts), tuple(t == "<s>" for t in texts)
    )


def build(
    texts: Sequence[str] = ("<s>", " The", " cat", " sat", " on", " the", " cat"),
    keys: Sequence[str] | None = None,
    layers: int = 2,
    heads: int = 3,
    kv_heads: int | None = None,
    causal: bool = True,
    kind: Kind = "self",
    selected: bool = False,
    index_base: int = 0,
    dtype: type = np.float32,
    concentration: float = 0.2,
    notes: tuple[str, ...] = (),
    name: str = "tiny",
    kept: Sequence[int] | None = None,
    sorted_by: str | None = None,
) -> HeadsReport:
    rng = np.random.default_rng(7)
    queries = tokens_of(texts)
    key_tokens = queries if keys is None else tokens_of(keys)
    causal = causal and kind != "cross"
    kept_heads = tuple(range(heads) if kept is None else kept)
    drawn = []
    for layer in range(layers):
        weights = rng.dirichlet(
            np.full(len(key_tokens), concentration), size=(len(kept_heads), len(queries))
        )
        if causal:
            weights = np.tril(weights + 1e-9)
            weights /= weights.sum(axis=-1, keepdims=True)
        drawn.append(LayerWeights(layer, kept_heads, weights.astype(dtype)))
    info = ModelInfo(
        name,
        "0123456789abcdef",
        "LlamaForCausalLM",
        "float32",
        layers,
        heads,
        kv_heads or heads,
        8,
        seed=None,
        notes=notes,
    )
    record = AttentionRecord(info, kind, causal, queries, key_tokens, tuple(drawn))
    scores = head_scores(record)
    if sorted_by is not None:
        scores = tuple(sorted(scores, key=lambda entry: entry.scores[sorted_by] or 0.0))
    return HeadsReport(record, scores, telling_heads(scores, 3), selected, index_base, sorted_by)


@pytest.fixture
def report() -> HeadsReport:
    return build()


@pytest.fixture
def make() -> Build:
    return build


@pytest.fixture
def hostile() -> tuple[str, ...]:
    return HOSTILE
