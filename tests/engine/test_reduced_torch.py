"""Sums over attention rows equal those over the whole matrices, of every architecture."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from attnviz.engine import reduced_torch
from attnviz.engine.backend import backend_of
from attnviz.engine.reduced_torch import TorchLayer
from attnviz.errors import UnsupportedError
from attnviz.measures import reduced
from attnviz.measures.reduced import EvenRows, SummedRows
from attnviz.measures.rows import Conditions, RowBlock, TextFacts
from attnviz.models.bundled import Bundled
from attnviz.records import Input, Tokens

from .architectures import ARCHITECTURES, eager_attentions, inputs_of, quick_or_long
from .test_row_blocks import PLAIN, opened, texts_of

REDUCIBLE = PLAIN | {"gpt_oss"}
"""Whose attention is a softmax over a range of keys, perhaps with a learned sink."""


class Reads:
    """Gives a function the sums of every layer, or of some."""

    def __init__(self, sums: Callable[..., object]) -> None:
        self.sums = sums
        self.layers: set[int] | None = None

    def wants(self, kind: str, layer: int) -> bool:
        return self.layers is None or layer in self.layers


def loops(weights: np.ndarray, columns: np.ndarray, buckets: int) -> dict[str, np.ndarray]:
    """Each sum by its definition, in float64. weights: (head, query, key)."""
    weights = weights.astype(np.float64)
    heads, queries, keys = weights.shape
    pooled = np.zeros((heads, -(-queries // buckets), -(-keys // buckets)))
    earlier = np.zeros((heads, queries, columns.shape[1]))
    entropy = np.zeros((heads, queries))
    for query in range(queries):
        for key in range(keys):
            weight = weights[:, query, key]
            pooled[:, query // buckets, key // buckets] += weight
            earlier[:, query] += weight[:, None] * columns[key] * (key <= query)
            entropy[:, query] -= [0 if one == 0 else one * np.log(one) for one in weight]
    return {
        "mixed": np.concatenate([weights @ columns, earlier], -1),
        "total": weights.sum(-1),
        "entropy": entropy,
        "largest": weights.max(-1),
        "pooled": pooled,
    }


@pytest.mark.parametrize("name", quick_or_long(sorted(REDUCIBLE)))
def test_every_sum_of_every_architecture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With grouped heads, windows, learned sinks, encoders and cross attention."""
    monkeypatch.setattr(reduced_torch, "_ROWS", 3)
    whole, found = eager_attentions(name, **inputs_of(name)), set()

    def check(text, kind, layer, sums) -> None:
        weights = whole[kind, layer][0].numpy()
        keys = weights.shape[-1]
        columns = np.random.default_rng(keys).normal(size=(keys, 2))
        given = sums.reduced(columns, columns, 4)
        for field, expected in loops(weights, columns, 4).items():
            assert np.abs(getattr(given, field) - expected).max() < 1e-5, (field, layer)
        assert np.abs(sums.rows(2, 5) - weights[:, 2:5]).max() < 1e-5
        last = sums.past - 1
        one = np.take_along_axis(weights, last[None, :, None], -1)[..., 0]
        assert np.abs(sums.single(last) - one).max() < 1e-5
        found.add((kind, layer))

    model = opened(name)
    backend_of(model).read_sums(Reads(check), texts_of(name))
    assert found == set(whole)


def test_other_attention_is_refused() -> None:
    names = sorted(set(ARCHITECTURES) - REDUCIBLE)
    assert names
    for name in ("gemma2", "t5"):
        with pytest.raises(UnsupportedError, match="leave out --reduce fused"):
            backend_of(opened(name)).read_sums(Reads(print), texts_of(name))
    with pytest.raises(UnsupportedError, match="--backend torch"):
        backend_of(Bundled()).read_sums(Reads(print), [Input.of_ids([1, 2, 3])])


def random_layer(dtype: torch.dtype, window: int | None = None, sink: bool = False) -> TorchLayer:
    """Six heads that share two keys, over 37 tokens."""
    draw = torch.Generator().manual_seed(7)
    query = 3 * torch.randn(6, 37, 8, generator=draw, dtype=torch.float64)
    key = torch.randn(2, 37, 8, generator=draw, dtype=torch.float64)
    past = np.arange(1, 38)
    first = np.zeros_like(past) if window is None else np.maximum(past - window, 0)
    edge = torch.linspace(-2, 2, 6, dtype=dtype) if sink else None
    return TorchLayer(query.to(dtype), key.to(dtype), 0.3, ranges=(first, past), sink=edge)


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("causal", [True, False])
def test_every_measure_equals_that_of_the_matrix(
    causal: bool, window: int | None, sink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formulas read the same from sums as from weights, with equal tokens in nine orders."""
    monkeypatch.setattr(reduced_torch, "_ROWS", 5)
    monkeypatch.setattr(reduced, "_FEW", 4)
    monkeypatch.setitem(reduced_torch._CELLS, "cpu", 600)
    layer = random_layer(torch.float32, window, sink)
    if not causal:
        layer.past = np.minimum(layer.past + (37 if window is None else 5), 37)
    ids = np.random.default_rng(3).integers(5, 12, 37)
    texts = tuple("," if each == 7 else f"t{each}" for each in ids)
    special = tuple(place in (0, 19) for place in range(37))
    tokens = Tokens(tuple(map(int, ids)), texts, special)
    text = TextFacts(tokens, tokens, Conditions("self", causal, ranked=True), shuffles=8)
    seen = (np.arange(37) >= layer.first[:, None]) & (np.arange(37) < layer.past[:, None])
    even = EvenRows(text, layer.first, layer.past)
    equals = even.equals[0]
    assert equals.groups  # both ways to sum over equal tokens are tried
    assert equals.pairs.size
    dense_even = RowBlock(text, even.weights, mask=seen)
    for name, formula in text.attention.even_formulas().items():
        values, counts = formula(even)
        expected, rows = formula(dense_even)
        assert (counts == rows).all(), name
        assert np.abs(values - expected)[..., rows].max(initial=0) < 1e-12, name
    summed = SummedRows(text, layer, even)
    block = RowBlock(text, layer.rows(0, 37).astype(np.float64), mask=seen)
    for name, formula in text.attention.formulas().items():
        (values, counts), (expected, rows) = formula(summed), formula(block)
        assert (counts == rows).all(), name
        assert np.abs(values - expected)[..., rows].max(initial=0) < 1e-5 * max(
            1, np.abs(expected).max()
        ), name


def test_bfloat16_is_reduced_in_float32() -> None:
    """The sums are those of the rounded queries and keys, to float32."""
    narrow = random_layer(torch.bfloat16)
    wide = TorchLayer(
        narrow._query.flatten(0, 1).double() / (0.3 * math.log2(math.e)),
        narrow._key.double(),
        0.3,
        ranges=(narrow.first, narrow.past),
    )
    columns = np.arange(37.0)[:, None]
    for ours, exact in zip(narrow.reduced(columns), wide.reduced(columns), strict=True):
        if ours is not None:
            assert np.abs(ours - exact).max() < 1e-4


def test_no_layer_is_handed_over_twice_and_others_run() -> None:
    model, seen = opened("llama"), []
    reader = Reads(lambda text, kind, layer, sums: seen.append((text, kind, layer, sums.heads)))
    reader.layers = {1}
    backend_of(model).read_sums(reader, texts_of("llama"))
    assert seen == [(0, "self", 1, 6)]
