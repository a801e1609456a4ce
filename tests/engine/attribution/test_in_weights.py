"""What stands in the weights alone: against other implementations, and the models' own weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnviz.engine.attribution.in_weights import (
    APART,
    by_offset,
    first_scores,
    found_again,
    read_stack,
)
from attnviz.errors import UnsupportedError
from attnviz.models.bundled import Bundled

from ...attention.test_families import made, stack
from ..stacks import both

DECODERS = ["gpt2", "llama, biases", "qwen3", "neox", "gpt-neo", "mistral, yarn"]


@pytest.fixture(scope="module")
def sample() -> list[int]:
    """Return the tokens on which the expected values were measured by a prototype in float64."""
    order = torch.randperm(4096, generator=torch.Generator().manual_seed(0))
    return order[:512].tolist()


def test_the_bundled_models_heads_of_layer_0(sample: list[int]) -> None:
    means, explained = by_offset(first_scores(Bundled().stack, sample[:256]))
    assert means[0, :4] == pytest.approx([3.1, 6.67, 2.6, -5.9], abs=0.02)
    assert explained[0] == pytest.approx(0.97, abs=0.005)
    assert ((explained[1:] > 0.115) & (explained[1:] < 0.335)).all()


def test_the_bundled_models_induction_heads(sample: list[int]) -> None:
    found = found_again(Bundled().stack, 0, sample)
    assert found.shape == (4, 5, 4)
    assert found[0, 0] == pytest.approx([0.930, 0.080, 0.943, 0.789], abs=6e-4)
    assert found[[1, 3], 0].max() < 0.0025
    assert found[2, 0] == pytest.approx([0.051, 0.010, 0.043, 0.039], abs=6e-4)
    assert found[:, 1:].max() < 0.01


@pytest.mark.parametrize("name", DECODERS)
def test_scores_of_layer_0_give_the_models_own_weights(name: str, tmp_path: Path) -> None:
    model, (ours, _) = made(tmp_path, name), stack(tmp_path)
    ids = [5, 7, 11, 90, 13, 17, 2, 3, 44, 45, 8, 100, 61, 62, 63, 64]
    count = first_scores(ours, ids[:1]).shape[1]
    ids = ids[:count]
    scores = first_scores(ours, ids)
    row = np.stack([scores[:, count - 1 - key, count - 1, key] for key in range(count)], axis=-1)
    with torch.no_grad():
        weights = model(torch.tensor([ids]), output_attentions=True).attentions[0][0, :, -1]
    assert torch.tensor(row).softmax(-1).numpy() == pytest.approx(weights.numpy(), abs=2e-6)
    assert row.std(-1).min() > 0.01


def test_variance_by_offset_is_that_of_loops() -> None:
    scores = np.random.default_rng(3).normal(size=(2, 5, 3, 7)) + np.arange(5)[:, None, None]
    means, explained = by_offset(scores)
    for head in range(2):
        groups = [[float(x) for x in scores[head, offset].flat] for offset in range(5)]
        averages = [sum(group) / len(group) for group in groups]
        middle = sum(averages) / 5
        between = sum((average - middle) ** 2 for average in averages) / 5
        every = [x for group in groups for x in group]
        whole = sum((x - middle) ** 2 for x in every) / len(every)
        assert means[head] == pytest.approx(averages)
        assert explained[head] == pytest.approx(between / whole)
    assert by_offset(np.ones((1, 2, 3, 3)))[1] == 0


def _turned(vector: Any, place: int, base: float, dims: int) -> Any:
    """Return a query or key at a place, each pair of dimensions turned as complex numbers are."""
    half = dims // 2
    angle = place * base ** (-torch.arange(half, dtype=torch.float64) / half)
    pairs = torch.complex(vector[..., :half], vector[..., half:dims]) * torch.exp(1j * angle)
    return torch.cat([pairs.real, pairs.imag, vector[..., dims:]], -1)


def _by_hand(model: Any, name: str, tokens: list[int], layer: int, earlier: int) -> Any:
    """Return which tokens each head of layer + 1 finds by what a head wrote, from the modules."""
    config, gpt = model.config, name == "gpt2"
    heads = config.num_attention_heads
    blocks = model.transformer.h if gpt else model.model.layers
    first, second = blocks[layer], blocks[layer + 1]
    x = model.get_input_embeddings().weight[tokens].double()
    if gpt:
        centred = x - x.mean(-1, keepdim=True)
        spread = (centred.square().mean(-1, keepdim=True) + config.layer_norm_epsilon).sqrt()
        dim = config.n_embd // heads
        value, key, query = (
            block.attn.c_attn.weight.double().split(config.n_embd, 1)[at]
            for block, at in ((first, 2), (second, 1), (second, 0))
        )
        read = centred / spread * first.ln_1.weight
        rows = slice(earlier * dim, (earlier + 1) * dim)
        write = read @ value[:, rows] @ first.attn.c_proj.weight.double()[rows]
        write = (write - write.mean(-1, keepdim=True)) * second.ln_1.weight
        asked = centred * second.ln_1.weight
        places = [slice(head * dim, (head + 1) * dim) for head in range(heads)]
        return [asked @ query[:, at] @ (write @ key[:, at]).T for at in places]
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    groups = heads // config.num_key_value_heads
    spread = (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt()
    attention, then = first.self_attn, second.self_attn
    own = earlier // groups * dim
    values = x / spread * first.input_layernorm.weight @ attention.v_proj.weight.double().T
    output = attention.o_proj.weight.double()[:, earlier * dim : (earlier + 1) * dim]
    write = values[:, own : own + dim] @ output.T * second.input_layernorm.weight
    found = []
    for head in range(heads):
        shared = head // groups * dim
        query = x * second.input_layernorm.weight @ then.q_proj.weight.double().T
        query = query[:, head * dim : (head + 1) * dim]
        key = (write @ then.k_proj.weight.double().T)[:, shared : shared + dim]
        if name == "qwen3":
            query, key = query * then.q_norm.weight, key * then.k_norm.weight
        base = config.rope_parameters["rope_theta"]
        found.append(_turned(query, APART, base, dim) @ key.T)
    return found


@pytest.mark.parametrize("name", ["gpt2", "llama, biases", "qwen3"])
def test_found_tokens_are_those_of_the_modules_in_float64(name: str, tmp_path: Path) -> None:
    model, (ours, _) = made(tmp_path, name), stack(tmp_path)
    tokens = list(range(3, 40))
    layer = ours.shape.layers - 2
    found = found_again(ours, layer, tokens)
    assert found.shape == (ours.shape.heads, 1, ours.shape.heads)
    with torch.no_grad():
        for earlier in range(ours.shape.heads):
            for head, scores in enumerate(_by_hand(model, name, tokens, layer, earlier)):
                best = (scores.argmax(-1) == torch.arange(len(tokens))).double().mean()
                assert found[earlier, 0, head] == pytest.approx(float(best))
    assert found.max() > 0


def test_a_token_that_another_equals_is_not_found() -> None:
    assert found_again(Bundled().stack, 0, [300, 300, 301]).max() <= 1 / 3


def test_encoders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no decoder with norms in front"):
        read_stack(both("bert", tmp_path).numpy)
