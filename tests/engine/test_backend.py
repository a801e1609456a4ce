"""Attention in blocks of queries, and queries and keys, are what transformers reports."""

import numpy as np
import pytest
import torch

from attnviz.engine import observe_torch
from attnviz.engine.backend import backend_of
from attnviz.engine.observer import products, softmaxed
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention
from attnviz.models.prepare import prepared
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Input, ModelInfo, Tokens

from ..small_models import whole_weights
from .architectures import ARCHITECTURES, eager_attentions, inputs_of, quick_or_long, small_model
from .scans import input_of

PLAIN = set(ARCHITECTURES) - {
    "gemma2",  # caps its scores
    "gpt_oss",  # has learned sinks
    "t5",  # adds a position bias
    *(name for name, entry in ARCHITECTURES.items() if not entry.registered),
}
"""Whose attention is a softmax of scaled scores and nothing else."""
TEXT = "The cat sat on the mat because the cat was tired."


class Gathered:
    """Puts blocks together again."""

    def __init__(self, norms=False):
        self.norms = norms
        self.rows = {}
        self.moved = {}

    def wants(self, kind, layer):
        return True

    def observe(self, text, kind, layer, start, weights, beside):
        known = self.rows.setdefault((text, kind, layer), [])
        assert start == sum(block.shape[1] for block in known)
        known.append(weights)
        self.moved[text, kind, layer] = beside.norms

    def whole(self, text, kind, layer, keys):
        blocks = self.rows[text, kind, layer]
        padded = [np.pad(block, ((0, 0), (0, 0), (0, keys - block.shape[2]))) for block in blocks]
        return np.concatenate(padded, axis=1)


def opened(name):
    return prepared(name, small_model(name), None, torch.device("cpu"))


def texts_of(name):
    return [input_of(inputs_of(name))]


@pytest.mark.parametrize("name", quick_or_long(ARCHITECTURES))
def test_every_architecture_in_blocks(name, monkeypatch):
    """Tried as a long text: plain attention is recomputed, any other read as it is."""
    monkeypatch.setattr(observe_torch, "LONG", 2)
    model, gathered = opened(name), Gathered()
    backend_of(model).observe(gathered, texts_of(name), cells=60)
    expected = eager_attentions(name, **inputs_of(name))
    assert {key[1:] for key in gathered.rows} == set(expected)
    for (kind, layer), weights in expected.items():
        whole = gathered.whole(0, kind, layer, weights.shape[-1])
        assert np.abs(whole - weights[0].numpy()).max() < 2e-6
    found = observe_torch._plain.get(model.model, {})
    assert (set(found.values()) == {True}) == (name in PLAIN)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "gptj"])
def test_a_short_text_is_read_bit_for_bit(name):
    gathered = Gathered()
    backend_of(opened(name)).observe(gathered, texts_of(name), cells=60)
    for (kind, layer), weights in eager_attentions(name, **inputs_of(name)).items():
        assert (gathered.whole(0, kind, layer, weights.shape[-1]) == weights[0].numpy()).all()


@pytest.mark.parametrize("long", [2, 2048])
def test_texts_of_one_length_run_together(long, monkeypatch):
    monkeypatch.setattr(observe_torch, "LONG", long)
    model = opened("llama")
    pair = [Input.of_ids(range(3, 14)), Input.of_ids(range(20, 31))]
    together = Gathered()
    backend_of(model).observe(together, pair, cells=200)
    for number, text in enumerate(pair):
        alone = Gathered()
        backend_of(model).observe(alone, [text], cells=200)
        for layer in range(3):
            whole = together.whole(number, "self", layer, 11)
            assert whole == pytest.approx(alone.whole(0, "self", layer, 11), abs=1e-6)


