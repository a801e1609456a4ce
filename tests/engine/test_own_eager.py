"""Falcon and BLOOM compute attention by themselves: their patterns and values, by hand.

The oracle is a forward pass written from the two modeling files and the model's own tensors. It
shares nothing with the engine, takes another pattern where it is given one, and is itself compared
with the model's logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, BloomConfig, FalconConfig

from attnviz.engine import projections
from attnviz.engine.capture import Asked
from attnviz.engine.observer import Floats
from attnviz.engine.patchable import patchable_transformers
from attnviz.engine.patching import Pair, Patch, PatchOptions, Site
from attnviz.engine.scan.in_torch import torch_patching
from attnviz.engine.text_pass import TextReader
from attnviz.errors import UnsupportedError
from attnviz.models.prepare import prepared
from attnviz.records import Input

from ..conftest import save_tokenizer

LAYERS, HEADS, WIDTH, ANSWER, FOIL = 3, 4, 24, 5, 8
FALCON = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "ffn_hidden_size": 37,
    "vocab_size": 13,
    "new_decoder_architecture": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MADE: dict[str, Callable[[], Any]] = {
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
ONE = ("bloom", "falcon, alibi")
CASES = [(name, "eager") for name in MADE] + [(name, "sdpa") for name in MADE if name not in ONE]
"""transformers has no fused attention for BLOOM, and with ALiBi Falcon's is another function."""

CLEAN, CORRUPT = (1, 5, 6, 7, 8, 4, 5, 2), (1, 5, 9, 7, 8, 10, 5, 2)


class ByHand(NamedTuple):
    """patterns: (head, query, key) by layer. norms: (head, key) by layer. logits: (token, word)."""

    patterns: dict[int, Tensor]
    norms: dict[int, Tensor]
    logits: Tensor


