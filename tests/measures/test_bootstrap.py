"""Intervals, p-values and ranks of means over texts, against values worked out by hand."""

import itertools
import math
import statistics

import numpy as np
import pytest

from attnviz.measures import bootstrap

T_OF_FIVE = 2.77645
"""The 97.5 % quantile of Student's t for four degrees of freedom, from a printed table."""


@pytest.mark.parametrize(
    "values",
    [(-1.0, -0.4, 0.1, 0.5, 1.2), (1.0, 2.0, 4.0, 8.0, 16.0), (0.3, -0.1, 0.2, 0.25, -7.0)],
)
def test_the_ends_are_quantiles_of_every_draw_that_there_is(values):
    """All 3,125 draws of five texts instead of 2,000 of them, between one and two times t."""
    mean, error = statistics.mean(values), statistics.stdev(values) / 5**0.5
    drawn = []
    for draw in itertools.product(values, repeat=5):
        spread = statistics.stdev(draw) / 5**0.5
        drawn.append((statistics.mean(draw) - mean) / (spread or 1e-12))
    drawn.sort()
    low, high = bootstrap.bootstrap_interval(np.array(values)[:, None], 2)
    for reach, places in (
        ((high[0] - mean) / error, [-drawn[round(3125 * share)] for share in (0.037, 0.013)]),
        ((mean - low[0]) / error, [drawn[round(3125 * share)] for share in (0.963, 0.987)]),
    ):
        least, most = (min(max(place, T_OF_FIVE), 2 * T_OF_FIVE) for place in places)
        assert least - 2e-3 <= reach <= most + 2e-3


def test_an_end_that_the_draws_leave_open_is_that_of_student_t():
    """A third of the draws of 0 0 1 0 0 has no spread. Mean .2, standard error .2."""
    low, high = bootstrap.bootstrap_interval(np.array([0.0, 0, 1, 0, 0])[:, None], 0)
    assert [low[0], high[0]] == pytest.approx(
        [0.2 - 0.2 * T_OF_FIVE, 0.2 + 0.2 * T_OF_FIVE], abs=2e-4
    )


@pytest.mark.parametrize("texts", [5, 7, 10])
def test_texts_of_nearly_two_values_have_no_endless_interval(texts):
    """A draw of one value has hardly an error: without a bound 18, 5.5 and 2.7 in the mean.

    The values are 1 or −1 as often and .1 apart; the mean of 1,000 samples.
    """
    rng = np.random.default_rng(texts)
    shape = (texts, 1000)
    values = np.where(rng.random(shape) < 0.5, 1, -1) + 0.1 * rng.standard_normal(shape)
    low, high = bootstrap.bootstrap_interval(values, 0)
    assert (high - low).mean() <= {5: 3.8, 7: 2.5, 10: 1.8}[texts]
    assert ((low <= 0) & (high >= 0)).mean() >= 0.92


def test_what_is_not_finite_has_no_interval_and_leaves_the_others_theirs():
    values = np.random.default_rng(5).standard_normal((7, 3))
    whole = bootstrap.bootstrap_interval(values, 1)
    values[2, 1], values[3, 2] = np.inf, np.nan
    for end, known in zip(bootstrap.bootstrap_interval(values, 1), whole, strict=True):
        assert end[0] == pytest.approx(known[0])
        assert np.isnan(end[1:]).all()


@pytest.mark.parametrize(
    ("texts", "skewed", "least"),
    [(5, False, 0.94), (10, False, 0.94), (5, True, 0.87), (20, True, 0.9)],
)
def test_the_interval_holds_the_mean_as_often_as_it_says(texts, skewed, least):
    """Of 1,000 samples; the percentile bootstrap has .84, .90, .73 and .86."""
    rng = np.random.default_rng(texts)
    values = rng.lognormal(0, 1, (texts, 1000)) if skewed else rng.standard_normal((texts, 1000))
    low, high = bootstrap.bootstrap_interval(values, 0)
    mean = np.exp(0.5) if skewed else 0.0
    assert least <= ((low <= mean) & (mean <= high)).mean() <= 0.975


def test_the_adjusted_p_is_the_share_of_draws_with_a_larger_t():
    """The same 2,000 draws of six texts, written out: each with its own t around the mean."""
    values = np.random.default_rng(7).normal([0.9, 0.1, -0.6, 0.0], 0.7, (6, 4))
    means = [statistics.mean(column) for column in values.T]

    def t(column, centre):
        spread = statistics.stdev(column) / 6**0.5
        return (statistics.mean(column) - centre) / spread if spread > 1e-9 else math.inf

    rng, largest = np.random.default_rng(0), []
    for draw in np.concatenate([rng.multinomial(6, np.full(6, 1 / 6), 100) for _ in range(20)]):
        found = [t(np.repeat(values[:, at], draw).tolist(), means[at]) for at in range(4)]
        largest.append(max(map(abs, found)))
    for place, p in enumerate(bootstrap.adjusted_p(values, 0)):
        own = abs(t(values[:, place].tolist(), 0.0))
        assert p == pytest.approx((1 + sum(each >= own for each in largest)) / 2001, abs=0.002)


