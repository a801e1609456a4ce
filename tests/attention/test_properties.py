"""What holds of every attention, whatever the numbers: tried on drawn ones, in both libraries."""

import math
from typing import get_args

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from attnviz.attention.functional import (
    Score,
    additive_scores,
    attention_output,
    causal_mask,
    masked_softmax,
    scores_by,
    softmax,
)

every_time = settings(derandomize=True, max_examples=50)
libraries = st.sampled_from([np.asarray, torch.from_numpy])
scored = st.sampled_from(get_args(Score))
seeds = st.integers(0, 10_000)
DIM = 5


def drawn(seed, *sizes):
    """Heads (3, size, dim) of normal numbers, as many as there are sizes, and v (3, dim)."""
    generator = np.random.default_rng(seed)
    return [generator.normal(size=(3, size, DIM)) for size in sizes] + [
        generator.normal(size=(3, DIM))
    ]


def attend(score, query, key, value, weight, mask=None):
    """Output and weights."""
    weights = masked_softmax(scores_by(score, query, key, weight), mask)
    return [np.asarray(attention_output(weights, value)), np.asarray(weights)]


@every_time
@given(
    libraries,
    arrays.arrays(
        np.float64,
        arrays.array_shapes(min_dims=2, max_dims=3, max_side=5),
        elements=st.floats(-30, 30) | st.just(-math.inf),
    ),
    st.floats(-1e6, 1e6),
)
def test_softmax_does_not_change_when_a_constant_is_added(library, scores, constant):
    expected = np.asarray(softmax(library(scores)))
    # Adding a constant of a million costs ten decimals of each score, nothing else.
    np.testing.assert_allclose(softmax(library(scores + constant)), expected, atol=1e-8)
    each_row = constant * np.arange(scores.shape[-2])[:, None]
    np.testing.assert_allclose(softmax(library(scores + each_row)), expected, atol=1e-8)


@every_time
@given(libraries, scored, seeds, st.permutations(range(5)), st.permutations(range(7)))
def test_permuted_queries_and_keys_permute_the_weights(library, score, seed, of_queries, of_keys):
    """Keys and values in another order give the same output, queries in another order its rows."""
    query, key, value, weight = drawn(seed, 5, 7, 7)
    output, weights = attend(score, *map(library, (query, key, value, weight)))
    moved = query[:, of_queries], key[:, of_keys], value[:, of_keys], weight
    moved_output, moved_weights = attend(score, *map(library, moved))
    np.testing.assert_allclose(moved_output, output[:, of_queries], atol=1e-12)
    np.testing.assert_allclose(moved_weights, weights[:, of_queries][..., of_keys], atol=1e-12)


@every_time
@given(
    libraries, scored, seeds, st.integers(1, 6), st.integers(0, 3), st.floats(-1e3, 1e3), st.data()
)
def test_the_future_changes_nothing(library, score, seed, queries, past, change, data):
    """However the keys and values after a query's own place change, its row stays bit for bit."""
    query, key, value, weight = drawn(seed, queries, queries + past, queries + past)
    mask = causal_mask(queries, queries + past, like=library(query))
    place = data.draw(st.integers(0, queries - 1))
    output, weights = attend(score, *map(library, (query, key, value, weight)), mask)
    later_key, later_value = key.copy(), value.copy()
    later_key[:, place + past + 1 :] += change
    later_value[:, place + past + 1 :] -= change
    changed = attend(score, *map(library, (query, later_key, later_value, weight)), mask)
    for before, after in zip((output, weights), changed, strict=True):
        np.testing.assert_array_equal(after[:, : place + 1], before[:, : place + 1])
    assert not weights[:, place, place + past + 1 :].any()


@every_time
@given(libraries, seeds, st.floats(-1e3, 1e3))
def test_additive_scores_are_symmetric_and_bounded(library, seed, size):
    """tanh(q + k) does not tell a query from a key, and no score exceeds the sum of |v|."""
    query, key, weight = drawn(seed, 5, 7)
    scores = np.asarray(additive_scores(*map(library, (size * query, size * key, weight))))
    swapped = np.asarray(additive_scores(*map(library, (size * key, size * query, weight))))
    np.testing.assert_array_equal(swapped, np.swapaxes(scores, -1, -2))
    most = np.abs(weight).sum(-1)[:, None, None]
    assert (np.abs(scores) <= most * (1 + 1e-12)).all()