def made(name: str, attention: str = "eager", seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(MADE[name](), attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


@torch.no_grad()
def by_hand(model: Any, ids: tuple[int, ...], put: Mapping[tuple[int, int], Tensor]) -> ByHand:
    """A forward pass in float64; ``put``: patterns (query, key) in place of heads' own."""
    part = {name: tensor.double() for name, tensor in model.state_dict().items()}
    config, dim, count = model.config, WIDTH // HEADS, len(ids)
    bloom = config.model_type == "bloom"

    def linear(name: str, x: Tensor) -> Tensor:
        bias = part.get(f"{name}.bias")
        return x @ part[f"{name}.weight"].T + (0 if bias is None else bias)

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + config.layer_norm_epsilon).sqrt()
        return centred / scale * part[f"{name}.weight"] + part[f"{name}.bias"]

    def split(fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (head, token, dim)."""
        if bloom or not (config.multi_query or config.new_decoder_architecture):
            groups = fused.view(count, HEADS, 3, dim).permute(2, 1, 0, 3)
            return groups[0], groups[1], groups[2]
        shared = config.num_kv_heads if config.new_decoder_architecture else 1
        group = fused.view(count, shared, HEADS // shared + 2, dim)
        heads = group[:, :, :-2].reshape(count, HEADS, dim).transpose(0, 1)
        of_key, of_value = (
            group[:, :, at].repeat_interleave(HEADS // shared, 1).transpose(0, 1) for at in (-2, -1)
        )
        return heads, of_key, of_value

    def rotated(x: Tensor) -> Tensor:
        places = torch.arange(count, dtype=torch.float64)[:, None]
        angles = places / 10000 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        turn = torch.polar(torch.ones_like(angles), angles)
        first, second = x.chunk(2, -1)
        turned = torch.complex(first, second) * turn
        return torch.cat([turned.real, turned.imag], -1)

    def gelu(x: Tensor) -> Tensor:
        return functional.gelu(x, approximate="tanh" if bloom else "none")

    def feed_forward(name: str, x: Tensor) -> Tensor:
        return linear(f"{name}.dense_4h_to_h", gelu(linear(f"{name}.dense_h_to_4h", x)))

    future = torch.ones(count, count, dtype=torch.bool).triu(1)
    slopes = torch.tensor([2.0 ** (-8 * (head + 1) / HEADS) for head in range(HEADS)]).double()
    found = ByHand({}, {}, torch.empty(0))
    x = part["transformer.word_embeddings.weight"][list(ids)]
    if bloom:
        x = norm("transformer.word_embeddings_layernorm", x)
    for layer in range(LAYERS):
        block = f"transformer.h.{layer}"
        two = not bloom and config.new_decoder_architecture
        read = norm(f"{block}.{'ln_attn' if two else 'input_layernorm'}", x)
        query, key, value = split(linear(f"{block}.self_attention.query_key_value", read))
        if not (bloom or config.alibi):
            query, key = rotated(query), rotated(key)
        scores = query @ key.transpose(-1, -2) / math.sqrt(dim)
        if bloom or config.alibi:  # Falcon's eager attention adds it twice: in the mask as well
            by_distance = slopes[:, None, None] * torch.arange(count)
            scores = scores + by_distance * (1 if bloom else 2 / math.sqrt(dim))
        pattern = scores.masked_fill(future, -math.inf).softmax(-1)
        found.patterns[layer] = pattern.clone()
        for (at, head), other in put.items():
            if at == layer:
                pattern[head] = other
        weight = part[f"{block}.self_attention.dense.weight"]
        found.norms[layer] = torch.stack(
            [
                (value[head] @ weight[:, head * dim : (head + 1) * dim].T).norm(dim=-1)
                for head in range(HEADS)
            ]
        )
        merged = (pattern @ value).transpose(0, 1).reshape(count, WIDTH)
        attended = linear(f"{block}.self_attention.dense", merged)
        if two:
            x = x + attended + feed_forward(f"{block}.mlp", norm(f"{block}.ln_mlp", x))
        elif not bloom and config.parallel_attn:
            x = x + attended + feed_forward(f"{block}.mlp", read)
        else:
            x = x + attended
            x = x + feed_forward(f"{block}.mlp", norm(f"{block}.post_attention_layernorm", x))
    words = part["transformer.word_embeddings.weight"]
    return found._replace(logits=norm("transformer.ln_f", x) @ words.T)


@pytest.mark.parametrize("name", MADE)
def test_the_oracle_is_the_model(name: str) -> None:
    model = made(name)
    with torch.no_grad():
        found = model(torch.tensor([CLEAN])).logits[0]
    torch.testing.assert_close(by_hand(model, CLEAN, {}).logits.float(), found, rtol=0, atol=2e-4)


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_value_norms(name: str, attention: str) -> None:
    model = made(name, attention)
    reader = TextReader(prepared(name, model, None, torch.device("cpu")))
    asked = Asked(Input.of_ids(CLEAN), "self", None)
    expected = by_hand(model, CLEAN, {})
    norms: Mapping[int, Floats] = reader.norms(asked)
    assert list(norms) == list(range(LAYERS))
    for layer, moved in norms.items():
        np.testing.assert_allclose(moved, expected.norms[layer].numpy(), rtol=2e-4)
    for layer in reader.read(asked).record.layers:
        expected_pattern = expected.patterns[layer.layer].numpy()
        np.testing.assert_allclose(layer.weights, expected_pattern, atol=2e-5)


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_a_pattern_in_the_place_of_another(name: str, attention: str) -> None:
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
    clean = by_hand(model, CLEAN, {}).patterns

    def expected(patch: Patch) -> float:
        put = {(site.layer, _head(site)): clean[site.layer][_head(site)] for site in patch.sites}
        last = by_hand(model, CORRUPT, put).logits[-1]
        return float(last[ANSWER] - last[FOIL])

    by_loop = np.array([expected(patch) for patch in patches])
    np.testing.assert_allclose(found, by_loop, atol=5e-4)
    assert np.ptp(by_loop) > 0.01
    assert model.config._attn_implementation == attention


def _head(site: Site) -> int:
    assert site.head is not None
    return site.head


def test_alibi_that_two_implementations_read_in_two_ways_is_refused() -> None:
    reader = TextReader(
        prepared("falcon", made("falcon, alibi", "sdpa"), None, torch.device("cpu"))
    )
    with pytest.raises(UnsupportedError, match="computes something else while it is observed"):
        reader.read(Asked(Input.of_ids(CLEAN), "self", None))


def test_values_that_are_not_seen_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projections, "_PRODUCTS", set())
    reader = TextReader(prepared("bloom", made("bloom"), None, torch.device("cpu")))
    with pytest.raises(UnsupportedError, match="its values cannot be seen"):
        reader.norms(Asked(Input.of_ids(CLEAN), "self", None))


def test_the_commands(run: Any, tmp_path: Path) -> None:
    made("falcon", "sdpa").save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    model = ("--model", str(tmp_path))
    shown = run("heads", "the cat sat on the mat", *model, "--norm-weighted", "--json")
    assert shown.code == 0, shown.err
    assert shown.document["norm_weighted"] is True
    scored = run("patterns", *model, "--norm-weighted", "--json")
    assert scored.code == 0, scored.err
    texts = ("the cat sat on", "the mat sat on")
    patched = run("patch", *texts, *model, "--what", "pattern", "--json")
    assert patched.code == 0, patched.err
