"""The cache, by hand and against what the library really keeps after a forward pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import transformers

from attnviz.count.params.config.read import spec_from_config
from attnviz.count.params.counting.cache import CacheCount, Lengths, count_cache
from attnviz.count.params.specs import AttentionSpec, LayerGroup, LayerSpec, ModelSpec, StackSpec

from ..small_configs import T5

TOKENS, SOURCE, BATCH = 13, 7, 3


def cache(
    *attentions: AttentionSpec, tokens: int, batch: int = 1, dtype: str = "bfloat16"
) -> CacheCount:
    groups = tuple(LayerGroup(LayerSpec((attention,)), 1) for attention in attentions)
    spec = ModelSpec("test", "", (StackSpec("decoder", groups),))
    return count_cache(spec, Lengths(tokens, SOURCE), batch=batch, dtype=dtype)


def test_grouped_heads_keep_their_groups() -> None:
    grouped = AttentionSpec(12, 6, 2, 2, 3)
    count = cache(grouped, grouped, tokens=5, batch=7)
    assert count.values_per_token == 2 * 2 * (2 + 3)
    assert count.bytes_per_token == count.bytes_per_token_late == 40
    assert count.bytes == 5 * 7 * 40
    assert len(count.lines) == 1
    assert count.lines[0].formula == "2 × 10 × 5 = 100"


@pytest.mark.parametrize(("tokens", "held"), [(3, 3), (4, 4), (5, 4), (100, 4)])
def test_a_sliding_layer_keeps_its_window(tokens: int, held: int) -> None:
    sliding = AttentionSpec(8, 2, 1, 4, 4, window=4)
    full = AttentionSpec(8, 2, 1, 4, 4)
    count = cache(sliding, full, tokens=tokens, dtype="int8")
    assert count.bytes == 8 * held + 8 * tokens
    assert (count.bytes_per_token, count.bytes_per_token_late) == (16, 8)


def test_linear_attention_keeps_a_state_that_does_not_grow() -> None:
    linear = AttentionSpec(8, 2, 2, 4, 3, linear=True)
    short, long = (cache(linear, tokens=tokens, dtype="float32") for tokens in (1, 10**9))
    assert short.bytes == long.bytes == short.constant_bytes == 2 * 4 * 3 * 4
    assert short.bytes_per_token == 0


def test_half_bytes_are_rounded_only_at_the_end() -> None:
    odd = AttentionSpec(3, 1, 1, 1, 2)
    assert cache(odd, tokens=1, dtype="int4").bytes == 2
    assert cache(odd, tokens=2, dtype="int4").bytes == 3
    assert cache(odd, tokens=10**30, batch=3, dtype="int4").bytes == 45 * 10**29


def test_an_encoder_keeps_nothing() -> None:
    group = LayerGroup(LayerSpec((AttentionSpec(4, 2, 2, 2, 2),)), 3)
    spec = ModelSpec("test", "", (StackSpec("encoder", (group,), causal=False),))
    count = count_cache(spec, Lengths(5, 5), batch=1, dtype="float16")
    assert (count.bytes, count.bytes_per_token, count.lines) == (0, 0, ())


def test_the_library_keeps_as_many_bytes_of_two_towers() -> None:
    """Of one tower ``config/test_every_config.py`` compares what the library keeps."""
    torch.manual_seed(3)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)).eval()
    read, written = (torch.randint(0, 29, (BATCH, length)) for length in (SOURCE, TOKENS))
    with torch.no_grad():
        past = model(input_ids=read, decoder_input_ids=written, use_cache=True).past_key_values

    def kept(layers: Iterable[Any]) -> int:
        tensors = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    classes = ["T5ForConditionalGeneration"]
    spec = spec_from_config({"model_type": "t5", "architectures": classes, **T5})
    assert spec is not None
    count = count_cache(spec, Lengths(TOKENS, SOURCE), batch=BATCH, dtype="float32")
    assert count.cross_bytes == kept(past.cross_attention_cache.layers)
    assert count.bytes - count.cross_bytes == kept(past.self_attention_cache.layers)