@pytest.mark.parametrize("long", [2, 2048])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "gptj", "gpt_neo"])
def test_what_each_value_moves(name, long, monkeypatch):
    """The module's output is the sum over keys and heads of weight times moved value, plus bias."""
    monkeypatch.setattr(observe_torch, "LONG", long)
    model, gathered = opened(name), Gathered(norms=True)
    texts = texts_of(name)
    backend_of(model).observe(gathered, texts, cells=60)
    seen = {}
    # The value projection's own output, from a plain run, is the oracle.
    for layer in range(3):
        values, output = _values(name, model.model, layer, texts[0])
        heads = gathered.moved[0, "self", layer].shape[0]
        groups = heads // (values.shape[-1] // (output.shape[1] // heads))
        dim = output.shape[1] // heads
        for head in range(heads):
            own = values[:, (head // groups) * dim : (head // groups + 1) * dim]
            moved = own @ output[:, head * dim : (head + 1) * dim].T
            seen[layer] = moved
            norms = gathered.moved[0, "self", layer][head]
            assert norms == pytest.approx(moved.norm(dim=-1).numpy(), rel=1e-4)
    assert len(seen) == 3


def _values(name, model, layer, text):
    """Each token's value of a layer (token, heads · dim), and the output weight (output, input)."""
    if name == "gpt2":
        attention = model.transformer.h[layer].attn
        module, output = attention.c_attn, attention.c_proj.weight.T
    elif name == "llama":
        attention = model.model.layers[layer].self_attn
        module, output = attention.v_proj, attention.o_proj.weight
    elif name in ("gptj", "gpt_neo"):
        attention = model.transformer.h[layer].attn
        attention = attention if name == "gptj" else attention.attention
        module, output = attention.v_proj, attention.out_proj.weight
    else:
        attention = model.bert.encoder.layer[layer].attention
        module, output = attention.self.value, attention.output.dense.weight
    caught = []
    hook = module.register_forward_hook(lambda module, args, output: caught.append(output[0]))
    with torch.inference_mode():
        model(torch.tensor([text.ids]))
    hook.remove()
    values = caught[0]
    return (values.chunk(3, -1)[2] if name == "gpt2" else values), output


def test_norms_are_refused_where_values_cannot_be_seen():
    with pytest.raises(UnsupportedError, match="choose another view"):
        backend_of(opened("bart")).observe(Gathered(norms=True), texts_of("bart"))


def test_what_can_only_be_read_whole_must_fit(monkeypatch):
    monkeypatch.setattr(observe_torch, "LONG", 2)
    monkeypatch.setattr(observe_torch, "free_memory", lambda device: 1000)
    with pytest.raises(UsageError, match=r"can only be read whole.*shorten the text"):
        backend_of(opened("gemma2")).observe(Gathered(), texts_of("gemma2"))
    with pytest.raises(UsageError, match=r"' read whole takes.*leave out --reduce full"):
        backend_of(opened("llama")).observe(Gathered(), texts_of("llama"), held="full")
    gathered = Gathered()
    backend_of(opened("llama")).observe(gathered, texts_of("llama"))  # blocks need no such room
    assert gathered.rows


@pytest.mark.parametrize("model", [Bundled("float64"), OwnAttention(16, 4, 2, causal=False)])
@pytest.mark.parametrize("cells", [1, 37, 10**6])
def test_the_numpy_models_in_blocks(model, cells):
    text = model.encode("the cat sat on the mat because it was tired of the dog")
    whole = whole_weights(model, text)
    gathered = Gathered(norms=True)
    backend_of(model).observe(gathered, [Input(text)] * 2, cells=cells)
    for layer, weights in whole.items():
        for copy in range(2):
            found = gathered.whole(copy, "self", layer, len(text))
            assert found == pytest.approx(
                weights, abs=1e-6 if weights.dtype == np.float32 else 1e-12
            )
            assert gathered.moved[copy, "self", layer].shape == (model.info.heads, len(text))


SHOWN = (
    *("gpt2", "llama", "mistral", "qwen3", "deepseek_v3", "gpt_neox"),
    *("bert", "albert", "modernbert", "bart"),
)
BEYOND = {
    "gemma2": "not the softmax of scaled",  # a soft cap
    "gpt_oss": "not the softmax of scaled",  # sinks
    "t5": "not the softmax of scaled",  # a bias by distance
    "bloom": "does not show its queries",
    "gpt_neo": "does not show its queries",
}


def weights_of(found):
    """(head, query, key), made by hand: no code is shared with what is tested."""
    made = []
    for head in range(len(found.query)):
        query, key, bias = found.head(head)
        scores = np.einsum("id,jd->ij", query.astype(float), key.astype(float)) * found.scale
        if bias is not None:
            scores = scores + bias
        powers = np.exp(scores - scores.max(1, keepdims=True))
        made.append(powers / powers.sum(1, keepdims=True))
    return np.stack(made)


def handed_over(model, tokens, *layers):
    found = {}
    backend_of(model).observe_queries_keys(
        tokens,
        lambda layer: not layers or layer in layers,
        lambda entry: found.update({entry.layer: entry}),
    )
    return found


def random_model(name):
    both = ARCHITECTURES[name].stack == "both"
    kinds = ("encoder", "decoder", "cross") if both else ("self",)
    info = ModelInfo(name, None, "Some", "float32", 1, 1, 1, 1, "random")
    return TransformersModel(info, small_model(name), None, kinds, None)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [6, 2])
def test_the_own_attention(causal, kv_heads):
    model = OwnAttention(30, 6, kv_heads, causal=causal, seed=3)
    tokens = model.encode(TEXT)
    kept = whole_weights(model, tokens)
    found = handed_over(model, tokens)
    assert list(found) == [0]
    assert found[0].scale == pytest.approx(5**-0.5)
    np.testing.assert_allclose(weights_of(found[0]), kept[0], atol=1e-6)


def test_the_bundled_model():
    """Turned by position already, and only of the layers that are wanted."""
    model = Bundled()
    tokens = model.encode(TEXT)
    kept = whole_weights(model, tokens)
    every = handed_over(model, tokens)
    assert list(every) == list(kept)
    for layer, found in every.items():
        np.testing.assert_allclose(weights_of(found), kept[layer], atol=1e-5)
    one = handed_over(model, tokens, 1)
    assert list(one) == [1]
    np.testing.assert_array_equal(one[1].query, every[1].query)
    assert handed_over(model, tokens, 99) == {}


@pytest.mark.parametrize("name", SHOWN)
def test_a_transformers_model(name):
    inputs = inputs_of(name)
    oracle = eager_attentions(name, **inputs)
    ids = tuple(inputs["input_ids"][0].tolist())
    model = random_model(name)
    before = model.model.config._attn_implementation
    found = handed_over(model, Tokens.bare(ids))
    wanted = {layer: weights for (kind, layer), weights in oracle.items() if kind == model.kinds[0]}
    assert set(found) == set(wanted)
    for layer, entry in found.items():
        np.testing.assert_allclose(weights_of(entry), wanted[layer][0].numpy(), atol=1e-5)
        assert entry.query.shape == (*entry.key.shape[:2], entry.query.shape[2])
    assert model.model.config._attn_implementation == before


@pytest.mark.parametrize(("name", "reason"), BEYOND.items())
def test_what_cannot_be_had_is_refused(name, reason):
    model = random_model(name)
    before = model.model.config._attn_implementation
    with pytest.raises(UnsupportedError, match=reason):
        handed_over(model, Tokens.bare((3, 4, 5, 4, 3)))
    assert model.model.config._attn_implementation == before


def test_scores_without_a_scale_are_refused():
    model = OwnAttention(30, 6, score="additive")
    with pytest.raises(UnsupportedError, match="additive scores, which have no scale"):
        handed_over(model, model.encode(TEXT))


def test_products_and_softmax_by_torch():
    torch.manual_seed(5)
    query, key = torch.randn(3, 7, 5, dtype=torch.float64), torch.randn(3, 11, 5).double()
    bias = torch.zeros(7, 11, dtype=torch.float64)
    bias[:, 8:] = -torch.inf
    scores = products(query.numpy(), key.numpy())
    np.testing.assert_allclose(scores, (query @ key.mT).numpy())
    expected = torch.softmax(0.3 * query @ key.mT + bias, -1)
    np.testing.assert_allclose(softmaxed(scores, 0.3, bias.numpy()), expected.numpy(), atol=1e-12)
