"""Divergences and cosines against sums written out by hand, pairs against brute force."""

import math
from itertools import permutations

import numpy as np
import pytest

from attnviz.measures.divergence import cheapest_pairs, cosine, js_divergence, kl_divergence

RNG = np.random.default_rng(5)


def entropy(row):
    return -sum(p * math.log2(p) for p in row if p > 0)


def test_js_divergence_is_the_entropy_of_the_mixture_less_the_mean_entropy():
    rows = RNG.dirichlet(np.full(7, 0.4), (2, 11))
    rows[0, 0] = np.eye(7)[0]
    rows[1, 0] = np.eye(7)[3]
    found = js_divergence(*rows)
    for p, q, value in zip(*rows.tolist(), found, strict=True):
        middle = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
        assert value == pytest.approx(entropy(middle) - (entropy(p) + entropy(q)) / 2, abs=1e-12)
    assert found[0] == 1  # no key in common
    assert (js_divergence(*rows[::-1]) == found).all()
    assert (js_divergence(rows[0], rows[0]) == 0).all()
    assert js_divergence(rows[0] * 0.3, rows[1]) == pytest.approx(found)
    assert np.isnan(js_divergence(np.zeros(3), np.ones(3)))


def test_cosine_and_kl_by_hand():
    a, b = RNG.normal(size=(2, 5, 3))
    for one, other, value in zip(a.tolist(), b.tolist(), cosine(a, b), strict=True):
        product_ = sum(x * y for x, y in zip(one, other, strict=True))
        assert value == pytest.approx(product_ / math.hypot(*one) / math.hypot(*other))
    assert cosine(a, np.zeros_like(a)).tolist() == [0] * 5
    assert cosine(np.zeros(3), np.zeros(3)) == 1
    p, q = RNG.dirichlet(np.ones(6), 2)
    by_hand = sum(x * math.log(x / y) for x, y in zip(p.tolist(), q.tolist(), strict=True))
    assert kl_divergence(np.log(p), np.log(q)) == pytest.approx(by_hand)


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (3, 6), (6, 3)])
def test_the_cheapest_pairs_are_those_of_brute_force(shape):
    for _ in range(20):
        costs = RNG.random(shape).round(1)
        pairs = cheapest_pairs(costs)
        small = costs if shape[0] <= shape[1] else costs.T
        orders = permutations(range(max(shape)), min(shape))
        best = min(sum(row[at] for row, at in zip(small, order, strict=True)) for order in orders)
        assert len(set(pairs)) == min(shape)
        assert all(len({pair[side] for pair in pairs}) == len(pairs) for side in (0, 1))
        assert sum(costs[pair] for pair in pairs) == pytest.approx(best)
