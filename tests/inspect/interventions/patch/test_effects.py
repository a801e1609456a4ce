"""Effects over pairs, against values worked out by hand and a bootstrap of another kind."""

import math

import numpy as np
import pytest

from attnviz.inspect.interventions.patch.patch import Runs, effects, no_shares, shares

PLACES = [((0, 0),), ((0, 1),), ((1, 0),)]


def runs(pairs, seed=0, factor=0.4):
    """Three patches: one carries ``factor`` of each pair's difference, one a tenth, one nothing."""
    rng = np.random.default_rng(seed)
    base, difference = rng.normal(-4, 1, pairs), rng.uniform(4, 12, pairs)
    noise = rng.normal(0, 0.3, (pairs, 3))
    patched = base[:, None] + difference[:, None] * [factor, 0.1, 0.0] + noise
    control = base[:, None] + difference[:, None] * [factor / 4, 0.1, 0.0] - noise
    return Runs(base, base + difference, patched, control)


def test_one_pair_has_the_effect_of_wang_et_al():
    """(−1 − (−3)) / (5 − (−3)) = .25, (−3 + 3) / 8 = 0, (6 + 3) / 8 = 1.125."""
    one = Runs(*map(np.array, ([-3.0], [5.0], [[-1.0, -3.0, 6.0]], [[-3.0, -2.0, np.nan]])))
    found = effects(one, PLACES, True, True, 0)
    assert [each.share.value for each in found] == pytest.approx([0.25, 0, 1.125])
    assert [each.metric for each in found] == [-1, -3, 6]
    assert [each.share.base_rate for each in found[:2]] == pytest.approx([0, 0.125])
    assert found[2].share.base_rate is None
    assert all(each.share.interval is None and math.isnan(each.q) for each in found)
    assert not any(each.carries for each in found)


def test_over_pairs_it_is_the_ratio_of_the_means():
    """(2 + 1) / (4 + 16), not the mean of 1/2 and 1/16: a pair counts by its difference."""
    two = Runs(*map(np.array, ([0.0, 0.0], [4.0, 16.0], [[2.0], [1.0]], [[0.0], [0.0]])))
    assert effects(two, PLACES[:1], True, False, 0)[0].share.value == pytest.approx(3 / 20)
    values = shares(two, two.patched)
    assert values.mean(axis=0) == pytest.approx([0.15])


def test_the_interval_is_that_of_a_bootstrap_of_the_ratio_itself():
    """Percentiles of the ratios of 4,000 draws of 200 pairs, where both must agree."""
    many = runs(200)
    (found, *_) = effects(many, PLACES, True, False, 0)
    rng = np.random.default_rng(1)
    change, apart = many.patched[:, 0] - many.base, many.source - many.base
    drawn = [change[some].sum() / apart[some].sum() for some in rng.integers(0, 200, (4000, 200))]
    assert found.share.interval == pytest.approx(np.percentile(drawn, (2.5, 97.5)), abs=5e-4)


def test_what_carries_is_above_its_base_rate():
    """The second patch has an effect, and so has any other source in its place."""
    first, second, third = effects(runs(40), PLACES, True, True, 0)
    assert first.carries
    assert not first.share.unclear
    assert first.q < 0.01
    assert not second.share.unclear
    assert not second.carries
    assert second.q > 0.05
    assert third.share.unclear


def test_chance_is_rarely_said_to_carry():
    """300 runs of 20 pairs in which no patch is above its base rate: 5 % may name one."""
    named = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        base, source = rng.normal(-4, 1, 20), rng.normal(4, 1, 20)
        both = [base[:, None] + rng.normal(2, 1, (20, 8)) for _ in range(2)]
        found = effects(
            Runs(base, source, *both), [((0, head),) for head in range(8)], True, False, 0
        )
        named += any(each.carries for each in found)
    assert named / 300 <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5


def test_runs_that_hardly_differ():
    rng = np.random.default_rng(0)
    base = rng.normal(0, 1, 30)
    none = np.zeros((30, 1))

    def why(measured):
        return no_shares(measured, 0.1, "logit_diff", 0)

    assert "95% CI [-" in why(Runs(base, base + rng.normal(0, 1, 30), none, none))
    assert why(runs(30)) == ""
    assert why(Runs(base, base + 0.09, none, none)).endswith("+0.09 logits apart, less than 0.1")
    assert why(Runs(base[:1], base[:1] - 0.2, none[:1], none[:1])) == ""
    assert why(Runs(base * np.nan, base, none, none)).endswith("is no number")
    changed = effects(Runs(base, base, none, none), PLACES[:1], False, False, 0)[0]
    assert math.isnan(changed.share.value)
    assert changed.change == pytest.approx(-base.mean())
