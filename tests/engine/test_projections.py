"""Where heads and values are read: names that a person looked up, Falcon and BLOOM by hand."""

from __future__ import annotations

from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, BloomConfig, FalconConfig

from attnviz.engine import projections
from attnviz.engine.capture import Asked
from attnviz.engine.patchable import patchable_transformers
from attnviz.engine.patching import Pair, Patch, PatchOptions
from attnviz.engine.projections import find_output_projections
from attnviz.engine.scan.on_torch import torch_patching
from attnviz.engine.text_pass import TextReader
from attnviz.errors import UnsupportedError
from attnviz.inspect.prune.store import difference_from_masked
from attnviz.models.prepare import prepared
from attnviz.records import Input

from ..small_models import SPECIAL
from .ablation_loop import PROJECTIONS
from .architectures import ARCHITECTURES, inputs_of, small_model, state_of

_FOUND = (
    *("gpt2", "llama", "gpt_oss", "deepseek_v3", "qwen3_next", "bert", "distilbert", "modernbert"),
    *("t5", "bart", "gptj", "bloom", "falcon", "mpt", "xglm", "albert"),
)
LAYERS, HEADS, WIDTH, ANSWER, FOIL = 3, 4, 24, 5, 8
ONE = ("bloom", "falcon, alibi")
CLEAN, CORRUPT = (1, 5, 6, 7, 8, 4, 5, 2), (1, 5, 9, 7, 8, 10, 5, 2)
NOTHING = {}


def _named(name):
    """The name of each layer's output projection, the axis of its weight that heads lie along."""
    kind, pattern = next(iter(PROJECTIONS[name].items()))
    layers = (0, 1) if kind == "encoder" else tuple(ARCHITECTURES[name].layers)
    return pattern, int(name != "gpt2"), layers


def _model(name):
    return prepared(name, small_model(name), None, torch.device("cpu"))


@pytest.mark.parametrize("name", _FOUND)
def test_each_layer_names_its_projection(name):
    pattern, axis, layers = _named(name)
    model = _model(name)
    before = state_of(model.model)
    found = find_output_projections(model)
    assert {layer: (entry.module, entry.axis) for layer, entry in found.items()} == {
        layer: (pattern.format(layer), axis) for layer in layers
    }
    assert state_of(model.model) == before


class Tuned(nn.Module):
    """An adapter of one's own around a linear layer, which does not say how wide it is."""

    def __init__(self, base):
        super().__init__()
        self.base, self.change = base, nn.Linear(base.in_features, base.out_features)

    def forward(self, x):
        return self.base(x) + self.change(x)


def test_a_wrapper_is_the_projection_if_it_computes_more_than_what_it_wraps():
    whole = small_model("llama")
    attention = whole.model.layers[1].self_attn
    attention.o_proj = Tuned(attention.o_proj)
    plain = whole.model.layers[0].self_attn
    plain.o_proj = nn.Sequential(plain.o_proj, nn.Dropout())
    found = find_output_projections(prepared("llama", whole, None, torch.device("cpu")))
    assert [(one.module, one.plain) for one in found.values()] == [
        ("model.layers.0.self_attn.o_proj.0", True),
        ("model.layers.1.self_attn.o_proj", False),
        ("model.layers.2.self_attn.o_proj", True),
    ]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "bloom", "t5"])
def test_the_difference_is_that_from_the_model_with_its_heads_off(name):
    pattern, axis, layers = _named(name)
    model = _model(name)
    last = layers[-1]
    ids = tuple(inputs_of(name)["input_ids"][0].tolist())
    difference = difference_from_masked(model, [(last, 1)], ids)
    found, allowed = difference(model.model)
    assert found > 100 * allowed >= 1e-3

    emptied = small_model(name)
    weight = emptied.get_submodule(pattern.format(last)).weight
    width = weight.shape[axis] // model.info.heads
    columns = [slice(None), slice(None)]
    columns[axis] = slice(width, 2 * width)
    with torch.no_grad():
        weight[tuple(columns)] = 0
    found, allowed = difference(emptied)
    assert found <= allowed


FALCON = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "ffn_hidden_size": 37,
    "vocab_size": 13,
    "new_decoder_architecture": False,
    **SPECIAL,
}
MADE = {
    "bloom": lambda: BloomConfig(
        hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=13, pad_token_id=0
    ),
    "falcon": lambda: FalconConfig(**FALCON),
    "falcon, values by head": lambda: FalconConfig(**FALCON | {"multi_query": False}),
    "falcon, grouped": lambda: FalconConfig(
        **FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}
    ),
    "falcon, alibi": lambda: FalconConfig(**FALCON | {"multi_query": False, "alibi": True}),
    "falcon, with biases": lambda: FalconConfig(**FALCON | {"bias": True, "parallel_attn": False}),
}
CASES = [(name, "eager") for name in MADE] + [(name, "sdpa") for name in MADE if name not in ONE]
"""transformers has no fused attention for BLOOM, and with ALiBi Falcon's is another function."""


