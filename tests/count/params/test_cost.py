"""The cache, a pass, what fits and what maps take: by hand, at the border, against the library."""

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnviz.count.params.cache import BITS, Lengths, bits, byte_count
from attnviz.count.params.cost import DEFAULT_TOKENS, count_cost, longest_context
from attnviz.count.params.find_spec import spec_from_config
from attnviz.count.params.specs import AttentionSpec, LayerGroup, LayerSpec, ModelSpec, StackSpec
from attnviz.errors import UsageError

from .small_configs import BERT, DECODER, GPT, LATENT, ROUTED, T5, VIT, WHISPER, WIDE

TOKENS, SOURCE, BATCH = 13, 7, 2
PLAIN = AttentionSpec(8, 2, 2, 4, 4)  # 256 weights, 16 numbers a token
SLIDING = PLAIN._replace(window=10)
LINEAR = PLAIN._replace(linear=True)
CROSS = PLAIN._replace(cross=True)
SHARED = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 13}


def spec(*attentions, layers=1, **more):
    groups = tuple(LayerGroup(LayerSpec((attention,)), layers) for attention in attentions)
    return ModelSpec("test", "", (StackSpec("decoder", groups, **more),))


def cache(*attentions, tokens, **more):
    return count_cost(spec(*attentions), tokens=tokens, **more).cache


@pytest.mark.parametrize(("tokens", "held"), [(9, 9), (10, 10), (11, 10), (100, 10)])
def test_a_sliding_layer_keeps_its_window(tokens, held):
    count = cache(SLIDING, PLAIN, tokens=tokens, dtype="int8")
    assert count.bytes == 16 * held + 16 * tokens
    assert (count.bytes_per_token, count.bytes_per_token_late) == (32, 16)


def test_linear_attention_keeps_a_state_that_does_not_grow():
    linear = AttentionSpec(8, 2, 2, 4, 3, linear=True)
    short, long = (cache(linear, tokens=tokens, dtype="float32") for tokens in (1, 10**9))
    assert short.bytes == long.bytes == short.constant_bytes == 2 * 4 * 3 * 4
    assert short.bytes_per_token == 0
    short, long = (count_cost(spec(LINEAR), tokens=tokens).flops for tokens in (10, 20))
    assert short.attention_scores == 4 * 10 * 2 * 16
    assert long.attention_scores == 2 * short.attention_scores


def test_the_library_keeps_as_many_bytes_of_two_towers():
    """Of one tower ``test_families.py`` compares what the library keeps."""
    torch.manual_seed(3)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)).eval()
    read, written = (torch.randint(0, 29, (BATCH, length)) for length in (SOURCE, TOKENS))
    with torch.no_grad():
        past = model(input_ids=read, decoder_input_ids=written, use_cache=True).past_key_values

    def kept(layers):
        tensors = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    count = counted("t5", "T5ForConditionalGeneration", T5, dtype="float32").cache
    assert count.cross_bytes == kept(past.cross_attention_cache.layers)
    assert count.bytes - count.cross_bytes == kept(past.self_attention_cache.layers)


def test_names_of_dtypes():
    assert set(BITS) == {"float32", "float16", "bfloat16", "float8", "int8", "int4"}
    assert bits("torch.bfloat16") == bits("bf16") == 16
    assert bits("float64") == 64
    with pytest.raises(UsageError, match="no dtype 'float17': use one of float32, float16"):
        bits("float17")


@given(st.integers(0, 10**60))
def test_bytes_are_never_rounded_through_floats(numbers):
    assert byte_count(numbers, "float32") == 4 * numbers
    assert 2 * byte_count(numbers, "int4") - numbers in (0, 1)


def test_the_longest_context_is_the_last_that_fits():
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
def test_one_token_more_would_not_fit(memory, batch, dtype, attentions):
    cost = count_cost(spec(*attentions), batch=batch, dtype=dtype)
    fit = longest_context(cost, memory)
    if fit.binds == "weights":
        assert fit.left < 0
        assert fit.weights > memory
        return
    assert fit.tokens is not None
    if fit.tokens:
        assert cost.cache_at(fit.tokens).bytes == fit.cache <= memory - fit.weights
    assert cost.cache_at(fit.tokens + 1).bytes > memory - fit.weights


def test_weights_or_positions_may_end_before_the_memory():
    fit = longest_context(count_cost(spec(PLAIN)), 511)
    assert (fit.tokens, fit.binds, fit.left) == (0, "weights", -1)
    full = longest_context(count_cost(spec(PLAIN)), 512)
    assert (full.tokens, full.binds, full.left) == (0, "memory", 0)
    fit = longest_context(count_cost(spec(PLAIN, max_positions=7)), 10**6)
    assert (fit.tokens, fit.binds, fit.cache) == (7, "positions", 224)
    assert fit.by_memory == (10**6 - 512) // 32


