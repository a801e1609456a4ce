"""The sentences of a sweep: every number re-computed by hand, the doubt where it belongs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from attnviz.sweep.findings import findings, nats
from attnviz.sweep.records import SweepReport

Sweeps = Callable[..., SweepReport]


def test_a_difference_that_every_seed_shows(sweeps: Sweeps) -> None:
    lines = findings(sweeps({1: (0.5, 0.75, 0.625), 4: (0.125, 0.25, 0.0)}))
    assert lines[0] == (
        "Seen: 4 heads ended with the lowest loss, 0.125 ± 0.125, and 1 head with the highest, "
        "0.625 ± 0.125. Seed by seed the difference is 0.500 ± 0.125; 4 heads ended lower in 3 of "
        "3 seeds: 4.0 times the spread."
    )
    assert not any(line.startswith("Next") for line in lines)


def test_two_seeds_say_little(sweeps: Sweeps) -> None:
    lines = findings(sweeps({1: (0.5, 0.75), 2: (0.0, 0.125)}))
    assert lines[0].endswith(
        "the difference is 0.562 ± 0.088; 2 heads ended lower in 2 of 2 seeds: 6.4 times the "
        "spread, though two seeds say little of a spread."
    )


def test_a_difference_whose_size_depends_on_the_seed(sweeps: Sweeps) -> None:
    lines = findings(sweeps({1: (0.5, 0.25), 2: (0.0, 0.125)}))
    assert (
        "2 heads ended lower in 2 of 2 seeds, but how much lower depends on the seed." in lines[0]
    )


def test_a_difference_that_may_be_chance(sweeps: Sweeps) -> None:
    lines = findings(sweeps({1: (0.5, 0.25), 2: (0.125, 0.375)}))
    assert "1 of 2 seeds: which is lower depends on the seed, so the difference" in lines[0]


def test_equal_losses_are_no_difference(sweeps: Sweeps) -> None:
    lines = findings(sweeps({1: (0.5, 0.5), 2: (0.5, 0.5)}))
    assert "0.000 ± 0.000" in lines[0]
    assert "lower in 0 of 2 seeds: which is lower depends" in lines[0]


def test_the_same_difference_in_every_seed(sweeps: Sweeps) -> None:
    lines = findings(sweeps({1: (0.5, 0.75), 2: (0.25, 0.5)}))
    assert lines[0].endswith(
        "Seed by seed the difference is 0.250 ± 0.000; 2 heads ended lower in 2 of 2 seeds."
    )


def test_one_seed_proves_nothing(sweeps: Sweeps) -> None:
    lines = findings(sweeps({1: (0.5,), 2: (0.25,)}))
    assert "ended with the lowest loss, 0.250, and" in lines[0]
    assert "from one seed: without a second one nobody can say" in lines[0]


def test_the_runner_up(sweeps: Sweeps) -> None:
    lines = findings(sweeps())
    assert lines[1] == (
        "Next: 2 heads. Seed by seed the difference is 0.062 ± 0.108; 4 heads ended lower in 1 of "
        "3 seeds: which is lower depends on the seed, so the difference may be chance."
    )


def test_who_solved_it(sweeps: Sweeps) -> None:
    assert (
        "Solved (99% right or more): 1 head in 0 of 3 seeds, 2 heads in 1 of 3 seeds, 4 heads in 1 "
        "of 3 seeds, 8 heads in 0 of 3 seeds." in findings(sweeps())
    )
    lines = findings(sweeps({1: (0.5,), 2: (0.25,)}))
    assert "Solved (99% right or more): by none within 100 steps." in lines


def test_nobody_solves_what_has_no_known_best(sweeps: Sweeps) -> None:
    report = sweeps()
    unknown = replace(report, task=replace(report.task, best=None))
    assert not any(line.startswith("Solved") for line in findings(unknown))


def test_patterns(sweeps: Sweeps) -> None:
    lines = findings(sweeps({1: (0.5, 0.75, 0.625), 4: (0.125, 0.25, 0.0)}))
    assert lines[-2] == (
        "Heads: the two differ most in 'what followed before', where the best head has .88 of its "
        "attention with 4 heads and .38 with 1 head."
    )
    assert lines[-1] == (
        "Shared: 2 tokens back and 3 tokens back are looked at most by one and the same head with "
        "1 head in 3 of 3 seeds and with 4 heads in 0 of 3 seeds."
    )


def test_nothing_is_said_where_nobody_shares(sweeps: Sweeps) -> None:
    lines = findings(sweeps({2: (0.5, 0.75, 0.625), 4: (0.125, 0.25, 0.0)}))
    assert not any(line.startswith("Shared") for line in lines)


def test_alone(sweeps: Sweeps) -> None:
    lines = findings(sweeps({2: (0.25, 0.0, 0.125)}))
    assert lines[0].startswith("Seen: 2 heads ended at a loss of 0.125 ± 0.125; there is no other")


def test_models_of_other_seeds_are_not_compared(sweeps: Sweeps) -> None:
    report = sweeps({1: (0.5, 0.5), 2: (0.25, 0.25)})
    kept = [one for one in report.models if (one.heads, one.seed) in ((1, 1), (2, 0))]
    lines = findings(replace(report, models=tuple(kept)))
    assert "No seed was trained with both" in lines[0]


@pytest.mark.parametrize("heads", [1, 2])
def test_every_sentence_begins_with_a_word_and_a_colon(sweeps: Sweeps, heads: int) -> None:
    for line in findings(sweeps({heads: (0.5,), 4: (0.25,)})):
        assert line.partition(":")[0].partition(" ")[0].isalpha()


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
