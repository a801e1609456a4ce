"""Random queries and keys: theory, limits, standard errors, and that blocks change nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnviz.scaling import random_scores
from attnviz.scaling.random_scores import needed_bytes, random_scaling
from attnviz.scaling.records import MEASURES, ScalingReport


@pytest.fixture(scope="module")
def report() -> ScalingReport:
    return random_scaling([64, 3, 512, 16], seq=31, samples=41, seed=5)


def test_variances_are_those_of_theory(report: ScalingReport) -> None:
    assert [case.d_k for case in report.cases] == [3, 16, 64, 512]
    for case in report.cases:
        for side, expected in ((case.plain, case.d_k), (case.scaled, 1)):
            found = side.measures["score_variance"]
            assert side.expected_variance == pytest.approx(expected)
            assert found.error is not None
            assert abs(found.value - expected) < 4 * found.error


def test_without_the_scale_the_gradient_vanishes(report: ScalingReport) -> None:
    """What the command claims, on this draw: more and more queries pass nothing; with it none."""
    plain = [case.plain.measures["queries_vanished"].value for case in report.cases]
    assert plain == sorted(plain)
    assert plain[-1] > 0.4
    assert all(case.scaled.measures["queries_vanished"].value == 0 for case in report.cases)
    entropies = [case.plain.measures["normalised_entropy"].value for case in report.cases]
    assert entropies == sorted(entropies, reverse=True)
    scaled = [case.scaled.measures["normalised_entropy"].value for case in report.cases[1:]]
    assert max(scaled) - min(scaled) < 0.02


def test_one_entry_needs_no_scale() -> None:
    (case,) = random_scaling([1], seq=5, samples=3).cases
    assert case.scaled.scale == 1
    assert case.plain.measures == case.scaled.measures
    assert case.plain.histogram == case.scaled.histogram


def test_wide_heads_tend_to_gaussian_scores() -> None:
    """Two keys: the weights are σ(±x) with x normal of variance 2, integrated here on a grid."""
    (case,) = random_scaling([1024], seq=2, samples=2000, seed=2).cases
    x, step = np.linspace(-14, 14, 20001, retstep=True)
    density = np.exp(-(x**2) / 4) / math.sqrt(4 * math.pi)
    first = 1 / (1 + np.exp(-x))
    expected = {
        "largest_weight": np.maximum(first, 1 - first),
        "jacobian_norm": 2 * first * (1 - first),
        "normalised_entropy": -(first * np.log(first) + (1 - first) * np.log(1 - first))
        / math.log(2),
    }
    for name, values in expected.items():
        found = case.scaled.measures[name]
        wanted = float((values * density).sum() * step)
        assert found.error is not None
        assert abs(found.value - wanted) < 4 * found.error
        assert found.error < 0.01


def test_one_sample_by_hand() -> None:
    (case,) = random_scaling([7], seq=5, samples=1, seed=3).cases
    query, key = np.random.default_rng((3, 7)).standard_normal((2, 5, 7))
    scores = query @ key.T
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    found = case.plain.measures
    assert found["score_variance"].value == pytest.approx(scores.var(ddof=1))
    assert found["largest_weight"].value == pytest.approx(weights.max(1).mean())
    assert all(estimate.error is None for estimate in found.values())
    assert (case.queries, case.weights, sum(case.plain.histogram)) == (5, 25, 25)


def test_standard_errors_are_the_spread_of_means() -> None:
    """Many runs of few samples spread as one of them says."""
    runs = [random_scaling([5], seq=7, samples=20, seed=seed).cases[0] for seed in range(60)]
    for name in ("score_variance", "largest_weight", "jacobian_norm"):
        values = [run.plain.measures[name].value for run in runs]
        said = float(np.mean([run.plain.measures[name].error for run in runs]))
        assert np.std(values, ddof=1) == pytest.approx(said, rel=0.3)


def test_blocks_and_other_sizes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = random_scaling([8, 3], seq=5, samples=11, seed=1)
    monkeypatch.setattr(random_scores, "_BLOCK_CELLS", 3 * 25)
    parts = random_scaling([3], seq=5, samples=11, seed=1)
    for name in MEASURES:
        left, right = (run.cases[0].plain.measures[name] for run in (whole, parts))
        assert left.value == pytest.approx(right.value)
        assert left.error == pytest.approx(right.error)
    assert whole.cases[0].plain.histogram == parts.cases[0].plain.histogram


def test_progress_runs_to_the_end() -> None:
    told: list[float] = []
    random_scaling([2, 5], seq=3, samples=2, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1)


def test_memory_is_counted_before_it_is_taken() -> None:
    import tracemalloc

    tracemalloc.start()
    random_scaling([300], seq=199, samples=4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    counted = needed_bytes([300], 199, 4)
    assert 0.5 * counted < peak < 1.2 * counted
    assert needed_bytes([10**15], 2, 1) > 10**16
    assert needed_bytes([2], 10**9, 1) > 10**18
    assert needed_bytes([2], 2, 10**15) > 10**16
