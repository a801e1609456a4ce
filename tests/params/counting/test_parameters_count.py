"""The parameters of a whole model: what counts once, what counts apart, what adds up."""

from __future__ import annotations

from attnviz.params.counting.parameters import count_layer, count_parameters
from attnviz.params.specs import (
    AttentionSpec,
    Buffer,
    Dense,
    ExpertsSpec,
    FeedForwardSpec,
    LayerGroup,
    LayerSpec,
    ModelSpec,
    Norm,
    StackSpec,
    Table,
    group_layers,
)

ATTENTION = AttentionSpec(6, 2, 2, 3, 3)  # 144
PLAIN = LayerSpec((ATTENTION,), FeedForwardSpec(6, 5), (Norm("attention norm", 6),))  # 210


def spec(*groups: LayerGroup, **more: object) -> ModelSpec:
    stack = StackSpec("decoder", groups, **more)  # type: ignore[arg-type]
    return ModelSpec("test", "", (stack,))


def test_a_layer_by_what_it_is_for() -> None:
    count = count_layer(PLAIN)
    shares = count.shares
    assert (shares.attention, shares.feed_forward, shares.norm, shares.other) == (144, 60, 6, 0)
    assert count.total == count.active == shares.total == 210
    scaled = count_layer(LayerSpec((ATTENTION,), parts=(Table("scale", 1, 6),)))
    assert scaled.shares.other == 6


def test_shares_add_up() -> None:
    whole = spec(
        LayerGroup(PLAIN, 3),
        embeddings=(Table("token embedding", 11, 6), Dense("patches", 4, 6, bias=True)),
        norms=(Norm("final norm", 6, shift=True),),
        parts=(Dense("pooler", 6, 6, bias=True),),
        head=Dense("head", 6, 11),
    )
    count = count_parameters(whole)
    shares = count.shares
    assert (shares.attention, shares.feed_forward) == (3 * 144, 3 * 60)
    assert (shares.embedding, shares.norm, shares.head, shares.other) == (66 + 30, 18 + 12, 66, 42)
    assert count.total == shares.total == 630 + 96 + 12 + 66 + 42


def test_a_tied_head_counts_once_but_its_bias_counts() -> None:
    tied = spec(
        LayerGroup(PLAIN, 1),
        embeddings=(Table("token embedding", 11, 6),),
        head=Dense("head", 6, 11, bias=True, tied=True),
    )
    assert count_parameters(tied).total == 210 + 66 + 11


def test_a_layer_that_is_used_again_and_again_is_stored_once() -> None:
    assert count_parameters(spec(LayerGroup(PLAIN, 12, shared=True))).total == 210


def test_idle_experts_are_not_active() -> None:
    mixture = ExpertsSpec(
        FeedForwardSpec(6, 5), experts=4, active=1, buffers=(Buffer("router correction", 4),)
    )
    sparse = LayerSpec((ATTENTION,), mixture)
    count = count_parameters(spec(*group_layers([PLAIN, sparse, sparse])))
    assert count.total == 210 + 2 * (144 + 4 * 60 + 24)
    assert count.active == 210 + 2 * (144 + 60 + 24)
    assert count.buffer_total == 8
    assert count.buffers[0].formula == "2 × 4 = 8"
    assert [group.indices for group in count.stacks[0].groups] == [(0,), (1, 2)]


def test_tables_that_two_towers_share_count_once() -> None:
    towers = tuple(
        StackSpec(name, (LayerGroup(PLAIN, 1),), buffers=(Buffer("logits bias", 3),))
        for name in ("encoder", "decoder")
    )
    shared = ModelSpec("two", "", towers, embeddings=(Table("token embedding", 11, 6),))
    count = count_parameters(shared)
    assert count.total == 420 + 66
    assert count.shares.embedding == 66
    assert count.buffer_total == 6


def test_absurdly_large_numbers_stay_exact() -> None:
    wide = 10**40 + 7
    layer = LayerSpec((AttentionSpec(wide, 1, 1, wide, wide),))
    count = count_parameters(spec(LayerGroup(layer, 10**30 + 1)))
    assert count.total == 4 * wide**2 * (10**30 + 1)


def test_equal_layers_are_put_together_in_the_order_of_the_first() -> None:
    other = LayerSpec((ATTENTION,))
    groups = group_layers([other, PLAIN, other])
    assert [(group.layer, group.repeat, group.indices) for group in groups] == [
        (other, 2, (0, 2)),
        (PLAIN, 1, (1,)),
    ]
    assert group_layers([PLAIN, PLAIN]) == (LayerGroup(PLAIN, 2),)
