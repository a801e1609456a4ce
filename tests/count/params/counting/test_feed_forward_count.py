"""The parameters of a feed-forward part, by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from attnviz.count.params.counting.parameters import count_feed_forward
from attnviz.count.params.specs import Dense, ExpertsSpec, FeedForwardSpec

SIZES = st.integers(1, 10**12)


def test_the_gated_part_of_llama_2_7b() -> None:
    count = count_feed_forward(FeedForwardSpec(4096, 11008, gated=True))
    assert count.total == count.active == 135_266_304
    assert count.up == count.gate == count.down == 45_088_768
    assert (count.bias, count.router, count.shared, count.per_expert) == (0, 0, 0, 0)


@given(SIZES, SIZES, st.booleans(), st.booleans(), st.booleans())
def test_plain_and_gated(d: int, f: int, gated: bool, up_bias: bool, down_bias: bool) -> None:
    count = count_feed_forward(FeedForwardSpec(d, f, gated, up_bias, down_bias))
    biases = up_bias * f * (1 + gated) + down_bias * d
    assert count.bias == biases
    assert count.total == (2 + gated) * d * f + biases
    assert count.total == sum(term.number for term in count.terms)


def test_a_mixture_counts_all_experts_and_one_token_passes_some() -> None:
    expert = FeedForwardSpec(7, 11, gated=True)
    shared = FeedForwardSpec(7, 13, gated=True)
    gate = Dense("shared expert gate", 7, 1)
    count = count_feed_forward(
        ExpertsSpec(expert, 5, 2, shared=shared, router_bias=True, parts=(gate,))
    )
    assert count.per_expert == 3 * 7 * 11 == 231
    assert count.router == 35
    assert count.bias == 5  # the router's
    assert count.shared == 3 * 7 * 13 == 273
    assert count.other == 7
    assert count.total == 5 * 231 + 35 + 5 + 273 + 7
    assert count.total - count.active == 3 * 231


def test_experts_with_biases() -> None:
    expert = FeedForwardSpec(7, 11, gated=True, up_bias=True, down_bias=True)
    count = count_feed_forward(ExpertsSpec(expert, 3, 1))
    assert count.bias == 3 * (2 * 11 + 7)
    assert count.per_expert == 231 + 29
    assert count.total == 3 * 260 + 21
    assert count.active == 260 + 21
