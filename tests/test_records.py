"""Records refuse what does not fit, and answer for the heads that they hold."""

import dataclasses

import numpy as np
import pytest

from attnviz import records

INFO = records.ModelInfo("m", None, "None", "float32", 3, 4, 2, 8)
THREE = records.Tokens((1, 2, 3), ("a", " b", " c"), (True, False, False))
TWO = records.Tokens((1, 2), ("a", " b"), (False, False))


def layer(index, heads, queries=3, keys=3):
    weights = np.random.default_rng(index).random((len(heads), queries, keys))
    return records.LayerWeights(index, heads, weights)


@pytest.fixture
def report():
    record = records.AttentionRecord(
        INFO, "self", True, THREE, THREE, (layer(0, (1, 3)), layer(2, (0,)))
    )
    trait = records.HeadLabel("first", "F", 0.5, 0.2)
    scores = tuple(records.HeadScores(at, head, {}, trait) for at, head, _ in record)
    return records.HeadsRecord(record, scores, ((2, 0),), selected=True)


def test_tokens_know_their_number_and_are_of_one_length():
    assert len(THREE) == 3
    assert len(records.Tokens((), (), ())) == 0
    for ids, texts, special in (
        ((1,), (), ()), ((1,), ("a",), ()), ((), ("a",), (False,)), ((1,), ("a",), (False, True))
    ):  # fmt: skip
        with pytest.raises(ValueError, match="differ in length"):
            records.Tokens(ids, texts, special)


def test_a_model_has_at_least_one_of_everything():
    for field in ("layers", "heads", "kv_heads", "head_dim"):
        with pytest.raises(ValueError, match="at least one"):
            dataclasses.replace(INFO, **{field: 0})


@pytest.mark.parametrize(
    ("heads", "kv_heads", "groups"),
    [
        (4, 4, [None] * 4),
        (4, 2, [0, 0, 1, 1]),
        (6, 2, [0, 0, 0, 1, 1, 1]),
        (5, 1, [0] * 5),
        (5, 2, [None] * 5),  # heads cannot be shared evenly: there are no such groups
    ],
)
def test_query_heads_share_key_value_heads_in_groups(heads, kv_heads, groups):
    info = dataclasses.replace(INFO, heads=heads, kv_heads=kv_heads)
    assert [info.group(head) for head in range(heads)] == groups


def test_weights_have_a_map_for_each_head_and_lie_over_the_tokens():
    for heads, shape in (
        ((0,), (3, 3)), ((0,), (2, 3, 3)), ((), (1, 3, 3)), ((0, 1), (2, 1, 3, 3))
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expected weights of shape"):
            records.LayerWeights(0, heads, np.zeros(shape))
    for queries, keys in ((2, 3), (3, 2), (2, 2)):
        with pytest.raises(ValueError, match="layer 0: expected weights over 3 queries and 3 keys"):
            records.AttentionRecord(
                INFO, "self", True, THREE, THREE, (layer(0, (0,), queries, keys),)
            )
    record = records.AttentionRecord(INFO, "cross", False, THREE, TWO, (layer(0, (0,), 3, 2),))
    assert [weights.shape for _, _, weights in record] == [(3, 2)]


def test_heads_are_walked_and_looked_up_by_their_own_index(report):
    walked = list(report.record)
    assert [(at, head) for at, head, _ in walked] == [(0, 1), (0, 3), (2, 0)]
    np.testing.assert_array_equal(walked[1][2], report.record.layers[0].weights[1])
    np.testing.assert_array_equal(report.weights(0, 3), report.record.layers[0].weights[1])
    assert report.scores(2, 0) is report.heads[2]
    for wanted in ((0, 0), (1, 0), (2, 1)):
        for look_up in (report.weights, report.scores):
            with pytest.raises(KeyError, match=f"L{wanted[0]}H{wanted[1]} was not kept"):
                look_up(*wanted)
    assert report.name(2, 0) == "L2H0"
    assert dataclasses.replace(report, index_base=1).name(2, 0) == "L3H1"


def test_scores_are_short_in_a_prompt():
    label = records.HeadLabel("previous", "P", 0.123456789012345, 1 / 3)
    scores = records.HeadScores(1, 0, {"previous": 0.123456789012345, "induction": None}, label)
    assert repr(label) == "HeadLabel(previous 0.123, uniform 0.333)"
    assert repr(scores) == (
        "HeadScores(layer 1, head 0, HeadLabel(previous 0.123, uniform 0.333), previous 0.123)"
    )
