"""The keys of the literature's patterns, held against the measures of heads."""

from __future__ import annotations

import numpy as np
import pytest

from attnviz.sweep.patterns_formed import weight_on
from attnviz.sweep.tasks.induction import Induction
from attnviz.sweep.tasks.patterns import DUPLICATE, FIRST, INDUCTION, back
from attnviz.sweep.tasks.task import Samples

from ...conftest import measured

TOKENS = 11


@pytest.fixture
def samples() -> Samples:
    ids = np.random.default_rng(1).integers(1, 5, (1, TOKENS + 1))
    return Samples(ids, np.ones((1, TOKENS), np.bool_))


@pytest.fixture
def weights() -> np.ndarray:
    """Causal attention of three heads, (sequence, head, query, key)."""
    raw = np.tril(np.random.default_rng(2).uniform(size=(1, 3, TOKENS, TOKENS)) + 0.01)
    return np.asarray(raw / raw.sum(-1, keepdims=True))


def test_they_are_the_measures_of_heads(samples: Samples, weights: np.ndarray) -> None:
    ids = samples.ids[0, :-1].tolist()
    for pattern, expected in (
        (back(1), measured("previous", weights[0])),
        (FIRST, measured("first", weights[0])),
        (DUPLICATE, measured("duplicate", weights[0], ids)),
        (INDUCTION, measured("induction", weights[0], ids)),
    ):
        found = weight_on(pattern.keys(samples), weights)
        assert found == pytest.approx(expected), pattern.name


def test_three_back_by_hand(samples: Samples, weights: np.ndarray) -> None:
    pattern = back(3)
    assert (pattern.name, pattern.words) == ("back_3", "3 tokens back")
    assert back(1).words == "previous token"
    expected = [[head[i, i - 3] for i in range(3, TOKENS)] for head in weights[0]]
    assert weight_on(pattern.keys(samples), weights) == pytest.approx(np.mean(expected, axis=1))


def test_one_strand_is_plain_induction() -> None:
    task = Induction(letters=5, strands=1, period=(2, 4), length=13)
    samples = task.draw(7, np.random.default_rng(0))
    own = next(one for one in task.patterns if one.name == "induction")
    assert (own.keys(samples) == INDUCTION.keys(samples)).all()


def test_the_mean_is_over_the_queries_that_have_keys() -> None:
    keys = np.zeros((2, 3, 3), np.bool_)
    keys[0, 1, 0] = keys[0, 2, 0] = keys[0, 2, 1] = True
    weights = np.zeros((2, 1, 3, 3))
    weights[0, 0] = [[1, 0, 0], [0.25, 0.75, 0], [0.5, 0.25, 0.25]]
    weights[1] = 1 / 3
    assert weight_on(keys, weights) == pytest.approx([(0.25 + 0.75) / 2])
