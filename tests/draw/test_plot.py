"""Curves read back from the screen: dots where the values are, axes and legend that fit."""

import math
import re

import pytest
from rich.cells import cell_len

from attnviz.draw.document import Curve, Mark, Plot
from attnviz.draw.plot import DOTS_ACROSS, DOTS_DOWN, plot_block
from attnviz.draw.theme import Theme

PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")
COLOUR = Theme()
FALLING = [(float(place), 8.0 - place / 16) for place in range(65)]
"""From 8 to 4."""


def curve_plot(curves, theme, room, **changes):
    plot = Plot(changes.pop("title", ()), curves, changes.pop("across", "tokens"), **changes)
    return plot_block(plot, theme, room)


def canvas(block):
    """What stands behind the vertical axis."""
    walled = [re.match(r"^ *[-\d.]*[▕|](.*)$", line) for line in block.plain.splitlines()]
    return [match[1] for match in walled if match]


def dots(rows):
    """(column, row) of each braille dot, by the standard's numbering."""
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
    return {
        (DOTS_ACROSS * column + right, DOTS_DOWN * row + down)
        for row, line in enumerate(rows)
        for column, glyph in enumerate(line)
        if 0x2800 <= ord(glyph) < 0x2900
        for bit, (right, down) in enumerate(places)
        if (ord(glyph) - 0x2800) >> bit & 1
    }


def test_a_straight_line_is_straight():
    rows = canvas(curve_plot([Curve("a", FALLING)], PLAIN, 69))
    assert len(rows) == 12
    found = dots(rows)
    width = max(column for column, _ in found) + 1
    assert {column for column, _ in found} == set(range(width))
    for column, row in found:
        # The margin is a fiftieth of the span above and below.
        expected = (0.02 + column / (width - 1)) / 1.04 * 48
        assert abs(row - expected) <= 1.5, (column, row)


@pytest.mark.parametrize("theme", [PLAIN, ASCII, COLOUR])
@pytest.mark.parametrize("room", [12, 20, 40, 80, 200])
def test_nothing_is_wider_than_the_room(theme, room):
    curves = [Curve("one of two", FALLING), Curve("\x1b[31mthe [red]other", FALLING, marked=True)]
    block = curve_plot(curves, theme, room, marks=[Mark(20, "a phase"), Mark(40, "another")])
    text = block.plain
    assert max(map(cell_len, text.splitlines())) <= max(room, 12)
    assert "\x1b" not in text
    assert not theme.ascii or text.isascii()
    assert all(line == line.rstrip() for line in text.splitlines())


def test_marked_points_lie_where_they_were_measured():
    points = [(0.0, 8.0), (32.0, 4.0), (64.0, 6.0)]
    rows = canvas(curve_plot([Curve("line", FALLING), Curve("points", points, True)], PLAIN, 69))
    found = [
        (column, row)
        for row, line in enumerate(rows)
        for column, glyph in enumerate(line)
        if glyph == "●"
    ]
    width = max(column for column, _ in found) + 1
    assert sorted(found) == [(0, 0), (width // 2, 11), (width - 1, 6)]


def test_ticks_name_the_rows_and_the_columns():
    text = curve_plot([Curve("a", FALLING)], PLAIN, 80, across="tokens read").plain
    labelled = [float(match[1]) for match in re.finditer(r"^ *([\d.]+)▕", text, re.MULTILINE)]
    assert labelled == [8, 7, 6, 5, 4]
    floor = next(line for line in text.splitlines() if line.endswith("tokens read"))
    assert floor.split()[:3] == ["0", "20", "40"]
    assert floor.index("40") - floor.index("20") == pytest.approx(20 / 64 * 77, abs=1)


def test_the_legend_names_curves_and_phases():
    block = curve_plot(
        [Curve("training", FALLING), Curve("validation", FALLING[::16], True)],
        PLAIN,
        80,
        title=(("Loss", True), ("nats", False)),
        marks=[Mark(16, "phase text")],
    )
    lines = block.plain.splitlines()
    assert lines[0] == "Loss · nats"
    assert lines[-1] == "⠒⠒⠒ training    ●  validation    ┊  phase text from 16 on"
    column = canvas(block)[0].index("┊")
    assert all(line[column : column + 1] not in ("", " ") for line in canvas(block)[:2])


@pytest.mark.parametrize("theme", [PLAIN, ASCII, COLOUR])
def test_many_lines_are_told_apart_by_signs_and_hues(theme):
    """Hues are Okabe and Ito's: no two are close, also not in brightness alone."""
    curves = [
        Curve(f"{heads} heads", [(place, loss + heads) for place, loss in FALLING[::32]])
        for heads in (1, 2, 4, 8)
    ]
    block = curve_plot(curves, theme, 80)
    (legend,) = block.plain.splitlines()[-1:]
    signs = re.findall(r"\S(\S)\S \d heads", legend)
    assert len(set(signs)) == 4
    body = "".join(canvas(block))
    for sign in signs:
        assert body.count(sign) >= 4, sign
    assert "●" not in curve_plot(curves[:1], COLOUR, 80).plain
    block = curve_plot([Curve(f"curve {number}", FALLING) for number in range(4)], COLOUR, 80)
    styles = [segment.style for segment in block.lines[-1] if "⠒" in segment.text]
    hues = [style.color.triplet.hex for style in styles if style and style.color]
    assert hues == ["#56b4e9", "#e69f00", "#009e73", "#cc79a7"]


@pytest.mark.parametrize("theme", [PLAIN, ASCII])
def test_odd_curves_are_drawn(theme):
    for points in (
        [(5.0, 3.0)],
        [(0.0, 3.0)],
        [(1.0, 3.0), (2.0, 3.0)],
        [(1.0, 0.0), (2.0, 0.0)],
        [(1.0, 1e-9), (2.0, 1e-8)],
        [(1.0, 1e6), (2e9, 2e6)],
    ):
        rows = canvas(curve_plot([Curve("odd", points)], theme, 60))
        assert len(rows) == 12
        assert any(row.strip() for row in rows)


def test_noise_is_drawn_as_its_mean():
    noisy = [(place / 100, 5 + (1 if place % 2 else -1)) for place in range(6401)]
    found = dots(canvas(curve_plot([Curve("noise", [*noisy, (64.01, 6.0)])], PLAIN, 69)))
    rows = [row for column, row in found if column < 100]
    middle = 24
    assert all(abs(row - middle) <= 6 for row in rows), math.inf
