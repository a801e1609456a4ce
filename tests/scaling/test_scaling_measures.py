"""Measures of rows of weights: by hand, by torch's own Jacobian, at their bounds."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnviz.scaling.measures import (
    histogram,
    jacobian_norms,
    matrix_measures,
    normalised_entropies,
    visible_rows,
)
from attnviz.scaling.records import BIN_EDGES, MEASURES


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("row", "norm"),
    [
        # p(1 − p) four times: diag(p) − p pᵀ = ±p₁p₂ everywhere
        ([0.5, 0.5], 2 * 0.25),
        ([0.9, 0.1], 2 * 0.09),
        # .2·.8, .3·.7, .5·.5 on the diagonal, −.06, −.1, −.15 twice off it
        (
            [0.2, 0.3, 0.5],
            math.sqrt(0.16**2 + 0.21**2 + 0.25**2 + 2 * (0.06**2 + 0.1**2 + 0.15**2)),
        ),
        ([1.0, 0.0, 0.0], 0.0),
    ],
)
def test_jacobian_norms_by_hand(row: list[float], norm: float) -> None:
    assert jacobian_norms(np.array([row]))[0] == pytest.approx(norm, abs=1e-15)


@pytest.mark.parametrize("keys", [2, 3, 7, 101])
def test_even_attention(keys: int) -> None:
    even = np.full((3, keys), 1 / keys)
    np.testing.assert_allclose(jacobian_norms(even), math.sqrt(keys - 1) / keys)
    np.testing.assert_allclose(normalised_entropies(even, keys), 1)


@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0, 20.0])
def test_jacobian_norms_by_autograd(spread: float) -> None:
    scores = spread * np.random.default_rng(1).standard_normal((5, 7))
    found = jacobian_norms(softmax(scores))
    for row, norm in zip(scores, found, strict=True):
        jacobian = torch.autograd.functional.jacobian(
            lambda s: torch.softmax(s, -1), torch.tensor(row)
        )
        assert norm == pytest.approx(float(jacobian.norm()), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("gap", [30.0, 40.0, 80.0, 200.0])
def test_a_norm_near_zero_keeps_its_digits(gap: float) -> None:
    """Two keys: 2·p₁·p₂, which 1 − p₁ would have lost to rounding from a gap of 37 on."""
    small = math.exp(-gap) / (1 + math.exp(-gap))
    row = np.array([[1 / (1 + math.exp(-gap)), small]])
    assert jacobian_norms(row)[0] == pytest.approx(2 * small * (1 - small), rel=1e-9)


def test_entropy_by_hand() -> None:
    rows = np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    expected = [1.5 * math.log(2) / math.log(3), 0]
    np.testing.assert_allclose(normalised_entropies(rows, 3), expected)
    # what a query does not see does not count
    seen = np.array([2])
    found = normalised_entropies(np.array([[0.5, 0.5, 0.0]]), seen)
    np.testing.assert_allclose(found, 1)


def test_bins() -> None:
    weights = np.array([0.0, 1e-300, 9.9e-9, 1e-8, 0.5, 0.5622, 1.0, 1.0 + 1e-12])
    counts = histogram(weights)
    assert counts.sum() == weights.size
    assert counts[0] == 3
    assert counts[1] == 1
    assert counts[-2] == 2  # from .316 to .562
    assert counts[-1] == 2
    every = histogram(np.array(BIN_EDGES))
    assert list(every) == [1] * 32 + [2]  # an edge is of the bin above it, 1 of the last


def test_measures_of_a_matrix_by_hand() -> None:
    """Two queries that see three keys; the second all but one."""
    scores = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, -np.inf]])
    visible = np.isfinite(scores)
    weights = softmax(scores)
    found = matrix_measures(np.where(visible, scores, 55.0), weights, visible)
    assert tuple(found) == MEASURES
    share = 1 / (1 + math.exp(-9))
    assert found["score_variance"] == pytest.approx(np.var([0, 0, 0, 9, 0], ddof=1))
    assert found["largest_weight"] == pytest.approx((1 / 3 + share) / 2)
    assert found["weights_above"] == pytest.approx(1 / 5)
    assert found["queries_above"] == pytest.approx(1 / 2)
    assert found["queries_vanished"] == pytest.approx(1 / 2)
    entropy = -(share * math.log(share) + (1 - share) * math.log(1 - share)) / math.log(2)
    assert found["normalised_entropy"] == pytest.approx((1 + entropy) / 2)
    norm = (math.sqrt(2) / 3 + 2 * share * (1 - share)) / 2
    assert found["jacobian_norm"] == pytest.approx(norm)


def test_a_query_with_one_key_has_nothing_to_choose() -> None:
    assert list(visible_rows(np.tril(np.ones((3, 3), bool)))) == [False, True, True]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-60, 60), min_size=2, max_size=9),
    st.floats(-50, 50),
    st.randoms(use_true_random=False),
)
def test_what_the_softmax_does_not_see_changes_nothing(
    row: list[float], constant: float, order: random.Random
) -> None:
    """A constant on a whole row, and the order of the keys; bounds hold."""
    shuffled = list(row)
    order.shuffle(shuffled)
    plain = np.array([row])
    for other in (plain + constant, np.array([shuffled])):
        left, right = softmax(plain), softmax(other)
        np.testing.assert_allclose(jacobian_norms(left), jacobian_norms(right), atol=1e-9)
        for weights in (left, right):
            assert 0 <= jacobian_norms(weights)[0] <= 0.5 + 1e-12
            assert -1e-12 <= normalised_entropies(weights, len(row))[0] <= 1 + 1e-12
        np.testing.assert_allclose(
            normalised_entropies(left, len(row)), normalised_entropies(right, len(row)), atol=1e-9
        )
