"""The attention sink: its keys, its weight and attention without it, against sums by hand."""

import numpy as np
import pytest

from attnviz.measures import sinks
from attnviz.records import Tokens


def tokens(*special):
    return Tokens(tuple(range(len(special))), ("x",) * len(special), special)


def test_special_tokens_and_the_first_of_causal_attention_are_the_sink():
    bert = tokens(True, False, False, True)
    assert sinks.sink_keys(bert, causal=False).tolist() == [True, False, False, True]
    plain = tokens(False, False, False)
    assert sinks.sink_keys(plain, causal=True).tolist() == [True, False, False]
    assert not sinks.sink_keys(plain, causal=False).any()


def test_the_sink_weight_is_the_mean_of_what_other_queries_give(reports):
    report = reports()  # <s> The cat saw the cat .
    queries, keys = sinks.sink_of(report.record)
    for _, _, weights in report.record:
        by_hand = sum(float(weights[row, 0]) for row in range(1, 7)) / 6
        found = sinks.sink_weights(weights, queries, keys)
        assert float(found) == pytest.approx(by_hand)
        assert 0 <= found <= 1
    alone = np.array([True])
    assert np.isnan(sinks.sink_weights(np.ones((3, 1, 1)), alone, alone)).all()


def test_in_cross_attention_every_query_counts(reports):
    report = reports(["a", "b"], keys=["<s>", "c"], kind="cross")
    queries, keys = sinks.sink_of(report.record)
    assert not queries.any()
    assert keys.tolist() == [True, False]


def test_a_head_rests_from_thirty_percent_or_twice_uniform(reports):
    long = reports([f"w{place}" for place in range(60)])
    assert sinks.resting_weight(long.record) == 0.3
    short = reports(["a", "b", "c", "d"])
    uniform = (1 / 2 + 1 / 3 + 1 / 4) / 3
    assert sinks.resting_weight(short.record) == pytest.approx(2 * uniform)
    assert sinks.resting_weight(reports(["a", "b"], causal=False).record) == 1.0


def test_without_the_sink_rows_sum_to_one_or_are_blank():
    weights = np.array([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.5, 0.2, 0.3]])
    keys = np.array([True, False, False])
    found = sinks.without_sink(weights, keys)
    assert np.isnan(found[:, 0]).all()
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1:, 1:], [[1.0, 0.0], [0.4, 0.6]])
    little = np.array([[1 - sinks.LEAST_LEFT / 2, sinks.LEAST_LEFT / 2, 0.0]])
    assert np.isnan(sinks.without_sink(little, keys)).all()
    np.testing.assert_array_equal(sinks.without_sink(weights, np.zeros(3, bool)), weights)
