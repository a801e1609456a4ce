"""What a model learns from: the same for the same seed, weighted where it can be predicted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from attnviz.errors import UsageError
from attnviz.learn.train.recipe import Phase
from attnviz.learn.train.texts import Sampler

VOCABULARY, BEGINNING = 503, 0
TEXT = np.arange(1, 98, dtype=np.int32)


def sampler(seed: int = 0, tokens: np.ndarray = TEXT, beginning: int = BEGINNING) -> Sampler:
    return Sampler(tokens, VOCABULARY, beginning, seed)


def phase(length: int = 23, batch: int = 5, **shares: Any) -> Phase:
    none = {"repeated_tokens": 0.0, "repeated_passages": 0.0}
    period = shares.pop("period", (3, 7))
    return Phase(length=length, batch=batch, period=period, **{**none, **shares})


MIXED = phase(repeated_tokens=0.3, repeated_passages=0.3, recalled_pairs=0.2)


def test_the_same_seed_and_position_give_the_same_batches() -> None:
    one, two = sampler(7), sampler(7)
    first = [one.draw(MIXED) for _ in range(5)]
    for batch in first:
        again = two.draw(MIXED)
        assert np.array_equal(batch.ids, again.ids)
        assert np.array_equal(batch.weights, again.weights)
    other = sampler(8).draw(MIXED)
    assert not np.array_equal(other.ids, first[0].ids)


def test_a_sampler_goes_on_from_its_two_numbers() -> None:
    one = sampler()
    for _ in range(4):
        one.draw(MIXED)
    two = sampler()
    two.position, two.windows = one.position, one.windows
    for _ in range(3):
        assert np.array_equal(one.draw(MIXED).ids, two.draw(MIXED).ids)


def test_windows_of_plain_text() -> None:
    length = 12
    count = len(TEXT) // length  # 8, and one token is left over
    drawn = sampler(3)
    epochs = []
    for _ in range(3):
        rows = [drawn.draw(phase(length, batch=1)).ids[0] for _ in range(count)]
        assert all(row[0] == BEGINNING for row in rows)
        assert all(np.array_equal(np.diff(row[1:]), np.ones(length - 1)) for row in rows)
        starts = sorted(int(row[1]) for row in rows)
        assert np.array_equal(np.diff(starts), np.full(count - 1, length))
        epochs.append([int(row[1]) for row in rows])
    assert len({tuple(epoch) for epoch in epochs}) == 3  # in another order each time
    batch = sampler().draw(phase())
    assert batch.ids.shape == (5, 24)
    assert batch.weights.shape == (5, 23)
    assert np.all(batch.weights == 1)
    assert batch.kinds == Counter(text=5)


def predictable(ids: list[int], period: int) -> list[bool]:
    """Whether each next token is told by an earlier one: a repetition of this period goes on.

    Told by brute force: the token at the place was there a period before, and so was the one that
    the prediction is made from.
    """
    told = []
    for at in range(len(ids) - 1):
        before = at - period
        told.append(before >= 1 and ids[before] == ids[at] and ids[before + 1] == ids[at + 1])
    return told


@pytest.mark.parametrize("surprise", [0.0, 0.25])
def test_random_tokens_count_where_an_earlier_copy_tells_them(surprise: float) -> None:
    wanted = phase(batch=1, repeated_tokens=1.0, surprise=surprise)
    drawn = sampler()
    periods = set()
    for _ in range(40):
        batch = drawn.draw(wanted)
        ids, weights = batch.ids[0].tolist(), batch.weights[0].tolist()
        period = next(p for p in range(3, 8) if ids[1 : 24 - p] == ids[1 + p :])
        periods.add(period)
        # One prediction inside the second copy is made from its first token or later.
        expected = [1.0 if told else surprise for told in predictable(ids, period)]
        assert weights == expected
        assert BEGINNING not in ids[1:]
        assert batch.kinds == Counter(repeated_tokens=1)
    assert periods == {3, 4, 5, 6, 7}


@pytest.mark.parametrize("surprise", [0.0, 0.25])
def test_pairs_come_again_in_another_order(surprise: float) -> None:
    wanted = phase(length=41, batch=1, recalled_pairs=1.0, surprise=surprise, period=(6, 6))
    drawn = sampler()
    orders = set()
    for _ in range(20):
        batch = drawn.draw(wanted)
        ids, weights = batch.ids[0, 1:].tolist(), batch.weights[0].tolist()
        pairs = list(zip(ids[::2], ids[1::2], strict=False))
        told = dict(pairs[:3])
        assert len(told) == 3
        for start in range(0, 18, 3):
            assert dict(pairs[start : start + 3]) == told
        orders.add(tuple(list(told).index(first) for first, _ in pairs[3:6]))
        # What a pair's first token tells, once the pair has been seen.
        assert weights == [1.0 if at >= 6 and at % 2 else surprise for at in range(41)]
        assert BEGINNING not in ids
        assert batch.kinds == Counter(recalled_pairs=1)
    assert len(orders) > 1


def test_passages_repeat_a_stretch_of_the_text_and_count_everywhere() -> None:
    wanted = phase(batch=1, repeated_passages=1.0, period=(6, 6))
    batch = sampler().draw(wanted)
    stretch = batch.ids[0, 1:7]
    assert np.array_equal(np.diff(stretch), np.ones(5))
    assert np.array_equal(batch.ids[0, 1:], np.resize(stretch, 23))
    assert np.all(batch.weights == 1)


def test_kinds_come_in_their_shares() -> None:
    kinds: Counter[str] = Counter()
    drawn = sampler()
    for _ in range(200):
        kinds += drawn.draw(MIXED).kinds
    shares = {kind: number / 1000 for kind, number in kinds.items()}
    expected = {"repeated_tokens": 0.3, "repeated_passages": 0.3, "recalled_pairs": 0.2}
    for kind, share in {**expected, "text": 0.2}.items():
        assert shares[kind] == pytest.approx(share, abs=0.05)  # over three standard deviations


def test_random_tokens_are_uniform_but_for_the_one_that_begins_a_text() -> None:
    drawn = sampler(beginning=2)
    wanted = phase(length=29, batch=50, repeated_tokens=1.0, period=(27, 27))
    ids = np.concatenate([drawn.draw(wanted).ids[:, 1:28].ravel() for _ in range(20)])
    counts = np.bincount(ids, minlength=VOCABULARY)
    assert counts[2] == 0
    others = np.delete(counts, 2)
    expected = len(ids) / (VOCABULARY - 1)
    statistic = float(((others - expected) ** 2 / expected).sum())
    assert abs(statistic - 501) < 5 * (2 * 501) ** 0.5  # χ² of 501 degrees of freedom


@pytest.mark.parametrize("shares", [{}, {"repeated_passages": 1.0, "period": (9, 9)}])
def test_a_text_that_is_too_short_is_refused(shares: dict[str, Any]) -> None:
    short = sampler(tokens=np.arange(8, dtype=np.int32))
    with pytest.raises(UsageError, match="8 tokens, a sequence needs"):
        short.draw(phase(**shares))
