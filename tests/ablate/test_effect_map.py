"""The map of both signs, read back from a terminal's screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnviz.ablate.number_scale import NumberScale
from attnviz.ablate.terminal import EffectGrid, effect_map
from attnviz.draw.labels import width
from attnviz.draw.palette import DIVERGING, colour_table
from attnviz.draw.scale import diverging_steps, sign_glyph
from attnviz.draw.theme import Theme

COLOUR, PLAIN = Theme("viridis"), Theme("viridis", colour=False)
VALUES = np.array([[0.8, -0.8, 0.0], [0.2, np.nan, -0.05]])


def grid_of(values: np.ndarray, signed: bool = True, unit: str = "nats") -> EffectGrid:
    rows = [f"L{row}" for row in range(values.shape[0])]
    columns = [f"H{column}" for column in range(values.shape[1])]
    scale = NumberScale(float(np.nanmax(np.abs(values))), signed)
    return EffectGrid(values, rows, columns, scale, unit)


def luminance(colour: tuple[int, int, int]) -> float:
    linear = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for c in (v / 255 for v in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_palette_is_dark_at_zero_and_equally_bright_at_both_ends() -> None:
    bright = [luminance(colour) for colour in colour_table(DIVERGING)]
    assert bright[:128] == sorted(bright[:128], reverse=True)
    assert bright[128:] == sorted(bright[128:])
    assert abs(bright[0] - bright[-1]) < 0.15
    assert bright[127] < 0.02


def test_the_signs_differ_for_the_colour_blind() -> None:
    """Blue against red–green mixtures: the blue channel alone tells them apart at any strength."""
    table = colour_table(DIVERGING)
    for strength in range(20, 128):
        below, above = table[127 - strength], table[128 + strength]
        assert below[2] - below[0] > 15
        assert above[0] - above[2] > 15


@pytest.mark.parametrize(
    ("value", "step"), [(1.0, 255), (-1.0, 0), (0.0, 128), (0.25, 191), (-0.25, 64), (9.0, 255)]
)
def test_steps_follow_the_root(value: float, step: int) -> None:
    assert diverging_steps(np.array([value]), 1.0)[0] == step


def test_no_value_has_no_step() -> None:
    assert diverging_steps(np.array([np.nan, 0.0]), 0.0).tolist() == [-1, 128]


def test_cells_have_the_colour_and_the_value(look: Callable[..., Any]) -> None:
    grid = grid_of(VALUES)
    shown = look(effect_map(grid, COLOUR, 60), 60, palette=DIVERGING)
    for row, name in enumerate(grid.rows):
        y, _ = shown.find(name)
        for column, value in enumerate(grid.values[row]):
            _, x = shown.find(f"H{column}")
            _, back = shown.cell(y, x)
            if np.isnan(value):
                assert back is None
                continue
            expected = 127.5 + 127.5 * np.sign(value) * np.sqrt(abs(value) / 0.8)
            assert back is not None
            assert min(abs(step - expected) for step in back) <= 1.5
    assert "+0.800" in shown.text(1)
    assert "-0.050" in shown.text(2)


@pytest.mark.parametrize("ascii_only", [False, True])
def test_signs_are_told_without_colour(ascii_only: bool) -> None:
    theme = Theme("viridis", colour=False, ascii=ascii_only)
    helps = {sign_glyph(value, 1.0, ascii_only) for value in (0.1, 0.3, 1.0)}
    harms = {sign_glyph(-value, 1.0, ascii_only) for value in (0.1, 0.3, 1.0)}
    assert len(helps) == len(harms) == 3
    assert not helps & harms
    narrow = grid_of(np.tile([[1.0, -1.0, 0.3, -0.3, 0.0]], (2, 8)))
    drawn = effect_map(narrow, theme, 90).plain.splitlines()[1]
    cells = drawn.split()[1:]
    assert cells == [sign_glyph(value, 1.0, ascii_only) for value in narrow.values[0]]


def test_values_stand_where_they_fit() -> None:
    grid = grid_of(np.full((2, 12), -0.123))
    assert effect_map(grid, PLAIN, 120).plain.count("-0.123") == 24
    assert effect_map(grid, PLAIN, 80).plain.count("-.12") == 24
    assert "-.1" not in effect_map(grid, PLAIN, 44).plain


@pytest.mark.parametrize("room", [20, 40, 79, 133])
@pytest.mark.parametrize("heads", [1, 7, 64])
def test_it_keeps_within_its_room(room: int, heads: int) -> None:
    values = np.random.default_rng(heads).normal(size=(3, heads))
    for theme in (COLOUR, PLAIN):
        drawn = effect_map(grid_of(values), theme, room)
        assert max(map(width, drawn.plain.splitlines())) <= room


def test_every_head_is_there_where_a_layer_takes_several_lines() -> None:
    values = np.ones((2, 64))
    drawn = effect_map(grid_of(values), PLAIN, 50).plain
    assert drawn.replace("██", "").count("█") == 128


def test_the_legend_has_the_same_range_both_ways() -> None:
    legend = effect_map(grid_of(VALUES), COLOUR, 120).plain.splitlines()[-1]
    assert legend.index("-0.800") < legend.index("+0.800")
    assert "same range both ways" in legend
    unsigned = effect_map(grid_of(abs(VALUES), signed=False), COLOUR, 120).plain
    assert "-0.8" not in unsigned
    assert "both ways" not in unsigned


def test_a_grid_has_a_name_for_each_row_and_column() -> None:
    with pytest.raises(ValueError, match="expected values of shape"):
        EffectGrid(np.zeros((2, 2)), ["L0"], ["H0", "H1"], NumberScale(1.0), "nats")
