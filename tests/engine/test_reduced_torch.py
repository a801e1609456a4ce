"""Sums over attention rows equal those over the whole matrices, of every architecture."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import FalconConfig, FalconForCausalLM

from attnviz.engine.backend import backend_of
from attnviz.engine.capture import capture
from attnviz.engine.reduced_torch import TorchLayer
from attnviz.errors import UnsupportedError
from attnviz.measures import reduced
from attnviz.measures.reduced import Equals, EvenRows, SummedRows
from attnviz.measures.rows import Conditions, RowBlock, TextFacts
from attnviz.models.bundled import Bundled
from attnviz.models.prepare import prepared
from attnviz.records import Input, Tokens

from .architectures import ARCHITECTURES, eager_attentions, inputs_of, quick_or_long
from .kernel_cases import MASKS, TYPES, errors, sums_of
from .sizes import set_sizes
from .test_backend import PLAIN, opened, texts_of

OWN = {"bloom", "mpt", "falcon", "gptj", "codegen"}
"""Which compute attention by themselves, some with a bias of each key."""

REDUCIBLE = PLAIN | {"gpt_oss", "gemma2"} | OWN
"""Whose attention is a softmax over a range of keys, with a learned sink, a cap or a bias."""
CAP = 1.5
BIAS = torch.linspace(0, 3, 37) * torch.linspace(-0.5, 1, 6)[:, None]


class Reads:
    """Gives a function the sums of every layer, or of some."""

    def __init__(self, sums):
        self.sums = sums
        self.layers = None

    def wants(self, kind, layer):
        return self.layers is None or layer in self.layers


@pytest.mark.parametrize("name", quick_or_long(sorted(REDUCIBLE)))
def test_every_sum_of_every_architecture(name, monkeypatch):
    """With grouped heads, windows, learned sinks, encoders and cross attention."""
    set_sizes(monkeypatch, rows=3)
    whole, found = eager_attentions(name, **inputs_of(name)), set()

    def check(text, kind, layer, sums):
        weights = whole[kind, layer][0].double().numpy()
        keys = weights.shape[-1]
        columns = np.random.default_rng(keys).normal(size=(keys, 2))
        given = sums.reduced(columns, 4, far=True)
        for field, expected in sums_of(weights, columns, 4).items():
            assert np.abs(getattr(given, field) - expected).max() < 1e-5, (field, layer)
        assert np.abs(sums.rows(2, 5) - weights[:, 2:5]).max() < 1e-5
        last = sums.past - 1
        one = np.take_along_axis(weights, last[None, :, None], -1)[..., 0]
        assert np.abs(sums.single(last) - one).max() < 1e-5
        found.add((kind, layer))

    model = opened(name)
    backend_of(model).read_sums(Reads(check), texts_of(name))
    assert found == set(whole)


def test_other_attention_is_refused():
    names = sorted(set(ARCHITECTURES) - REDUCIBLE)
    assert names
    for name in ("t5", "fsmt"):
        with pytest.raises(UnsupportedError, match="leave out --reduce fused"):
            backend_of(opened(name)).read_sums(Reads(print), texts_of(name))
    with pytest.raises(UnsupportedError, match="--backend torch"):
        backend_of(Bundled()).read_sums(Reads(print), [Input.of_ids([1, 2, 3])])


def random_layer(dtype, window=None, sink=False, capped=False):
    """Six heads that share two keys, over 37 tokens."""
    draw = torch.Generator().manual_seed(7)
    query = 3 * torch.randn(6, 37, 8, generator=draw, dtype=torch.float64)
    key = torch.randn(2, 37, 8, generator=draw, dtype=torch.float64)
    past = np.arange(1, 38)
    first = np.zeros_like(past) if window is None else np.maximum(past - window, 0)
    edge = torch.linspace(-2, 2, 6, dtype=dtype) if sink else None
    more = {"cap": CAP, "bias": BIAS.double()} if capped else {}
    return TorchLayer(query.to(dtype), key.to(dtype), 0.3, ranges=(first, past), sink=edge, **more)


@pytest.mark.parametrize(("sink", "capped"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("causal", [True, False])
def test_every_measure_equals_that_of_the_matrix(causal, window, sink, capped, monkeypatch):
    """Formulas read the same from sums as from weights, with equal tokens in nine orders."""
    set_sizes(monkeypatch, rows=5, cells=600)
    monkeypatch.setattr(reduced, "_FEW", 4)
    layer = random_layer(torch.float32, window, sink, capped)
    if not causal:
        layer.past = np.minimum(layer.past + (37 if window is None else 5), 37)
    ids = np.random.default_rng(3).integers(5, 12, 37)
    texts = tuple("," if each == 7 else f"t{each}" for each in ids)
    special = tuple(place in (0, 19) for place in range(37))
    tokens = Tokens(tuple(map(int, ids)), texts, special)
    text = TextFacts(tokens, tokens, Conditions("self", causal, ranked=True), shuffles=8)
    seen = (np.arange(37) >= layer.first[:, None]) & (np.arange(37) < layer.past[:, None])
    even = EvenRows(text, layer.first, layer.past)
    equals = even.equals
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


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_a_gpu_share_their_memory(dtype, sink, monkeypatch):
    """Each block in the same stretch, and keys that are copied with it, give the same sums."""
    set_sizes(monkeypatch, cells=600, rows=5)
    plain, shared, rooms = random_layer(dtype, 6, sink), random_layer(dtype, 6, sink), []
    shared._on_gpu, own = True, TorchLayer._room

    def noted(self, queries):
        rooms.append(own(self, queries))
        return rooms[-1]

    monkeypatch.setattr(TorchLayer, "_room", noted)
    columns = np.random.default_rng(2).normal(size=(37, 3))
    equals = Equals(np.arange(2 * 37).reshape(2, 37) % 5, plain.first, plain.past)
    ours, expected = (each.reduced(columns, 4, equals, far=True) for each in (shared, plain))
    for given, wanted in zip(ours, expected, strict=True):
        assert np.abs(given - wanted).max() < 1e-6
    assert np.abs(shared.rows(3, 9) - plain.rows(3, 9)).max() < 1e-6
    assert np.abs(shared.single(plain.past - 1) - plain.single(plain.past - 1)).max() < 1e-6
    shares = np.ones((2, 37), np.float32)
    assert np.abs(shared.sources(shares) - plain.sources(shares)).max() < 1e-6
    assert {len(room) for room in rooms if room is not None} == {600}


@pytest.mark.parametrize("many", [1, 2, 3, 5, 6])
def test_parts_of_a_layer_are_some_of_its_heads(many, monkeypatch):
    """At most so many heads: some of those that share keys, or whole groups of three."""
    whole = random_layer(torch.float32, 6, sink=True, capped=True)
    columns = np.random.default_rng(2).normal(size=(37, 3))
    expected, hidden = whole.reduced(columns, 4), np.arange(37) == 0
    set_sizes(monkeypatch, sum_bytes=4 * 10 * 37 * many)
    layer = random_layer(torch.float32, 6, sink=True, capped=True)
    seen = []
    for heads, part in layer.parts(10):
        assert part.heads == len(heads) <= many
        for given, wanted in zip(part.reduced(columns, 4), expected, strict=True):
            assert given is wanted is None or np.abs(given - wanted[heads]).max() < 1e-5
        pairs = part.strongest(5, hidden)
        assert [[pair[1:] for pair in head] for head in pairs] == [
            [pair[1:] for pair in whole.strongest(5, hidden)[head]] for head in heads
        ]
        seen += heads
    assert seen == [*range(6)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_blocks_sum_rounded_queries_and_keys_in_float32(mask, dtype, monkeypatch):
    set_sizes(monkeypatch, rows=5, cells=600)
    more = {"heads": 6, "shared": 2, "sink": mask != "full", "bias": mask == "full", "cap": 3.0}
    _, apart = errors(TorchLayer, mask, dtype, **more)
    assert max(apart.values()) < 1e-5, apart


def test_no_layer_is_handed_over_twice_and_others_run():
    model, seen = opened("llama"), []
    reader = Reads(lambda text, kind, layer, sums: seen.append((text, kind, layer, sums.heads)))
    reader.layers = {1}
    backend_of(model).read_sums(reader, texts_of("llama"))
    assert seen == [(0, "self", 1, 6)]


def test_a_cap_and_a_bias_of_each_key_are_in_every_weight_and_output():
    """softmax(c · tanh(s q·k / c) + b_k) in float64, written out."""
    layer = random_layer(torch.float64, 6, capped=True)
    draw = torch.Generator().manual_seed(7)
    query = 3 * torch.randn(6, 37, 8, generator=draw, dtype=torch.float64).numpy()
    key = torch.randn(2, 37, 8, generator=draw, dtype=torch.float64).numpy().repeat(3, 0)
    scores = CAP * np.tanh(0.3 * query @ key.swapaxes(1, 2) / CAP) + BIAS.numpy()[:, None]
    seen = (np.arange(37) >= layer.first[:, None]) & (np.arange(37) < layer.past[:, None])
    raised = np.where(seen, np.exp(scores), 0)
    weights = raised / raised.sum(-1, keepdims=True)
    assert np.abs(layer.rows(0, 37) - weights).max() < 1e-6
    own = np.arange(37)
    assert np.abs(layer.single(own) - weights[:, own, own]).max() < 1e-6
    value = torch.randn(2, 37, 5, generator=draw, dtype=torch.float64)
    mean = weights @ value.numpy().repeat(3, 0)
    assert np.abs(layer.mixed(value).numpy().swapaxes(0, 1) - mean).max() < 1e-6


def test_falcon_with_alibi_is_what_its_fused_attention_computes():
    """Its eager function adds the bias twice; the inputs of the fused one give the weights."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = FalconConfig(vocab_size=97, alibi=True, multi_query=False, **sizes)
    model = FalconForCausalLM(config).double().eval()
    given, expected, found = torch.randint(3, 97, (1, 19)), [], []
    plain = functional.scaled_dot_product_attention

    def noted(query, key, value, attn_mask=None, **options):
        scores = query @ key.mT / math.sqrt(8) + attn_mask
        expected.append(scores.softmax(-1)[0].numpy())
        return plain(query, key, value, attn_mask=attn_mask, **options)

    with pytest.MonkeyPatch.context() as patched, torch.inference_mode():
        patched.setattr(functional, "scaled_dot_product_attention", noted)
        model(given)
    ready = prepared("falcon", model, None, torch.device("cpu"))
    inputs = [Input.of_ids(given[0].tolist())]
    read = Reads(lambda text, kind, layer, sums: found.append(sums.rows(0, 19)))
    backend_of(ready).read_sums(read, inputs)
    whole = capture(ready, inputs[0].text, kind="self")
    assert len(found) == len(expected) == 2
    for ours, own, layer in zip(found, expected, whole.layers, strict=True):
        assert np.abs(ours - own).max() < 1e-6
        assert np.abs(layer.weights - own).max() < 1e-6
