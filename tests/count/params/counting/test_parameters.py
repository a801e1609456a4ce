"""The parameters of an attention, of a feed-forward part and of a whole model: what adds up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from attnviz.count.params import specs
from attnviz.count.params.counting.parameters import (
    count_attention,
    count_feed_forward,
    count_parameters,
)
from attnviz.count.params.specs import (
    AttentionSpec,
    Dense,
    ExpertsSpec,
    FeedForwardSpec,
    LatentSpec,
    Norm,
)

SIZES = st.integers(1, 10**12)


def attention(d_model: int, heads: int, **more: object) -> AttentionSpec:
    dim = d_model // heads
    plain = AttentionSpec(d_model, heads, heads, dim, dim)
    return plain._replace(**more)  # type: ignore[arg-type]  # the fields of the dataclass


BIASED = {"query_bias": True, "key_bias": True, "value_bias": True, "output_bias": True}


def test_the_textbook_layer() -> None:
    count = count_attention(attention(4096, 32))
    assert {term.number for term in count.terms} == {16_777_216}
    assert count.of() == 67_108_864
    assert count.of("bias") == 0
    assert (count.per_head.query, count.per_head.key, count.per_head.value) == (524_288,) * 3
    assert count.per_head.output == 524_288


def test_latent_attention_of_deepseek_v3() -> None:
    latent = LatentSpec(kv_lora=512, rope_dim=64, nope_dim=128, q_lora=1536)
    norms = (Norm("query norm", 1536), Norm("key and value norm", 512))
    count = count_attention(AttentionSpec(7168, 128, 128, 192, 128, latent=latent, parts=norms))
    assert count.of("query") == 7168 * 1536 + 1536 * 128 * 192
    assert count.of("latent") == 7168 * (512 + 64)
    assert count.of("key") == 512 * 128 * 128
    assert count.of("value") == 512 * 128 * 128
    assert count.of("output") == 128 * 128 * 7168
    assert count.of("norm") == 1536 + 512
    assert count.of() == 187_107_328
    assert count.per_head.query == 1536 * 192  # the way down is shared


@given(SIZES, SIZES, st.integers(1, 99), SIZES, SIZES, st.booleans(), st.booleans())
def test_the_formula_of_the_definitions(
    d: int, groups: int, share: int, dim: int, value: int, bias: bool, output_bias: bool
) -> None:
    heads = groups * share
    count = count_attention(
        AttentionSpec(d, heads, groups, dim, value, bias, bias, bias, output_bias)
    )
    weights = d * heads * dim + d * groups * (dim + value) + heads * value * d
    biases = bias * (heads * dim + groups * (dim + value)) + output_bias * d
    assert count.of() == weights + biases
    assert count.of("bias") == biases
    assert sum(term.number for term in count.terms) == count.of()


@given(SIZES, st.integers(1, 50), SIZES)
def test_each_line_shows_its_own_arithmetic(d: int, heads: int, dim: int) -> None:
    count = count_attention(AttentionSpec(d, heads, heads, dim, dim, **BIASED))
    for term in count.terms:
        factors, _, result = term.formula.rpartition(" = ")
        numbers = [int(factor) for factor in factors.split(" × ")] if factors else [term.number]
        product = 1
        for number in numbers:
            product *= number
        assert product == term.number == int(result.replace(",", ""))
    assert count.terms[0].formula == f"{d} × {heads * dim} = {d * heads * dim:,}"


@given(SIZES, SIZES, st.booleans(), st.booleans(), st.booleans())
def test_plain_and_gated(d: int, f: int, gated: bool, up_bias: bool, down_bias: bool) -> None:
    count = count_feed_forward(FeedForwardSpec(d, f, gated, up_bias, down_bias))
    biases = up_bias * f * (1 + gated) + down_bias * d
    assert count.of("bias") == biases
    assert count.of() == (2 + gated) * d * f + biases
    assert count.of() == sum(term.number for term in count.terms)


def test_a_mixture_counts_all_experts_and_one_token_passes_some() -> None:
    expert = FeedForwardSpec(7, 11, gated=True)
    shared = FeedForwardSpec(7, 13, gated=True)
    gate = Dense("shared expert gate", 7, 1)
    count = count_feed_forward(
        ExpertsSpec(expert, 5, 2, shared=shared, router_bias=True, parts=(gate,))
    )
    assert count.per_expert == 3 * 7 * 11 == 231
    assert count.of("router") == 35
    assert count.of("bias") == 5  # the router's
    assert count.shared == 3 * 7 * 13 == 273
    assert count.of("other") == 7
    assert count.of() == 5 * 231 + 35 + 5 + 273 + 7
    assert count.idle == 3 * 231


ATTENTION = specs.AttentionSpec(6, 2, 2, 3, 3)  # 144
PLAIN = specs.LayerSpec(
    (ATTENTION,), specs.FeedForwardSpec(6, 5), (specs.Norm("attention norm", 6),)
)  # 210


def spec(*groups: specs.LayerGroup, **more: object) -> specs.ModelSpec:
    stack = specs.StackSpec("decoder", groups, **more)  # type: ignore[arg-type]
    return specs.ModelSpec("test", "", (stack,))


def test_shares_add_up() -> None:
    whole = spec(
        specs.LayerGroup(PLAIN, 3),
        embeddings=(
            specs.LookupTable("token embedding", 11, 6),
            specs.Dense("patches", 4, 6, bias=True),
        ),
        norms=(specs.Norm("final norm", 6, shift=True),),
        parts=(specs.Dense("pooler", 6, 6, bias=True),),
        head=specs.Dense("head", 6, 11),
    )
    count = count_parameters(whole)
    shares = count.shares
    assert (shares.attention, shares.feed_forward) == (3 * 144, 3 * 60)
    assert (shares.embedding, shares.norm, shares.head, shares.other) == (66 + 30, 18 + 12, 66, 42)
    assert count.total == shares.total == 630 + 96 + 12 + 66 + 42


def test_what_is_used_again_is_stored_once() -> None:
    tied = spec(
        specs.LayerGroup(PLAIN, 1),
        embeddings=(specs.LookupTable("token embedding", 11, 6),),
        head=specs.Dense("head", 6, 11, bias=True, tied=True),
    )
    assert count_parameters(tied).total == 210 + 66 + 11
    assert count_parameters(spec(specs.LayerGroup(PLAIN, 12, shared=True))).total == 210


def test_idle_experts_are_not_active() -> None:
    mixture = specs.ExpertsSpec(
        specs.FeedForwardSpec(6, 5),
        experts=4,
        active=1,
        buffers=(specs.Buffer("router correction", 4),),
    )
    sparse = specs.LayerSpec((ATTENTION,), mixture)
    count = count_parameters(spec(*specs.group_layers([PLAIN, sparse, sparse])))
    assert count.total == 210 + 2 * (144 + 4 * 60 + 24)
    assert count.active == 210 + 2 * (144 + 60 + 24)
    assert count.buffer_total == 8
    assert count.buffers[0].formula == "2 × 4 = 8"
    assert [group.indices for group in count.stacks[0].groups] == [(0,), (1, 2)]


def test_absurdly_large_numbers_stay_exact() -> None:
    wide = 10**40 + 7
    layer = specs.LayerSpec((specs.AttentionSpec(wide, 1, 1, wide, wide),))
    count = count_parameters(spec(specs.LayerGroup(layer, 10**30 + 1)))
    assert count.total == 4 * wide**2 * (10**30 + 1)


def test_equal_layers_are_put_together_in_the_order_of_the_first() -> None:
    other = specs.LayerSpec((ATTENTION,))
    groups = specs.group_layers([other, PLAIN, other])
    assert [(group.layer, group.repeat, group.indices) for group in groups] == [
        (other, 2, (0, 2)),
        (PLAIN, 1, (1,)),
    ]
    assert specs.group_layers([PLAIN, PLAIN]) == (specs.LayerGroup(PLAIN, 2),)
