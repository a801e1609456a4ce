"""The parameters of one attention, by hand and by properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from attnviz.count.params.counting.parameters import count_attention
from attnviz.count.params.specs import AttentionSpec, LatentSpec, LookupTable, Norm

SIZES = st.integers(1, 10**12)


def attention(d_model: int, heads: int, **more: object) -> AttentionSpec:
    dim = d_model // heads
    plain = AttentionSpec(d_model, heads, heads, dim, dim)
    return plain._replace(**more)  # type: ignore[arg-type]  # the fields of the dataclass


BIASED = {"query_bias": True, "key_bias": True, "value_bias": True, "output_bias": True}


def test_the_textbook_layer() -> None:
    count = count_attention(attention(4096, 32))
    assert (count.query, count.key, count.value, count.output) == (16_777_216,) * 4
    assert count.total == 67_108_864
    assert count.bias == 0
    assert (count.per_head.query, count.per_head.key, count.per_head.value) == (524_288,) * 3
    assert count.per_head.output == 524_288


def test_biases_are_told_apart() -> None:
    count = count_attention(attention(4096, 32, **BIASED))
    assert count.total == 67_125_248
    assert count.bias == 4 * 4096
    biases = {term.label: term.number for term in count.terms if term.role == "bias"}
    assert biases == {f"{name} bias": 4096 for name in ("query", "key", "value", "output")}
    own = count_attention(attention(64, 8, **BIASED))
    assert own.total == 16_640 == 4 * 64**2 + 4 * 64
    one = count_attention(attention(64, 8, key_bias=True))
    assert [term.label for term in one.terms if term.role == "bias"] == ["key bias"]
    assert one.bias == 64


def test_grouped_heads() -> None:
    count = count_attention(attention(4096, 32, kv_heads=8))
    assert count.total == 41_943_040
    assert (count.query, count.key) == (16_777_216, 4_194_304)
    assert count.per_head.key == 524_288  # one of eight


def test_cross_attention_reads_another_width() -> None:
    count = count_attention(AttentionSpec(7, 3, 3, 5, 5, cross=True, source_width=11))
    assert (count.query, count.key, count.value, count.output) == (105, 165, 165, 105)


def test_latent_attention_of_deepseek_v3() -> None:
    latent = LatentSpec(kv_lora=512, rope_dim=64, nope_dim=128, q_lora=1536)
    norms = (Norm("query norm", 1536), Norm("key and value norm", 512))
    count = count_attention(AttentionSpec(7168, 128, 128, 192, 128, latent=latent, parts=norms))
    assert count.query == 7168 * 1536 + 1536 * 128 * 192
    assert count.latent == 7168 * (512 + 64)
    assert count.key == 512 * 128 * 128
    assert count.value == 512 * 128 * 128
    assert count.output == 128 * 128 * 7168
    assert count.norm == 1536 + 512
    assert count.total == 187_107_328
    assert count.per_head.query == 1536 * 192  # the way down is shared


def test_latent_attention_without_a_squeezed_query() -> None:
    latent = LatentSpec(kv_lora=11, rope_dim=2, nope_dim=3, down_bias=True)
    count = count_attention(AttentionSpec(7, 4, 4, 5, 6, latent=latent, output_bias=True))
    assert count.query == 7 * 4 * 5
    assert count.latent == 7 * 13
    assert count.bias == 13 + 7
    assert count.total == 7 * 20 + 7 * 13 + 11 * 4 * (3 + 6) + 4 * 6 * 7 + 20
    squeezed = latent._replace(q_lora=2)
    assert count_attention(AttentionSpec(7, 4, 4, 5, 6, latent=squeezed)).bias == 13 + 2


def test_what_else_an_attention_holds() -> None:
    parts = (Norm("query norm", 5), Norm("key norm", 5, shift=True), LookupTable("sinks", 1, 3))
    count = count_attention(AttentionSpec(7, 3, 3, 5, 5, parts=parts))
    assert (count.norm, count.other) == (15, 3)
    assert count.total == 4 * 105 + 18


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
    assert count.total == weights + biases
    assert count.bias == biases
    assert sum(term.number for term in count.terms) == count.total


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
