"""Queries and keys as they are handed over make the weights that the model itself reports."""

import numpy as np
import pytest
import torch

from attnviz.engine.backend import backend_of
from attnviz.engine.observer import products, softmaxed
from attnviz.errors import UnsupportedError
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import ModelInfo, Tokens

from ..small_models import whole_weights
from .architectures import ARCHITECTURES, eager_attentions, inputs_of, small_model

TEXT = "The cat sat on the mat because the cat was tired."
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