@pytest.mark.parametrize("attention", [SLIDING, LINEAR])
def test_a_cache_that_stops_growing_ends_nothing(attention):
    fit = longest_context(count_cost(spec(attention)), 10**6)
    assert (fit.tokens, fit.binds, fit.by_memory) == (None, "nothing", None)
    assert fit.cache == (320 if attention is SLIDING else 64)
    limited = longest_context(count_cost(spec(attention, max_positions=5)), 10**6)
    assert (limited.tokens, limited.binds) == (5, "positions")


def test_maps_that_are_kept():
    three = spec(PLAIN, SLIDING, LINEAR)
    maps = count_cost(three, tokens=11, batch=3, dtype="float32").maps
    assert (maps.maps, maps.values) == (4, 3 * 4 * 11**2)  # linear attention has none
    assert maps.bytes == 4 * maps.values
    for stored in ("int4", "float8", "bfloat16"):  # of the weights; a softmax gives 16 bits or more
        few = count_cost(three, tokens=11, batch=3, dtype=stored).maps
        assert (few.bits, few.bytes) == (16, 2 * maps.values)
    assert count_cost(spec(CROSS), tokens=11, source_tokens=5).maps.values == 2 * 11 * 5


def test_lengths_of_two_towers():
    written = spec(PLAIN).main
    read = written._replace(name="encoder", causal=False, reads="source")
    heard = read._replace(tokens=1500)
    free, fixed = ModelSpec("a", "", (read, written)), ModelSpec("b", "", (heard, written))
    assert [Lengths.for_model(free, 5, given).source for given in (None, 9)] == [5, 9]
    assert [Lengths.for_model(fixed, 5, given).source for given in (None, 9)] == [1500, 1500]
    assert Lengths.for_model(fixed, 5).of(heard) == 1500
    assert Lengths.for_model(free, 5, 9).of(written) == 5


def test_what_is_counted_unless_asked():
    limits = {None: DEFAULT_TOKENS, 77: 77, 10**6: 2048}
    for limit, tokens in limits.items():
        assert count_cost(spec(PLAIN, max_positions=limit)).tokens == tokens
    count = count_cost(spec(PLAIN), tokens=1, dtype="float32", cache_dtype="int8")
    assert (count.weight_bytes, count.cache.bytes, count.cache_dtype) == (1024, 16, "int8")


def test_pairs_that_are_seen():
    flops = count_cost(spec(SLIDING), tokens=16).flops
    pairs = (16**2 - 6**2) / 2  # the triangle, less the triangle that slid out of sight
    assert flops.attention_scores_visible == int(4 * 8 * pairs)
    assert flops.scores_per_token == 4 * 10 * 8
    short = count_cost(spec(SLIDING), tokens=10).flops
    assert short.attention_scores_visible == short.attention_scores // 2
    flops = count_cost(spec(PLAIN, causal=False), tokens=11).flops
    assert flops.attention_scores_visible == flops.attention_scores


def test_absurd_lengths_stay_exact():
    n = 10**25 + 1
    assert count_cost(spec(PLAIN), tokens=n).flops.attention_scores == 4 * n * n * 8


SHARED["shared_expert_intermediate_size"] = 19
CASES = [
    ("llama", "LlamaForCausalLM", WIDE),
    ("mistral", "MistralForCausalLM", dict(DECODER, sliding_window=5)),
    ("mixtral", "MixtralForCausalLM", dict(DECODER, num_local_experts=5)),
    ("qwen2_moe", "Qwen2MoeForCausalLM", dict(DECODER, **SHARED)),
    (
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        dict(DECODER, **ROUTED, **LATENT, num_key_value_heads=6),
    ),
    ("gpt2", "GPT2LMHeadModel", GPT),
    ("bert", "BertForMaskedLM", BERT),
    ("bert", "BertModel", BERT),
    ("albert", "AlbertForMaskedLM", dict(BERT, embedding_size=7)),
    ("t5", "T5ForConditionalGeneration", T5),
    ("whisper", "WhisperForConditionalGeneration", WHISPER),
    ("vit", "ViTModel", VIT),
]


def inputs(kind):
    written = torch.randint(0, 29, (BATCH, TOKENS))
    match kind:
        case "vit":
            return {"pixel_values": torch.randn(BATCH, 2, 21, 21)}
        case "whisper":
            return {"input_features": torch.randn(BATCH, 7, 82), "decoder_input_ids": written}
        case "t5":
            read = torch.randint(0, 29, (BATCH, SOURCE))
            return {"input_ids": read, "decoder_input_ids": written}
    return {"input_ids": written}


def counted(kind, name, fields, **more):
    made = spec_from_config({"model_type": kind, "architectures": [name], **fields})
    return count_cost(made, tokens=TOKENS, source_tokens=SOURCE, batch=BATCH, **more)


@pytest.mark.parametrize(("kind", "name", "fields"), CASES)
def test_torch_counts_the_same(kind, name, fields):
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(kind, **fields)
    config._experts_implementation = "eager"
    model = getattr(transformers, name)._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs(kind))
    assert counted(kind, name, fields).flops.total == counter.get_total_flops()