class ByHand(NamedTuple):
    """patterns: (head, query, key) by layer. norms: (head, key) by layer. logits: (token, word)."""

    patterns: dict[int, Tensor]
    norms: dict[int, Tensor]
    logits: Tensor


def made(name, attention="eager", seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(MADE[name](), attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


@torch.no_grad()
def by_hand(name, ids, put=NOTHING):
    """A pass of the eager model; ``put``: patterns (query, key) in place of what softmax gives."""
    model, plain, count, dim = made(name), functional.softmax, len(ids), WIDTH // HEADS
    found = ByHand({}, {}, torch.empty(0))

    def softmax(scores, *args, **kwargs):
        pattern = plain(scores, *args, **kwargs)
        if scores.shape[-2:] == (count, count):
            layer, heads = len(found.patterns), pattern.view(HEADS, count, count)
            found.patterns[layer] = heads.clone()
            for (_, head), other in ((at, other) for at, other in put.items() if at[0] == layer):
                heads[head] = other
        return pattern

    def read(layer, fused):
        """Keep the length of what each token's value writes, by head."""
        config, attention = model.config, model.transformer.h[layer].self_attention
        if config.model_type == "bloom" or not (
            config.multi_query or config.new_decoder_architecture
        ):
            value = fused.view(count, HEADS, 3, dim)[:, :, 2]
        else:
            shared = config.num_kv_heads if config.new_decoder_architecture else 1
            group = fused.view(count, shared, HEADS // shared + 2, dim)[:, :, -1]
            value = group.repeat_interleave(HEADS // shared, 1)
        weight = attention.dense.weight.unflatten(1, (HEADS, dim))
        found.norms[layer] = torch.einsum("khd,ohd->hko", value, weight).norm(dim=-1)

    for layer, block in enumerate(model.transformer.h):
        block.self_attention.query_key_value.register_forward_hook(
            lambda module, args, output, layer=layer: read(layer, output[0])
        )
    with mock.patch.object(functional, "softmax", softmax):
        logits = model(torch.tensor([ids])).logits[0]
    assert len(found.patterns) == LAYERS
    return found._replace(logits=logits)


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_value_norms(name, attention):
    model = made(name, attention)
    reader = TextReader(prepared(name, model, None, torch.device("cpu")))
    asked = Asked(Input.of_ids(CLEAN), "self", None)
    expected = by_hand(name, CLEAN)
    norms = reader.norms(asked)
    assert list(norms) == list(range(LAYERS))
    for layer, moved in norms.items():
        np.testing.assert_allclose(moved, expected.norms[layer].numpy(), rtol=2e-4)
    for layer in reader.read(asked).record.layers:
        expected_pattern = expected.patterns[layer.layer].numpy()
        np.testing.assert_allclose(layer.weights, expected_pattern, atol=2e-5)


@pytest.mark.parametrize(("name", "attention"), CASES[:6])
def test_a_pattern_in_the_place_of_another(name, attention):
    model = made(name, attention)
    pair = Pair(Input.of_ids(CLEAN), Input.of_ids(CORRUPT))
    patching = torch_patching(
        patchable_transformers(model, "self", pair.corrupt, None), [pair], PatchOptions()
    )
    sites = patching.sites("pattern")
    assert len(sites) == LAYERS * HEADS
    together = Patch((sites[1], sites[6]))
    patches = [*(Patch((site,)) for site in sites), together]
    found = np.full(len(patches), np.nan)
    for piece in patching.patch(0, patches, range(len(patches)), ANSWER, FOIL):
        found[list(piece.patches)] = piece.metrics["logit_diff"]
    clean = by_hand(name, CLEAN).patterns

    def expected(patch):
        put = {(site.layer, site.head): clean[site.layer][site.head] for site in patch.sites}
        last = by_hand(name, CORRUPT, put).logits[-1]
        return float(last[ANSWER] - last[FOIL])

    by_loop = np.array([expected(patch) for patch in patches])
    np.testing.assert_allclose(found, by_loop, atol=5e-4)
    assert np.ptp(by_loop) > 0.01
    assert model.config._attn_implementation == attention


def test_alibi_that_two_implementations_read_in_two_ways_is_refused():
    reader = TextReader(
        prepared("falcon", made("falcon, alibi", "sdpa"), None, torch.device("cpu"))
    )
    with pytest.raises(UnsupportedError, match="computes something else while it is observed"):
        reader.read(Asked(Input.of_ids(CLEAN), "self", None))


def test_values_that_are_not_seen_are_refused(monkeypatch):
    monkeypatch.setattr(projections, "_PRODUCTS", set())
    reader = TextReader(prepared("bloom", made("bloom"), None, torch.device("cpu")))
    with pytest.raises(UnsupportedError, match="its values cannot be seen"):
        reader.norms(Asked(Input.of_ids(CLEAN), "self", None))
