"""The sentences of a sweep: every number re-computed by hand, the doubt where it belongs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from attnviz.learn.sweep.findings import details, finding, nats, paired_p
from attnviz.learn.sweep.records import SweepReport

Sweeps = Callable[..., SweepReport]


def by_simulation(differences: list[float]) -> float:
    """The p-value as the share of means of normal draws that lie as far from 0, by their spread."""
    draws = np.random.default_rng(5).standard_normal(
        (2_000_000 // len(differences), len(differences))
    )

    def t(values: np.ndarray) -> np.ndarray:
        return values.mean(-1) / values.std(-1, ddof=1)

    return float((abs(t(draws)) >= abs(t(np.array(differences)))).mean())


@pytest.mark.parametrize(
    "differences",
    [
        [1.0, 3.0],
        [0.5, -0.25, 0.75],
        [0.1, 0.2, 0.15, 0.4],
        [1.0, 2.0, -1.5, 0.5, 0.25],
        [0.3, 0.2, -0.1, 0.4, 0.1, 0.2],
    ],
)
def test_p_values_against_a_simulation(differences: list[float]) -> None:
    found = paired_p(differences)
    assert found == pytest.approx(by_simulation(differences), abs=0.002)
    assert paired_p([-one for one in differences]) == found


def test_p_values_of_a_textbook() -> None:
    """t tables: 12.706 and 4.303 are the 5 % points of one and two degrees of freedom."""
    for quantile, seeds in ((12.706, 2), (4.303, 3), (2.776, 5), (2.228, 11)):
        spread = np.linspace(-1, 1, seeds)
        shift = quantile * spread.std(ddof=1) / seeds**0.5
        assert paired_p([*(spread + shift)]) == pytest.approx(0.05, abs=1e-4)
    assert paired_p([0.25, 0.25]) == 0
    assert paired_p([0.0, 0.0]) == 1


def test_a_difference_that_every_seed_shows(sweeps: Sweeps) -> None:
    assert finding(sweeps({1: (0.5, 0.75, 0.625), 4: (0.125, 0.25, 0.0)})) == (
        "4 heads reached the lowest held-out loss, 0.125 ± 0.125 nats, and 1 head the highest, "
        "0.625 ± 0.125 (significant, p=0.02 over 3 seeds)."
    )


def test_few_seeds_and_many_pairs_say_little(sweeps: Sweeps) -> None:
    losses = {1: (0.5, 0.75, 0.625), 2: (0.5, 0.5, 0.5), 4: (0.125, 0.25, 0.0)}
    assert "(not significant, p=0.061 over 3 seeds)" in finding(sweeps(losses))
    assert "(not significant, p=0.07 over 2 seeds)" in finding(
        sweeps({1: (0.5, 0.75), 2: (0.0, 0.125)})
    )
    assert finding(sweeps({1: (0.5,), 2: (0.25,)})) == (
        "2 heads reached the lowest held-out loss, 0.250 nats, and 1 head the highest, 0.500 "
        "(needs ≥ 2 seeds)."
    )


def test_what_is_no_better_than_chance_learnt_nothing(sweeps: Sweeps) -> None:
    assert finding(sweeps({1: (2.2, 2.1), 2: (2.15, 2.18)})).startswith(
        "Nothing was learnt in 100 steps (lowest held-out loss 2.150 ± 0.071 nats, chance 2.197)"
    )
    assert "Nothing" not in finding(sweeps({1: (2.2, 2.1), 2: (2.05, 2.07)}))


def test_the_runner_up(sweeps: Sweeps) -> None:
    assert details(sweeps())[0] == (
        "Runner-up: 2 heads 0.062 ± 0.108 nats above 4 heads (not significant, p=1 over 3 seeds)."
    )


def test_who_reached_it(sweeps: Sweeps) -> None:
    assert "Reached 99% accuracy: 2 heads in 1 of 3 seeds, 4 heads in 1 of 3 seeds." in details(
        sweeps()
    )
    lines = details(sweeps({1: (0.5,), 2: (0.25,)}))
    assert "Reached 99% accuracy: none within 100 steps." in lines
    report = sweeps()
    unknown = replace(report, task=replace(report.task, best=None))
    assert not any(line.startswith("Reached") for line in details(unknown))


def test_patterns(sweeps: Sweeps) -> None:
    lines = details(sweeps({1: (0.5, 0.75, 0.625), 4: (0.125, 0.25, 0.0)}))
    assert lines[-2] == (
        "Heads: the two differ most in 'what followed before', the best head's attention to it "
        "being .88 with 4 heads and .38 with 1 head."
    )
    assert lines[-1] == (
        "Shared: one head scores highest both for 2 tokens back and for 3 tokens back with "
        "1 head in 3 of 3 seeds and with 4 heads in 0 of 3 seeds."
    )
    lines = details(sweeps({2: (0.5, 0.75, 0.625), 4: (0.125, 0.25, 0.0)}))
    assert not any(line.startswith("Shared") for line in lines)


def test_of_one_seed_each_or_one_count_nothing_is_compared(sweeps: Sweeps) -> None:
    report = sweeps({2: (0.25, 0.0, 0.125)})
    assert finding(report).startswith("2 heads reached a held-out loss of 0.125 ± 0.125 nats")
    assert [line.partition(":")[0] for line in details(report)] == ["Reached 99% accuracy"]
    report = sweeps({1: (0.5, 0.5), 2: (0.25, 0.25)})
    kept = [one for one in report.models if (one.heads, one.seed) in ((1, 1), (2, 0))]
    assert finding(replace(report, models=tuple(kept))).endswith("0.500 (needs ≥ 2 seeds).")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (0.0005, "0.001"),
        (0.00002, "2e-05"),
        (-0.0004, "-4e-04"),
        (2.19722, "2.197"),
    ],
)
def test_losses(value: float, text: str) -> None:
    assert nats(value) == text
