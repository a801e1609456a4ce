"""The legend of maps, shares in three characters, and parts joined by dots."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw.blocks import Block
from attnviz.draw.panels import legend
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import label_text, share
from attnviz.draw.scale import weight_steps
from attnviz.draw.theme import Theme
from attnviz.records import HeadLabel

PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")


def texts(lines: list[list]) -> list[str]:
    return ["".join(segment.text for segment in line) for line in lines]


def said(block: Block) -> str:
    return " ".join(block.plain.split())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, ".00"),
        (0.004, ".00"),
        (0.07, ".07"),
        (0.5, ".50"),
        (0.994, ".99"),
        (0.9999, "1.0"),
        (1.0, "1.0"),
        (1.0000002, "1.0"),
        (-1e-09, ".00"),
    ],
)
def test_a_share_takes_three_characters(value: float, shown: str) -> None:
    assert share(value) == shown


def test_a_trait_is_a_letter_where_its_name_does_not_fit() -> None:
    trait = HeadLabel("duplicate", "D", 0.98, 0.1)
    assert label_text(trait, 13) == "duplicate .98"
    assert label_text(trait, 12) == "D .98"


@pytest.mark.parametrize("theme", [PLAIN, ASCII])
@pytest.mark.parametrize("room", [20, 33, 80])
def test_parts_are_joined_while_they_fit(theme: Theme, room: int) -> None:
    parts = ["one", "two words", "a sentence that is much longer than a line", "end", "x" * 90]
    lines = texts(wrapped([(part, False) for part in parts], room, theme))
    assert all(cell_len(line) <= room for line in lines)
    whole = " ".join(lines).replace(theme.dot, " ").split()
    assert whole[:-1] == " ".join(parts[:-1]).split()
    assert whole[-1] == "x" * (room - 1) + theme.ellipsis if room < 90 else "x" * 90


def test_the_legends_samples_have_the_colours_of_their_weights() -> None:
    line = legend(Theme(), 80).lines[0]
    samples = [
        (float(before.text), cell.style)
        for before, cell in itertools.pairwise(line)
        if re.fullmatch(r"[\d.]+ ", before.text)
    ]
    assert [weight for weight, _ in samples] == [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1]
    for weight, style in samples:
        step = int(weight_steps(np.array(weight)))
        assert style == Theme().cells(step, 2).style


@pytest.mark.parametrize("theme", [PLAIN, ASCII])
def test_the_legends_glyphs_start_where_it_says(theme: Theme) -> None:
    shown = re.findall(r"(\S)\1 from ([\d.]+)", legend(theme, 200).plain)
    assert "".join(glyph for glyph, _ in shown) == theme.ramp
    for glyph, start in shown:
        weight = float(start)
        near = {theme.glyph(int(s)) for s in weight_steps(np.array([weight, weight + 0.006]))}
        assert glyph in near
        if weight:
            below = int(weight_steps(np.array(weight - 0.006)))
            assert theme.ramp.index(theme.glyph(below)) < theme.ramp.index(glyph)


@pytest.mark.parametrize("theme", [Theme(), Theme(ascii=True, encoding="ascii"), PLAIN, ASCII])
@pytest.mark.parametrize("room", [20, 40, 80, 300])
def test_the_legend_fits(theme: Theme, room: int) -> None:
    block = legend(theme, room)
    assert max(map(cell_len, block.plain.split("\n"))) <= room
    assert all(block.lines)
    assert not theme.ascii or block.plain.isascii()
    assert "weight" in block.plain
    assert not theme.colour or "colour: " in block.plain


def test_values_below_a_hundredth_are_explained() -> None:
    assert "· below .005" in said(legend(PLAIN, 80, values=True))
    assert ". below .005" in said(legend(ASCII, 80, values=True))
    assert "below .005" not in said(legend(PLAIN, 80))
