"""Whole screens of ``attnviz scaling``, and what must hold of each of them."""

import re
from typing import Any

import pytest

from attnviz.draw.terminal import first_screen, terminal_block
from attnviz.draw.theme import Theme

from ...first_screens import SIZES, fitting

PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")

SCREENS: dict[str, tuple[str, Theme, int, dict[str, Any]]] = {
    "random_80": ("random_report", PLAIN, 80, {"hints": True}),
    "random_80_ascii": ("random_report", ASCII, 80, {"explain": True}),
    "heads_100": ("head_report", PLAIN, 100, {"hints": True}),
    "layer_80": ("layer_report", PLAIN, 80, {"explain": True}),
}


def screen_of(report, theme, room, *wish, **more):
    return terminal_block(report.document(*wish, **more), theme, room)


def draw(name, request):
    fixture, theme, width, options = SCREENS[name]
    return screen_of(request.getfixturevalue(fixture), theme, width, **options).plain


@pytest.mark.parametrize("name", SCREENS)
def test_golden(name, request, golden):
    golden(name, draw(name, request))


def test_a_model_of_many_heads_shows_the_extremes(head_report):
    screen = screen_of(head_report, PLAIN, 120).plain
    gains = {
        head_report.name(case): case.scaled.measures["normalised_entropy"].value
        - case.plain.measures["normalised_entropy"].value
        for case in head_report.cases
    }
    ranked = sorted(gains, key=lambda name: gains[name])
    drawn = re.findall(r"^(L\dH\d) · d_k 32", screen, re.MULTILINE)
    assert drawn == [ranked[-1], ranked[0]]
    assert len(re.findall(r"^L1H\d .* → ", screen, re.MULTILINE)) >= 8
    assert "[red]mat[/]" in screen


def queries_above(report, side):
    return [getattr(case, side).measures["queries_above"].value for case in report.cases]


def test_the_finding_is_the_share_of_queries(random_report, head_report):
    last = queries_above(random_report, "plain")[-1]
    assert queries_above(random_report, "scaled")[-1] == 0
    assert random_report.document().finding == (
        f"Without 1/√d_k, {100 * last:.0f}% of queries put > .9 on one key at d_k = 512; with "
        "it, none."
    )
    mean = {side: sum(queries_above(head_report, side)) / 8 for side in ("plain", "scaled")}
    assert head_report.document().finding == (
        f"Without 1/√d_k, {100 * mean['plain']:.0f}% of queries put > .9 on one key on average "
        "over 8 heads; with it, none."
    )
    assert mean["scaled"] == 0


@pytest.mark.parametrize(("columns", "lines"), SIZES)
@pytest.mark.parametrize("name", ["random_report", "one_report", "head_report", "layer_report"])
def test_the_first_screen_fits(name, columns, lines, request):
    document = request.getfixturevalue(name).document(hints=True)
    shown = fitting(document, PLAIN, columns, lines)
    assert not any("--full" in line for line in shown[:-1])


@pytest.mark.parametrize(("columns", "lines"), SIZES[:2])
@pytest.mark.parametrize("name", ["random_report", "head_report"])
def test_first_screens(name, columns, lines, request, golden):
    document = request.getfixturevalue(name).document(hints=True)
    shown = first_screen(document, PLAIN, columns, lines - 1)
    golden(f"first_{name.removesuffix('_report')}_{columns}", shown.plain)
