"""Uniform shapes, worked out by hand."""

from hypothesis import given
from hypothesis import strategies as st

from attnviz.models.cut_tensors import cut_plans


def test_the_smallest_shape_holds_what_the_fullest_layer_keeps():
    plans = cut_plans({0: {1}, 2: {0, 4}}, (0, 2), heads=5, kv_heads=5)
    assert [plan.heads for plan in plans] == [4]
    # layer 0 keeps four; layer 2 keeps three, and the first of its removed ones as padding
    assert plans[0].query == {0: (0, 2, 3, 4), 2: (0, 1, 2, 3)}
    assert plans[0].key == plans[0].query


def test_one_full_layer_leaves_nothing_to_cut():
    assert cut_plans({0: {1, 2}}, (0, 1), heads=3, kv_heads=3) == ()
    assert cut_plans({}, (0, 1), heads=3, kv_heads=3) == ()


def test_a_key_head_goes_only_with_all_its_query_heads():
    # groups 0 1 2 and 3 4 5; layer 0 loses the first, layer 1 the second
    plans = cut_plans({0: {0, 1, 2}, 1: {3, 4, 5}}, (0, 1), heads=6, kv_heads=2)
    assert (plans[0].heads, plans[0].kv_heads) == (3, 1)
    assert plans[0].query == {0: (3, 4, 5), 1: (0, 1, 2)}
    assert plans[0].key == {0: (1,), 1: (0,)}
    # four heads go in each layer, and yet none of the groups
    plans = cut_plans({0: {0, 1, 4, 5}, 1: {1, 2, 3, 4}}, (0, 1), heads=6, kv_heads=2)
    assert (plans[0].heads, plans[0].kv_heads) == (2, 2)
    assert plans[0].query == {0: (2, 3), 1: (0, 5)}
    # one group keeps all its own, so that every group must have room for as many
    assert cut_plans({0: {0, 1}}, (0,), heads=6, kv_heads=2) == ()


def test_larger_shapes_follow_where_a_config_refuses_the_smallest():
    plans = cut_plans({0: {0, 1, 2, 3}}, (0,), heads=6, kv_heads=6)
    assert [plan.heads for plan in plans] == [2, 3, 4, 5]
    assert [plan.query[0] for plan in plans][1] == (0, 4, 5)


def test_where_nothing_can_be_cut():
    assert cut_plans({0: {0, 1}}, (0,), heads=2, kv_heads=2)[0].query == {0: (0,)}
    assert cut_plans({0: {0}}, (0,), heads=5, kv_heads=2) == ()


@given(st.data())
def test_every_plan_keeps_every_head_that_is_left(data):
    kv_heads, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    heads = kv_heads * size
    removed = {layer: data.draw(st.sets(st.integers(0, heads - 1))) for layer in range(3)}
    plans = cut_plans(removed, range(3), heads, kv_heads)
    costs = [plan.heads + plan.kv_heads for plan in plans]
    assert costs == sorted(costs)
    for plan in plans:
        assert plan.heads % plan.kv_heads == 0
        assert (plan.heads, plan.kv_heads) != (heads, kv_heads)
        for layer in range(3):
            query, key = plan.query[layer], plan.key[layer]
            assert (len(query), len(key)) == (plan.heads, plan.kv_heads)
            assert list(query) == sorted(set(query))
            assert set(range(heads)) - removed[layer] <= set(query)
            # the i-th key head still serves the i-th run of query heads
            each = plan.heads // plan.kv_heads
            assert [head // size for head in query] == [k for k in key for _ in range(each)]
