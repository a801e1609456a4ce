"""The decoder computes what transformers' Llama computes, made larger what it did."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

import attnviz
from attnviz.attention.checkpoint import llama_stack, open_checkpoint, save_checkpoint
from attnviz.attention.torch_decoder import TorchDecoder, grown
from attnviz.errors import UsageError

from ..small_models import bert_fields, decoder_config

BUNDLED = Path(attnviz.__file__).parent / "data" / "tiny"
PLAIN = {"vocab_size": 31, **bert_fields(24, 19, 29, heads=6, layers=3)}
SHAPES = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "grouped": {"num_key_value_heads": 2},
    "multi-query": {"num_key_value_heads": 1, "rope_parameters": {"rope_theta": 300.0}},
    "wide heads": {"head_dim": 14, "num_key_value_heads": 3, "rms_norm_eps": 1e-3},
    "narrow heads": {"head_dim": 2, "tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2},
}
SMALL = decoder_config(51, 16, 22, (4, 2, 4), context=32, norm_eps=1e-12, initializer_range=0.4)


def random_llama(**changes):
    """Large weights, biases and gains, so that every one of them shows in the output."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**(PLAIN | changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3).add_(1.0 if parameter.ndim == 1 else 0.0)
    return model


@pytest.fixture(params=[*SHAPES, "bundled"])
def directory(request, tmp_path):
    """A checkpoint directory as transformers writes it, and the bundled one."""
    if request.param == "bundled":
        return BUNDLED
    random_llama(**SHAPES[request.param]).save_pretrained(tmp_path)
    return tmp_path


def reference(directory, ids):
    """Logits (batch, token, vocabulary) and weights (batch, head, query, key) a layer."""
    model = LlamaForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        output = model(torch.from_numpy(ids), output_attentions=True)
    return output.logits.numpy(), [weights.numpy() for weights in output.attentions]


def assert_equal_logits(actual, expected):
    """Within 1e-5 of the largest logit: at a size of 20, float32 itself is no finer than 2e-6."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * max(1, abs(expected).max()))


def observed_weights(decoder, ids, wants=lambda layer: True):
    """Return the weights (head, query, key) of each wanted layer over one text."""
    observed = {}

    def observe(layer, start, weights, norms):
        observed[layer] = weights

    decoder.run_rows(ids, max(len(ids), 1), wants, observe)
    return observed


def test_torch_equals_llama(directory):
    checkpoint = open_checkpoint(directory)
    ids = np.random.default_rng(5).integers(0, checkpoint.config.vocabulary, size=(2, 17))
    logits, weights = reference(directory, ids)
    decoder = TorchDecoder.from_llama(checkpoint.config, checkpoint.tensors).eval()
    with torch.no_grad():
        assert_equal_logits(decoder(torch.from_numpy(ids)).numpy(), logits)
        observed = []
        for layer in decoder.layers:
            layer.self_attn.weights_point.register_forward_hook(
                lambda module, args, output: observed.append(output)
            )
        assert_equal_logits(decoder(torch.from_numpy(ids)).numpy(), logits)
    for ours, expected in zip(observed, weights, strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=1e-5)


def test_llama_loads_what_the_torch_decoder_saves(tmp_path):
    torch.manual_seed(1)
    config = decoder_config(31, 24, 7, (6, 3, 10), context=29)
    decoder = TorchDecoder(config).eval()
    save_checkpoint(tmp_path, config, decoder.llama_tensors(), '{"added_tokens": []}')
    ids = np.random.default_rng(2).integers(0, 31, size=(1, 11))
    with torch.no_grad():
        assert_equal_logits(decoder(torch.from_numpy(ids)).numpy(), reference(tmp_path, ids)[0])


class Counted(Mapping[str, NDArray[np.floating]]):
    """Tensors that remember which of them were read."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.read = set()

    def __getitem__(self, name):
        self.read.add(name)
        return self.tensors[name]

    def __iter__(self):
        return iter(self.tensors)

    def __len__(self):
        return len(self.tensors)


@pytest.fixture
def checkpoint(tmp_path):
    random_llama().save_pretrained(tmp_path)
    return open_checkpoint(tmp_path)


def test_a_run_hands_over_wanted_layers_and_stops_after_the_last(checkpoint):
    tensors = Counted(checkpoint.tensors)
    decoder = llama_stack(checkpoint.config, tensors)
    observed = observed_weights(decoder, [4, 2, 4], lambda layer: layer == 1)
    assert list(observed) == [1]
    assert observed[1].shape == (6, 3, 3)
    unread = {"model.norm.weight", "lm_head.weight", "model.layers.1.mlp.up_proj.weight"}
    assert not tensors.read & unread
    assert not any(name.startswith("model.layers.2") for name in tensors.read)


