"""The chance of the largest mean change, against all sign patterns and against random changes."""

import itertools
import math

import numpy as np
import pytest

from attnviz.measures.sign_flips import CHANCE, DRAWS, chance_of_largest


def exactly(changes):
    """The share of all patterns of signs with a mean as large as the largest, by plain loops."""
    rows = changes.tolist()
    largest = max(abs(math.fsum(row)) for row in rows)
    reached = patterns = 0
    for signs in itertools.product((-1, 1), repeat=len(rows[0])):
        sums = [abs(math.fsum(s * x for s, x in zip(signs, row, strict=True))) for row in rows]
        reached += max(sums) >= largest - 1e-9
        patterns += 1
    return reached / patterns


@pytest.mark.parametrize(("heads", "tokens", "shift"), [(1, 6, 0.5), (4, 9, 0.0), (6, 10, 1.2)])
def test_draws_come_near_all_patterns_of_signs(heads, tokens, shift):
    changes = np.random.default_rng(heads).normal(size=(heads, tokens))
    changes[0] += shift
    expected = exactly(changes)
    error = math.sqrt(expected * (1 - expected) / DRAWS)
    assert chance_of_largest(changes) == pytest.approx(expected, abs=4 * error + 2 / DRAWS)


def test_changes_without_a_direction_seldom_beat_chance():
    draw = np.random.default_rng(0)
    found = [chance_of_largest(draw.normal(size=(16, 12))) for _ in range(300)]
    assert sum(each < CHANCE for each in found) <= 15  # 6 expected, 15 at three errors and more
    assert 0.4 < np.mean(found) < 0.6


def test_a_change_of_every_token_beats_chance_and_one_of_one_token_does_not():
    draw = np.random.default_rng(1)
    changes = 0.1 * draw.normal(size=(24, 12))
    everywhere, once = changes.copy(), changes.copy()
    everywhere[5] += 1.0
    once[5, 3] += 12.0
    assert chance_of_largest(everywhere) < CHANCE
    assert chance_of_largest(once) > 0.3


def test_unknown_tokens_are_left_out_and_none_at_all_gives_no_number():
    changes = np.random.default_rng(2).normal(size=(3, 8))
    more = np.hstack([np.full((3, 1), np.nan), changes])
    assert chance_of_largest(more) == chance_of_largest(changes)
    assert math.isnan(chance_of_largest(more[:, :1]))
    assert math.isnan(chance_of_largest(np.zeros((0, 4))))
    assert chance_of_largest(changes[:, :1]) == 1.0
