"""Whole screens of ``attnviz scaling``, and what must hold of each of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from attnviz.draw.theme import Theme
from attnviz.scaling.numbers import LABELS, PERCENTS
from attnviz.scaling.records import MEASURES, Estimate, ScalingReport
from attnviz.scaling.screen import scaling_screen
from attnviz.scaling.seen import seen

PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")
HINTS = ("next: --from-model", "--explain reads it for you")

SCREENS: dict[str, tuple[str, Theme, int, dict[str, Any]]] = {
    "random_80": ("random_report", PLAIN, 80, {"hints": HINTS}),
    "random_160": ("random_report", PLAIN, 160, {"explain": True}),
    "random_80_ascii": ("random_report", ASCII, 80, {"explain": True}),
    "random_24": ("random_report", PLAIN, 24, {}),
    "one_sample_150": ("one_report", PLAIN, 150, {}),
    "heads_100": ("head_report", PLAIN, 100, {"hints": HINTS}),
    "layer_80": ("layer_report", PLAIN, 80, {"explain": True}),
}


def draw(name: str, request: pytest.FixtureRequest) -> str:
    fixture, theme, width, options = SCREENS[name]
    return scaling_screen(request.getfixturevalue(fixture), theme, width, **options).plain


@pytest.mark.parametrize("name", SCREENS)
def test_golden(
    name: str, request: pytest.FixtureRequest, golden: Callable[[str, str], None]
) -> None:
    golden(name, draw(name, request))


@pytest.mark.parametrize("name", SCREENS)
def test_the_width_is_kept(name: str, request: pytest.FixtureRequest) -> None:
    screen = draw(name, request)
    assert max(map(cell_len, screen.splitlines())) <= SCREENS[name][2]
    assert all(line == line.rstrip() for line in screen.splitlines())
    assert screen.isascii() or SCREENS[name][1] is not ASCII


@pytest.mark.parametrize("room", [20, 23, 37, 41, 59, 76, 79, 81, 119, 141, 142, 143, 159, 240])
@pytest.mark.parametrize("theme", [PLAIN, ASCII, Theme()])
def test_every_width(
    room: int, theme: Theme, random_report: ScalingReport, head_report: ScalingReport
) -> None:
    for report in (random_report, head_report):
        lines = scaling_screen(report, theme, room, HINTS, explain=True).plain.splitlines()
        assert max(map(cell_len, lines)) <= room


def test_every_printed_number_is_the_reports(random_report: ScalingReport) -> None:
    """Read back from the screen: each measure within what its last digit may round."""
    screen = scaling_screen(random_report, PLAIN, 80).plain
    for place, case in enumerate(random_report.cases):
        part = screen.split("d_k ")[1 + place : 2 + place][0]
        for name in MEASURES:
            line = next(line for line in part.splitlines() if line.startswith(LABELS[name]))
            found = re.findall(r"(\d[\d.]*)(?: ± (\d[\d.]*))?%?(?:, theory (\d+))?", line)[-2:]
            for (value, error, theory), side in zip(found, (case.plain, case.scaled), strict=True):
                factor = 100 if name in PERCENTS else 1
                estimate = side.measures[name]
                digits = len(value.partition(".")[2])
                assert float(value) == pytest.approx(
                    factor * estimate.value, abs=0.5000001 * 10**-digits
                )
                if error:
                    assert float(error) == pytest.approx(
                        factor * (estimate.error or 0), abs=0.5000001 * 10**-digits
                    )
                    assert float(error) > 0
                assert bool(theory) == (name == "score_variance")
                if theory:
                    assert float(theory) == pytest.approx(side.expected_variance)


def bars(screen: str) -> list[list[int]]:
    """The heights of the bars in eighths of a row, of the first pair on screen."""
    levels = " ▁▂▃▄▅▆▇█"
    lines = screen.splitlines()
    foot = next(place for place, line in enumerate(lines) if "< 1e-8" in line)
    starts = [match.start() for match in re.finditer("<", lines[foot])]
    sides = []
    for start in starts:
        rows = [line[start:].ljust(34)[:34] for line in lines[foot - 6 : foot]]
        columns = ["".join(row[at] for row in rows) for at in range(34)]
        heights = [sum(levels.index(mark) for mark in column) for column in columns]
        assert heights.pop(1) == 0
        sides.append(heights)
    return sides


def test_the_bars_are_the_histograms(random_report: ScalingReport) -> None:
    case = random_report.cases[0]
    drawn = bars(scaling_screen(random_report, PLAIN, 80).plain)
    top = max([*case.plain.shares()[1:], *case.scaled.shares()[1:]])
    for heights, side in zip(drawn, (case.plain, case.scaled), strict=True):
        for height, share in zip(heights, side.shares(), strict=True):
            assert height == pytest.approx(min(share / top, 1) * 48, abs=1)
            assert (height > 0) == (share > 0)
    assert max(map(max, drawn)) == 48


def test_sides_have_colours_of_the_palette(random_report: ScalingReport) -> None:
    def colours(palette: str) -> set[str]:
        block = scaling_screen(random_report, Theme(palette), 80)
        return {
            str(segment.style.color)
            for line in block.lines
            for segment in line
            if segment.style is not None and segment.style.color is not None
        }

    assert len(colours("viridis")) == len(colours("magma")) == 2
    assert colours("viridis") != colours("magma")
    assert not any(
        segment.style is not None and segment.style.color is not None
        for line in scaling_screen(random_report, PLAIN, 80).lines
        for segment in line
    )


def changed(report: ScalingReport, place: int, name: str, estimate: Estimate) -> ScalingReport:
    cases = list(report.cases)
    plain = cases[place].plain
    measures = {**plain.measures, name: estimate}
    cases[place] = replace(cases[place], plain=replace(plain, measures=measures))
    return replace(report, cases=tuple(cases))


def test_what_is_said_follows_from_the_numbers(random_report: ScalingReport) -> None:
    said = seen(random_report)
    assert [text.partition(":")[0] for text in said] == ["Seen", "Theory", "Gradient"]
    assert "the variance of the scores rises from" in said[0]
    off = changed(random_report, 2, "score_variance", Estimate(4.0, 0.1))
    assert "falls from" in seen(off)[0]
    assert "at most 5080.0 standard errors" in seen(off)[1]
    near = changed(random_report, 2, "jacobian_norm", Estimate(0.29, 9.0))
    assert "no further apart than chance brings" in seen(near)[2]


def test_a_model_of_many_heads_shows_the_extremes(head_report: ScalingReport) -> None:
    screen = scaling_screen(head_report, PLAIN, 120).plain
    gains = {
        head_report.name(case): case.scaled.measures["normalised_entropy"].value
        - case.plain.measures["normalised_entropy"].value
        for case in head_report.cases
    }
    ranked = sorted(gains, key=lambda name: gains[name])
    drawn = re.findall(r"^(L\dH\d) · d_k 32", screen, re.MULTILINE)
    assert drawn == [ranked[-1], ranked[0]]
    assert len(re.findall(r"^L1H\d +█", screen, re.MULTILINE)) == 8
    assert "[red]mat[/]" in screen