def test_each_tensor_is_read_once(checkpoint):
    tensors = Counted(checkpoint.tensors)
    decoder = llama_stack(checkpoint.config, tensors)
    first = decoder.logits([3, 5])
    tensors.read.clear()
    np.testing.assert_array_equal(decoder.logits([3, 5]), first)
    assert not tensors.read


def test_float64_computes_in_float64(checkpoint):
    ids = [3, 5, 7]
    wide = llama_stack(checkpoint.config, checkpoint.tensors, np.float64).logits(ids)
    narrow = llama_stack(checkpoint.config, checkpoint.tensors).logits(ids)
    assert wide.dtype == np.float64
    assert 0 < abs(wide - narrow).max() < 1e-4


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "at least one token"),
        ([1, 31], "0 to 30"),
        ([-1, 3], "0 to 30"),
        ([1] * 30, "30 tokens.*29"),
    ],
)
def test_numpy_refuses_ids_that_it_cannot_run(checkpoint, ids, message):
    decoder = llama_stack(checkpoint.config, checkpoint.tensors)
    with pytest.raises(UsageError, match=message):
        decoder.logits(ids)
    with pytest.raises(UsageError, match=message):
        observed_weights(decoder, ids)


@pytest.mark.parametrize("tokens", [0, 30])
def test_torch_refuses_as_many_tokens_as_it_cannot_run(checkpoint, tokens):
    with pytest.raises(UsageError, match="29"):
        TorchDecoder(checkpoint.config)(torch.zeros(1, tokens, dtype=torch.long))


def test_torch_refuses_other_tensors(checkpoint):
    tensors = dict(checkpoint.tensors)
    del tensors["model.norm.weight"]
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        TorchDecoder.from_llama(checkpoint.config, tensors)


def test_training_lowers_the_loss_and_keeps_tied_weights_one():
    torch.manual_seed(3)
    biases = {"attention_bias": True, "mlp_bias": True}
    config = decoder_config(
        11, 12, 7, (2, 1, 6), layers=1, tied=True, attention_dropout=0.1, **biases
    )
    decoder = TorchDecoder(config)
    assert set(decoder.llama_tensors()) == set(config.tensor_shapes())
    ids = torch.arange(11).repeat(2, 3)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.03)
    losses = []
    for _ in range(30):
        logits = decoder(ids[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in decoder.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert decoder.lm_head.weight is decoder.embed_tokens.weight


SIZES = [
    {},
    {"layers": 5},
    {"d_model": 28},
    {"head_dim": 8},
    {"head_dim": 12},
    {"d_ff": 23},
    {"layers": 3, "d_model": 32, "head_dim": 8, "d_ff": 40},
]


def decoder(**changes):
    torch.manual_seed(3)
    made = TorchDecoder(replace(SMALL, **changes))
    with torch.no_grad():  # norms and biases too
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def ids():
    return torch.arange(3 * 17).view(3, 17) * 7 % 51


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    "changes", [{}, {"tied": True}, {"attention_bias": True, "mlp_bias": True}]
)
def test_a_grown_decoder_has_the_logits_of_the_small_one(sizes, changes):
    small = decoder(**changes)
    large = grown(small, replace(small.config, **sizes))
    assert large.config == replace(small.config, **sizes)
    torch.testing.assert_close(large(ids()), small(ids()), rtol=1e-4, atol=2e-5)
    assert small(ids()).std() > 0.1


def test_everything_that_is_new_learns():
    small = decoder(tied=True)
    large = grown(small, replace(small.config, layers=3, d_model=32, head_dim=8, d_ff=40))
    before = [parameter.detach().clone() for parameter in large.parameters()]
    optimiser = torch.optim.Adam(large.parameters(), lr=1e-2)
    for _ in range(4):  # what reads only from new dimensions waits until they are written to
        optimiser.zero_grad()
        logits = large(ids())[:, :-1].flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, ids()[:, 1:].flatten()).backward()
        optimiser.step()
    for (name, parameter), old in zip(large.named_parameters(), before, strict=True):
        used = parameter[ids().unique()] if name == "embed_tokens.weight" else parameter
        old = old[ids().unique()] if name == "embed_tokens.weight" else old
        assert (used != old).all(), name


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"layers": 1}, "layers must not shrink, got 2 and then 1"),
        ({"d_model": 12}, "d_model must not shrink, got 16 and then 12"),
        ({"d_ff": 21}, "d_ff must not shrink, got 22 and then 21"),
        ({"head_dim": 6}, "head_dim must grow by a whole factor, got 4 and then 6"),
        ({"kv_heads": 4}, "only layers, d_model, head_dim, d_ff may grow"),
        ({"rope_theta": 5e5}, "only layers, d_model, head_dim, d_ff may grow"),
    ],
)
def test_what_cannot_grow_is_refused(changes, rule):
    with pytest.raises(UsageError, match=rule):
        grown(decoder(), replace(SMALL, **changes))
