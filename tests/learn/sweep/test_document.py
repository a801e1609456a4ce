"""Whole screens of a sweep, and what they must say whatever the terminal can do.

Golden screens lie in ``golden/``; ``ATTNVIZ_GOLDEN=write`` writes them anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from attnviz.draw.blocks import Block
from attnviz.draw.terminal import first_screen, terminal_block
from attnviz.draw.theme import Theme
from attnviz.learn.sweep.records import SweepReport
from attnviz.learn.train.records import CorpusFacts

from ...first_screens import SIZES, fitting

Sweeps = Callable[..., SweepReport]
Golden = Callable[[str, str], None]


def sweep_screen(
    report: SweepReport, theme: Theme, room: int, hints: bool = False, explain: bool = False
) -> Block:
    return terminal_block(report.document(hints=hints, explain=explain), theme, room)


@pytest.mark.parametrize("room", [60, 100, 140])
def test_golden(sweeps: Sweeps, golden: Golden, room: int) -> None:
    theme = Theme(colour=False)
    golden(f"sweep-{room}", sweep_screen(sweeps(), theme, room, ("next: more",)).plain)


def test_golden_ascii(sweeps: Sweeps, golden: Golden) -> None:
    theme = Theme(colour=False, ascii=True, encoding="ascii")
    screen = sweep_screen(sweeps(), theme, 90, explain=True).plain
    assert screen.isascii()
    golden("sweep-ascii", screen)


@pytest.mark.parametrize("room", [33, 47, 80, 200])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_wider_than_the_screen(sweeps: Sweeps, room: int, colour: bool) -> None:
    screen = sweep_screen(sweeps(), Theme(colour=colour), room, ("next: more",), explain=True)
    for line in screen.plain.splitlines():
        assert cell_len(line) <= room, line


def test_rows_of_the_table_with_one_seed_or_more(sweeps: Sweeps) -> None:
    lines = sweep_screen(sweeps(), Theme(colour=False), 140).plain.splitlines()
    rows = {line.partition("  ")[0]: line.split()[-8:] for line in lines}
    assert rows["4 heads"] == ["0.062", "0.062", "96.9%", "3.1%", "8", "16.0", "15,136", "3"]
    assert rows["1 head"] == ["0.625", "0.125", "68.8%", "6.2%", "32", "4.0", "15,136", "3"]
    assert "2.197" in rows["chance: 9 letters"]
    assert rows["best possible"][-2:] == ["0.000", "100.0%"]
    screen = sweep_screen(sweeps({1: (0.5,), 2: (0.25,)}), Theme(colour=False), 120).plain
    assert "±" not in screen
    assert "seed 0" in screen


def test_interruptions_and_other_parameters_are_told(sweeps: Sweeps) -> None:
    report = sweeps({1: (0.5, 0.75), 2: (0.25,)}, notes=("interrupted: 3 of 4 models",))
    screen = sweep_screen(report, Theme(colour=False), 120).plain
    assert "interrupted: 3 of 4 models" in screen
    lines = [line.split() for line in screen.splitlines()]
    assert [line[-1] for line in lines if "15,136" in line][-2:] == ["2", "1"]
    report = sweeps({1: (0.5,), 2: (0.25,)})
    one, two = report.models
    unequal = replace(report, models=(one, replace(two, parameters=17)))
    screen = sweep_screen(unequal, Theme(colour=False), 160).plain
    assert "parameters: 15,136 with 1, 17 with 2 heads" in screen
    assert "for all" not in screen


def test_names_of_a_text_are_harmless(sweeps: Sweeps) -> None:
    report = sweeps()
    text = CorpusFacts(("\x1b[31m[red]\n.txt",), 1000, 1000, "0123456789ab")
    task = replace(report.task, name="text", words="guess", best=None, text=text)
    screen = sweep_screen(replace(report, task=task), Theme(colour=False), 100).plain
    assert "\x1b" not in screen
    assert "[red]" in screen
    assert "its last tenth is held out" in screen


def test_a_cell_has_the_colour_of_its_score(
    sweeps: Sweeps, look: Any, step_of: Callable[[float], int]
) -> None:
    screen = look(sweep_screen(sweeps(), Theme(), 120), 120)
    for name, score in ((".50 L0H0", 0.5), (".90 L0H0", 0.9), (" .07 ", 0.07)):
        y, x = screen.find(name)
        found, _ = screen.cell(y, x)
        assert step_of(score) in found


@pytest.mark.parametrize(("room", "lines"), SIZES)
@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("losses", [{1: (0.5,)}, dict.fromkeys(range(1, 17), (0.5, 0.25))])
def test_a_first_screen_fits(
    sweeps: Sweeps, losses: dict[int, tuple[float, ...]], room: int, lines: int, colour: bool
) -> None:
    report = sweeps(losses, notes=("interrupted: one of many models",))
    document = report.document(hints=True)
    shown = fitting(document, Theme(colour=colour), room, lines)
    assert any("Training loss" in line for line in shown)
    assert shown[-1].endswith("--full: everything")


@pytest.mark.parametrize(("room", "lines"), SIZES)
def test_golden_first_screens(sweeps: Sweeps, golden: Golden, room: int, lines: int) -> None:
    document = sweeps().document(hints=True)
    golden(f"first-{room}", first_screen(document, Theme(colour=False), room, lines - 1).plain)
