"""The tasks: what counts can be known, by readers that share no code with them; their patterns."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from attnviz.learn.sweep.sweep import weight_on
from attnviz.learn.sweep.tasks import (
    BEGINNING,
    DUPLICATE,
    FIRST,
    INDUCTION,
    Copying,
    Induction,
    Majority,
    Samples,
    Task,
    back,
)

from ...made_records import measured

TOKENS = 11


def rows(task: Task, count: int = 23, seed: int = 5) -> list[tuple[list[int], list[bool]]]:
    """Each sequence without its beginning, and which of its letters count."""
    samples = task.draw(count, np.random.default_rng(seed))
    assert samples.ids.shape == (count, 1 + task.length)
    assert samples.counted.shape == (count, task.length)
    assert (samples.ids[:, 0] == BEGINNING).all()
    assert samples.ids[:, 1:].min() > BEGINNING
    assert samples.ids.max() < task.vocabulary
    assert samples.predictions == samples.counted.sum() > 0
    return list(zip(samples.ids[:, 1:].tolist(), samples.counted.tolist(), strict=True))


@pytest.mark.parametrize(
    ("strands", "period", "length"), [(1, (2, 5), 17), (2, (3, 4), 19), (3, (3, 5), 42)]
)
def test_what_counts_in_induction_followed_before_and_nothing_else_did(
    strands: int, period: tuple[int, int], length: int
) -> None:
    for letters, counted in rows(Induction(7, strands, period, length)):
        for strand in range(strands):
            own, known = letters[strand::strands], counted[strand::strands]
            size = next(n for n in range(1, len(own)) if own[n] == own[0])
            assert period[0] <= size <= period[1]
            assert len(set(own[:size])) == size
            for turn, letter in enumerate(own):
                followers = {own[n + 1] for n in range(turn - 1) if own[n] == own[turn - 1]}
                assert known[turn] == bool(turn and followers), (own, turn)
                assert not followers or followers == {letter}


def test_keys_of_induction_hold_the_answer() -> None:
    task = Induction(letters=7, strands=1, period=(3, 3), length=11)
    samples = task.draw(5, np.random.default_rng(0))
    assert task.chance().loss == pytest.approx(math.log(7))
    assert task.chance().accuracy == pytest.approx(1 / 7)
    (rule,) = task.between(samples)
    assert (rule.loss, rule.accuracy) == (pytest.approx(math.log(3)), pytest.approx(1 / 3))
    best = task.best()
    assert best is not None
    assert (best.loss, best.accuracy) == (0.0, 1.0)
    task = Induction(letters=7, strands=3, period=(3, 5), length=31)
    samples = task.draw(11, np.random.default_rng(2))
    keys = next(one for one in task.patterns if one.name == "induction").keys(samples)
    ids = samples.ids
    for sequence, query, key in zip(*np.nonzero(keys), strict=True):
        assert key < query
        assert ids[sequence, key] == ids[sequence, query + 1]
    # Where the answer can be known there is a key that holds it, and nowhere else.
    assert (keys.any(-1) == samples.counted).all()


def test_copies_and_their_keys() -> None:
    sizes = set()
    for letters, counted in rows(Copying(letters=5, size=(2, 7)), 67):
        size = letters.index(6)
        sizes.add(size)
        assert letters[size + 1 : 2 * size + 1] == letters[:size]
        assert set(letters[2 * size + 1 :]) <= {7}
        assert counted == [size < at <= 2 * size for at in range(len(letters))]
        assert max(letters[:size]) <= 5
    assert sizes == set(range(2, 8))
    task = Copying(letters=5, size=(2, 7))
    samples = task.draw(11, np.random.default_rng(2))
    keys = next(one for one in task.patterns if one.name == "copy").keys(samples)
    assert (keys.sum(-1) == samples.counted).all()
    for sequence, query, key in zip(*np.nonzero(keys), strict=True):
        assert samples.ids[sequence, key] == samples.ids[sequence, query + 1]
        assert query - key == samples.counted[sequence].sum()


def test_a_majority_has_no_equal() -> None:
    for letters, counted in rows(Majority(letters=3, size=(2, 9)), 97):
        sign = letters.index(4)
        (first, most), *others = Counter(letters[:sign]).most_common(2)
        assert letters[sign + 1] == first
        assert not others or others[0][1] < most
        assert counted == [at == sign + 1 for at in range(len(letters))]
        assert set(letters[sign + 2 :]) <= {5}


def test_the_keys_of_a_majority() -> None:
    task = Majority(letters=3, size=(2, 9))
    samples = task.draw(13, np.random.default_rng(4))
    keys = {one.name: one.keys(samples) for one in task.patterns}
    for sequence, ids in enumerate(samples.ids.tolist()):
        sign = ids.index(4)
        assert set(zip(*np.nonzero(keys["letters"][sequence]), strict=True)) == {
            (sign, at) for at in range(1, sign)
        }
        assert set(zip(*np.nonzero(keys["majority"][sequence]), strict=True)) == {
            (sign, at) for at in range(1, sign) if ids[at] == ids[sign + 1]
        }


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


def test_the_mean_is_over_the_queries_that_have_keys() -> None:
    keys = np.zeros((2, 3, 3), np.bool_)
    keys[0, 1, 0] = keys[0, 2, 0] = keys[0, 2, 1] = True
    weights = np.zeros((2, 1, 3, 3))
    weights[0, 0] = [[1, 0, 0], [0.25, 0.75, 0], [0.5, 0.25, 0.25]]
    weights[1] = 1 / 3
    assert weight_on(keys, weights) == pytest.approx([(0.25 + 0.75) / 2])
