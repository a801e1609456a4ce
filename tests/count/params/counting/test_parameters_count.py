"""The parameters of a whole model: what counts once, what counts apart, what adds up."""

from __future__ import annotations

from attnviz.count.params import specs
from attnviz.count.params.counting.parameters import count_layer, count_parameters

ATTENTION = specs.AttentionSpec(6, 2, 2, 3, 3)  # 144
PLAIN = specs.LayerSpec(
    (ATTENTION,), specs.FeedForwardSpec(6, 5), (specs.Norm("attention norm", 6),)
)  # 210


def spec(*groups: specs.LayerGroup, **more: object) -> specs.ModelSpec:
    stack = specs.StackSpec("decoder", groups, **more)  # type: ignore[arg-type]
    return specs.ModelSpec("test", "", (stack,))


def test_a_layer_by_what_it_is_for() -> None:
    count = count_layer(PLAIN)
    shares = count.shares
    assert (shares.attention, shares.feed_forward, shares.norm, shares.other) == (144, 60, 6, 0)
    assert count.total == count.active == shares.total == 210
    scaled = count_layer(specs.LayerSpec((ATTENTION,), parts=(specs.LookupTable("scale", 1, 6),)))
    assert scaled.shares.other == 6


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


def test_tables_that_two_towers_share_count_once() -> None:
    towers = tuple(
        specs.StackSpec(
            name, (specs.LayerGroup(PLAIN, 1),), buffers=(specs.Buffer("logits bias", 3),)
        )
        for name in ("encoder", "decoder")
    )
    shared = specs.ModelSpec(
        "two", "", towers, embeddings=(specs.LookupTable("token embedding", 11, 6),)
    )
    count = count_parameters(shared)
    assert count.total == 420 + 66
    assert count.shares.embedding == 66
    assert count.buffer_total == 6


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
