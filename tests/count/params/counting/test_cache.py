"""The cache, what fits and what maps take: by hand, at the border, and as the library keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from attnviz.count.params.config.read import spec_from_config
from attnviz.count.params.counting.cache import (
    BITS,
    CacheCount,
    Lengths,
    bits,
    byte_count,
    count_cache,
    lengths,
)
from attnviz.count.params.counting.cost import DEFAULT_TOKENS, count_cost, longest_context
from attnviz.count.params.specs import AttentionSpec, LayerGroup, LayerSpec, ModelSpec, StackSpec
from attnviz.errors import UsageError

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


PLAIN = AttentionSpec(8, 2, 2, 4, 4)  # 256 weights, 16 numbers a token
SLIDING = AttentionSpec(8, 2, 2, 4, 4, window=10)
LINEAR = AttentionSpec(8, 2, 2, 4, 4, linear=True)
CROSS = AttentionSpec(8, 2, 2, 4, 4, cross=True)


def spec(*attentions: AttentionSpec, limit: int | None = None) -> ModelSpec:
    groups = tuple(LayerGroup(LayerSpec((attention,)), 1) for attention in attentions)
    return ModelSpec("test", "", (StackSpec("decoder", groups, max_positions=limit),))


def test_names_of_dtypes() -> None:
    assert set(BITS) == {"float32", "float16", "bfloat16", "float8", "int8", "int4"}
    assert bits("torch.bfloat16") == bits("bf16") == 16
    assert bits("float64") == 64
    with pytest.raises(UsageError, match="no dtype 'float17': use one of float32, float16"):
        bits("float17")


@given(st.integers(0, 10**60))
def test_bytes_are_never_rounded_through_floats(numbers: int) -> None:
    assert byte_count(numbers, "float32") == 4 * numbers
    assert 2 * byte_count(numbers, "int4") - numbers in (0, 1)


def test_the_longest_context_is_the_last_that_fits() -> None:
    weights = 512
    fit = longest_context(count_cost(spec(PLAIN)), weights + 32 * 10 + 31)
    assert (fit.tokens, fit.binds, fit.weights, fit.cache, fit.left) == (10, "memory", 512, 320, 31)
    assert longest_context(count_cost(spec(PLAIN)), weights + 32 * 11).tokens == 11


@given(
    st.integers(257, 10**15),
    st.integers(1, 9),
    st.sampled_from(sorted(BITS)),
    st.sampled_from([(PLAIN,), (PLAIN, SLIDING), (PLAIN, LINEAR), (PLAIN, PLAIN, CROSS)]),
)
def test_one_token_more_would_not_fit(
    memory: int, batch: int, dtype: str, attentions: tuple[AttentionSpec, ...]
) -> None:
    shape = spec(*attentions)
    fit = longest_context(count_cost(shape, batch=batch, dtype=dtype), memory)
    if fit.binds == "weights":
        assert fit.left < 0
        assert fit.weights > memory
        return
    assert fit.tokens is not None

    def cache(tokens: int) -> int:
        return count_cache(shape, lengths(shape, tokens), batch=batch, dtype=dtype).bytes

    if fit.tokens:
        assert cache(fit.tokens) == fit.cache <= memory - fit.weights
    assert cache(fit.tokens + 1) > memory - fit.weights


def test_weights_or_positions_may_end_before_the_memory() -> None:
    fit = longest_context(count_cost(spec(PLAIN)), 511)
    assert (fit.tokens, fit.binds, fit.left) == (0, "weights", -1)
    full = longest_context(count_cost(spec(PLAIN)), 512)
    assert (full.tokens, full.binds, full.left) == (0, "memory", 0)
    fit = longest_context(count_cost(spec(PLAIN, limit=7)), 10**6)
    assert (fit.tokens, fit.binds, fit.cache) == (7, "positions", 224)
    assert fit.by_memory == (10**6 - 512) // 32


@pytest.mark.parametrize("attention", [SLIDING, LINEAR])
def test_a_cache_that_stops_growing_ends_nothing(attention: AttentionSpec) -> None:
    fit = longest_context(count_cost(spec(attention)), 10**6)
    assert (fit.tokens, fit.binds, fit.by_memory) == (None, "nothing", None)
    assert fit.cache == (320 if attention is SLIDING else 64)
    limited = longest_context(count_cost(spec(attention, limit=5)), 10**6)
    assert (limited.tokens, limited.binds) == (5, "positions")


def test_maps_that_are_kept() -> None:
    maps = count_cost(spec(PLAIN, SLIDING, LINEAR), tokens=11, batch=3, dtype="float32").maps
    assert maps.maps == 4  # linear attention has none
    assert maps.values == 3 * 4 * 11**2
    assert maps.bytes == 4 * maps.values
    for stored in ("int4", "float8", "bfloat16"):  # of the weights; a softmax gives 16 bits or more
        few = count_cost(spec(PLAIN, SLIDING, LINEAR), tokens=11, batch=3, dtype=stored).maps
        assert (few.bits, few.bytes) == (16, 2 * maps.values)
    crossed = count_cost(spec(CROSS), tokens=11, source_tokens=5).maps
    assert crossed.values == 2 * 11 * 5


def test_lengths_of_two_towers() -> None:
    groups = (LayerGroup(LayerSpec((PLAIN,)), 1),)
    read = StackSpec("encoder", groups, causal=False, reads="source")
    written = StackSpec("decoder", groups)
    heard = StackSpec("encoder", groups, causal=False, reads="source", tokens=1500)
    free, fixed = ModelSpec("a", "", (read, written)), ModelSpec("b", "", (heard, written))
    assert lengths(free, 5).source == 5
    assert lengths(free, 5, 9).source == 9
    assert lengths(fixed, 5).source == lengths(fixed, 5, 9).source == 1500
    assert lengths(fixed, 5).of(heard) == 1500
    assert lengths(free, 5, 9).of(written) == 5


def test_what_is_counted_unless_asked() -> None:
    assert count_cost(spec(PLAIN)).tokens == DEFAULT_TOKENS == 2048
    assert count_cost(spec(PLAIN, limit=77)).tokens == 77
    assert count_cost(spec(PLAIN, limit=10**6)).tokens == 2048
    count = count_cost(spec(PLAIN), tokens=1, dtype="float32", cache_dtype="int8")
    assert (count.weight_bytes, count.cache.bytes, count.cache_dtype) == (1024, 16, "int8")