@pytest.mark.parametrize(("texts", "skewed"), [(10, True), (20, False)])
def test_chance_alone_finds_something_in_one_of_twenty_models(texts, skewed):
    """24 heads that do nothing, alike by half, over 150 models: 5 % of these name any head."""
    rng = np.random.default_rng(texts)
    values = rng.standard_normal((150, texts, 1)) + rng.standard_normal((150, texts, 24))
    values = np.exp(values) - np.e if skewed else values  # the mean of exp(N(0, 2)) is e
    named = [bool((bootstrap.adjusted_p(values[m], m) <= 0.05).any()) for m in range(150)]
    assert np.mean(named) <= 0.05 + 2 * (0.05 * 0.95 / 150) ** 0.5


def test_what_is_zero_or_no_number_has_no_small_p():
    values = np.random.default_rng(5).standard_normal((8, 3)) + 5
    values[:, 1], values[3, 2] = 0, np.nan
    found = bootstrap.adjusted_p(values, 0)
    assert found[0] < 0.002
    assert found[1] == 1
    assert np.isnan(found[2])


def test_a_p_by_itself_is_the_share_of_all_flips_with_a_larger_sum():
    values = np.random.default_rng(7).normal([0.9, 0.1, -0.6], 0.7, (6, 3))
    values[2, 2] = np.nan
    found = bootstrap.sign_flip_p(values, 0)
    for place in range(2):
        sums = [
            abs(float(values[:, place] @ np.array(signs)))
            for signs in itertools.product((1.0, -1.0), repeat=6)
        ]
        own = abs(values[:, place].sum())
        assert found[place] == pytest.approx(np.mean([each >= own - 1e-9 for each in sums]))
    assert np.isnan(found[2])


def test_q_is_the_least_rate_at_which_a_test_is_named():
    """Of four: .005·4/1 = .02, .01·4/2 = .02, .03·4/3 = .04, .04·4/4 = .04."""
    q = bootstrap.benjamini_hochberg(np.array([0.01, 0.04, np.nan, 0.03, 0.005]))
    assert q[[0, 1, 3, 4]] == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert np.isnan(q[2])
    assert bootstrap.benjamini_hochberg(np.array([0.9, 0.8])) == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 400], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 - 6·4 / (5·24)
        ([1, 1, 2, 2], [1, 1, 2, 2], 1.0),
        ([1, 2, 2, 3], [1, 2, 3, 4], np.sqrt(0.9)),
        ([1, 1], [1, 2], None),
    ],
)
def test_spearman(first, second, expected):
    found = bootstrap.spearman(first, second)
    assert found == (None if expected is None else pytest.approx(expected))


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
    error = math.sqrt(expected * (1 - expected) / bootstrap.DRAWS)
    assert bootstrap.chance_of_largest(changes) == pytest.approx(
        expected, abs=4 * error + 2 / bootstrap.DRAWS
    )


def test_changes_without_a_direction_seldom_beat_chance():
    draw = np.random.default_rng(0)
    found = [bootstrap.chance_of_largest(draw.normal(size=(16, 12))) for _ in range(300)]
    assert (
        sum(each < bootstrap.CHANCE for each in found) <= 15
    )  # 6 expected, 15 at three errors and more
    assert 0.4 < np.mean(found) < 0.6


def test_a_change_of_every_token_beats_chance_and_one_of_one_token_does_not():
    draw = np.random.default_rng(1)
    changes = 0.1 * draw.normal(size=(24, 12))
    everywhere, once = changes.copy(), changes.copy()
    everywhere[5] += 1.0
    once[5, 3] += 12.0
    assert bootstrap.chance_of_largest(everywhere) < bootstrap.CHANCE
    assert bootstrap.chance_of_largest(once) > 0.3


def test_unknown_tokens_are_left_out_and_none_at_all_gives_no_number():
    changes = np.random.default_rng(2).normal(size=(3, 8))
    more = np.hstack([np.full((3, 1), np.nan), changes])
    assert bootstrap.chance_of_largest(more) == bootstrap.chance_of_largest(changes)
    assert math.isnan(bootstrap.chance_of_largest(more[:, :1]))
    assert math.isnan(bootstrap.chance_of_largest(np.zeros((0, 4))))
    assert bootstrap.chance_of_largest(changes[:, :1]) == 1.0
