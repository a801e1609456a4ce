"""Whole screens of a sweep, and what they must say whatever the terminal can do.

Golden screens lie in ``golden/``; ``ATTNVIZ_GOLDEN=write`` writes them anew.
"""

from dataclasses import replace

import numpy as np
import pytest

from attnviz.draw.terminal import first_screen, terminal_block
from attnviz.draw.theme import Theme
from attnviz.learn.sweep.screen import finding, paired_p

from ...first_screens import SIZES, fitting
from .conftest import sweeps


def sweep_screen(report, theme, room, hints=False, explain=False):
    return terminal_block(report.document(hints=hints, explain=explain), theme, room)


@pytest.mark.parametrize("room", [60, 100, 140])
def test_golden(golden, room):
    theme = Theme(colour=False)
    golden(f"sweep-{room}", sweep_screen(sweeps(), theme, room, ("next: more",)).plain)


def test_one_seed_has_no_spread():
    screen = sweep_screen(sweeps({1: (0.5,), 2: (0.25,)}), Theme(colour=False), 120).plain
    assert "±" not in screen
    assert "seed 0" in screen


def test_an_interruption_is_told():
    report = sweeps({1: (0.5, 0.75), 2: (0.25,)})
    screen = sweep_screen(report, Theme(colour=False), 120).plain
    assert "interrupted: 3 of 4 models are trained, the others are left out" in screen
    lines = [line.split() for line in screen.splitlines()]
    assert [line[-1] for line in lines if "15,136" in line][-2:] == ["2", "1"]


@pytest.mark.parametrize(("room", "lines"), SIZES)
@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("losses", [{1: (0.5, 0.25)}, dict.fromkeys(range(1, 17), (0.5, 0.25))])
def test_a_first_screen_fits(losses, room, lines, colour):
    report = sweeps(losses)
    document = replace(report, models=report.models[:-1]).document(hints=True)
    shown = fitting(document, Theme(colour=colour), room, lines)
    assert any("Training loss" in line for line in shown)
    assert shown[-1].endswith("--full: everything")


@pytest.mark.parametrize(("room", "lines"), SIZES)
def test_golden_first_screens(golden, room, lines):
    document = sweeps().document(hints=True)
    golden(f"first-{room}", first_screen(document, Theme(colour=False), room, lines - 1).plain)


def test_few_seeds_and_many_pairs_say_little():
    losses = {1: (0.5, 0.75, 0.625), 2: (0.5, 0.5, 0.5), 4: (0.125, 0.25, 0.0)}
    assert "(not significant, p=0.061 over 3 seeds)" in finding(sweeps(losses))
    assert "(not significant, p=0.07 over 2 seeds)" in finding(
        sweeps({1: (0.5, 0.75), 2: (0.0, 0.125)})
    )
    assert finding(sweeps({1: (0.5,), 2: (0.25,)})) == (
        "2 heads reached the lowest held-out loss, 0.250 nats, and 1 head the highest, 0.500 "
        "(needs ≥ 2 seeds)."
    )


def test_what_is_no_better_than_chance_learnt_nothing():
    assert finding(sweeps({1: (2.2, 2.1), 2: (2.15, 2.18)})).startswith(
        "Nothing was learnt in 100 steps (lowest held-out loss 2.150 ± 0.071 nats, chance 2.197)"
    )
    assert "Nothing" not in finding(sweeps({1: (2.2, 2.1), 2: (2.05, 2.07)}))


def test_of_one_seed_each_or_one_count_nothing_is_compared():
    report = sweeps({2: (0.25, 0.0, 0.125)})
    assert finding(report).startswith("2 heads reached a held-out loss of 0.125 ± 0.125 nats")
    report = sweeps({1: (0.5, 0.5), 2: (0.25, 0.25)})
    kept = [one for one in report.models if (one.heads, one.seed) in ((1, 1), (2, 0))]
    assert finding(replace(report, models=tuple(kept))).endswith("0.500 (needs ≥ 2 seeds).")


def test_p_values_of_a_textbook():
    """t tables: 12.706 and 4.303 are the 5 % points of one and two degrees of freedom."""
    for quantile, seeds in ((12.706, 2), (4.303, 3), (2.776, 5), (2.228, 11)):
        spread = np.linspace(-1, 1, seeds)
        shift = quantile * spread.std(ddof=1) / seeds**0.5
        assert paired_p([*(spread + shift)]) == pytest.approx(0.05, abs=1e-4)
        assert paired_p([*(-spread - shift)]) == pytest.approx(0.05, abs=1e-4)
    assert paired_p([0.25, 0.25]) == 0
    assert paired_p([0.0, 0.0]) == 1
