"""The parameters of an attention, of a feed-forward part and of a whole model: what adds up."""

import math

from hypothesis import given
from hypothesis import strategies as st

from attnviz.count.params import specs

SIZES = st.integers(1, 10**12)
ATTENTION = specs.AttentionSpec(6, 2, 2, 3, 3)  # 144


def test_latent_attention_of_deepseek_v3():
    latent = specs.LatentSpec(kv_lora=512, rope_dim=64, nope_dim=128, q_lora=1536)
    norms = (specs.Norm("query norm", 1536), specs.Norm("key and value norm", 512))
    spec = specs.AttentionSpec(7168, 128, 128, 192, 128, latent=latent, parts=norms)
    roles = {
        "query": 7168 * 1536 + 1536 * 128 * 192,
        "latent": 7168 * (512 + 64),
        "key": 512 * 128 * 128,
        "value": 512 * 128 * 128,
        "output": 128 * 128 * 7168,
        "norm": 1536 + 512,
    }
    assert {role: specs.total(spec.terms, role) for role in roles} == roles
    assert specs.total(spec.terms) == 187_107_328
    assert spec.per_head["query"] == 1536 * 192  # the way down is shared


@given(SIZES, SIZES, st.integers(1, 99), SIZES, SIZES, st.booleans(), st.booleans())
def test_the_formula_of_the_definitions(d, groups, share, dim, value, bias, output_bias):
    heads = groups * share
    spec = specs.AttentionSpec(d, heads, groups, dim, value, bias, bias, bias, output_bias)
    weights = d * heads * dim + d * groups * (dim + value) + heads * value * d
    biases = bias * (heads * dim + groups * (dim + value)) + output_bias * d
    assert specs.total(spec.terms) == weights + biases
    assert specs.total(spec.terms, "bias") == biases
    assert spec.per_head == {
        "query": d * dim,
        "key": d * dim,
        "value": d * value,
        "output": d * value,
    }
    for term in spec.terms:  # each line shows its own arithmetic
        factors, _, result = term.formula.rpartition(" = ")
        numbers = [int(factor) for factor in factors.split(" × ")] if factors else [term.number]
        assert math.prod(numbers) == term.number == int(result.replace(",", ""))
    assert spec.terms[0].formula == f"{d} × {heads * dim} = {d * heads * dim:,}"


PLAIN = specs.LayerSpec(
    (ATTENTION,), specs.FeedForwardSpec(6, 5), (specs.Norm("attention norm", 6),)
)  # 210


def spec(*groups, **more):
    stack = specs.StackSpec("decoder", groups, **more)
    return specs.ModelSpec("test", "", (stack,))


def test_shares_add_up():
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
    assert specs.shares_of(whole.placed) == {
        "attention": 3 * 144,
        "feed_forward": 3 * 60,
        "embedding": 66 + 30,
        "norm": 18 + 12,
        "head": 66,
        "other": 42,
    }
    assert whole.total == 630 + 96 + 12 + 66 + 42


def test_idle_experts_are_not_active():
    mixture = specs.ExpertsSpec(
        specs.FeedForwardSpec(6, 5), 4, 1, buffers=(("router correction", 4),)
    )
    sparse = specs.LayerSpec((ATTENTION,), mixture)
    whole = spec(*specs.group_layers([PLAIN, sparse, sparse]))
    assert whole.total == 210 + 2 * (144 + 4 * 60 + 24)
    assert whole.active == 210 + 2 * (144 + 60 + 24)
    assert [term.formula for term in whole.buffers] == ["2 × 4 = 8"]
    assert [group.indices for group in whole.main.groups] == [(0,), (1, 2)]


def test_absurdly_large_numbers_stay_exact():
    wide = 10**40 + 7
    layer = specs.LayerSpec((specs.AttentionSpec(wide, 1, 1, wide, wide),))
    assert spec(specs.LayerGroup(layer, 10**30 + 1)).total == 4 * wide**2 * (10**30 + 1)


def test_equal_layers_are_put_together_in_the_order_of_the_first():
    other = specs.LayerSpec((ATTENTION,))
    groups = specs.group_layers([other, PLAIN, other])
    assert groups == (specs.LayerGroup(other, 2, (0, 2)), specs.LayerGroup(PLAIN, 1, (1,)))
    assert specs.group_layers([PLAIN, PLAIN]) == (specs.LayerGroup(PLAIN, 2),)
