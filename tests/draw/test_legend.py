"""The legend of maps, shares in three characters, and parts joined by dots."""

import itertools
import math
import re

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw.coloured_text import scale_block
from attnviz.draw.document import WEIGHTS, Map, Maps
from attnviz.draw.maps import weight_steps
from attnviz.draw.panels import maps_block
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import label_text, share
from attnviz.draw.theme import Theme
from attnviz.records import HeadLabel, Tokens

PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")


def texts(lines):
    return ["".join(segment.text for segment in line) for line in lines]


def said(block):
    return " ".join(block.plain.split())


def test_a_share_takes_three_characters():
    for value, shown in (
        *((0.0, ".00"), (0.004, ".00"), (0.07, ".07"), (0.5, ".50"), (0.994, ".99")),
        *((0.9999, "1.0"), (1.0, "1.0"), (1.0000002, "1.0"), (-1e-09, ".00")),
    ):
        assert share(value) == shown


def test_a_label_is_short_where_its_name_does_not_fit():
    label = HeadLabel("duplicate", "D", 0.98, 0.1, "dup", "duplicate token")
    known = label._replace(source="card")
    assert label_text(known, 19) == "duplicate token .98"
    assert label_text(known, 18) == "dup .98"
    assert label_text(label, 27) == "duplicate token .98 here"
    assert label_text(label, 19) == "dup .98 here"
    assert label_text(label, 6) == "dup"
    assert label_text(label._replace(score=math.nan), 19) == "duplicate token"


@pytest.mark.parametrize("theme", [PLAIN, ASCII])
@pytest.mark.parametrize("room", [20, 33, 80])
def test_parts_are_joined_while_they_fit(theme, room):
    parts = ["one", "two words", "a sentence that is much longer than a line", "end", "x" * 90]
    lines = texts(wrapped([(part, False) for part in parts], room, theme))
    assert all(cell_len(line) <= room for line in lines)
    whole = " ".join(lines).replace(theme.dot, " ").split()
    assert whole[:-1] == " ".join(parts[:-1]).split()
    assert whole[-1] == "x" * (room - 1) + theme.ellipsis if room < 90 else "x" * 90


def samples_of(theme):
    line = scale_block(WEIGHTS, theme, 200).lines[0]
    if theme.colour:
        pairs = [(before, after) for before, after in itertools.pairwise(line)]
    else:
        pairs = [(after, before) for before, after in itertools.pairwise(line)]
    return [
        (float(text.text), cell) for text, cell in pairs if re.fullmatch(r"\.?\d+ ?", text.text)
    ]


@pytest.mark.parametrize("theme", [Theme(), PLAIN, ASCII])
def test_the_samples_look_like_their_weights(theme):
    samples = samples_of(theme)
    assert [weight for weight, _ in samples] == [0, 0.05, 0.25, 0.5, 1]
    for weight, cell in samples:
        step = int(weight_steps(np.array(weight)))
        if theme.colour:
            assert cell.style.bgcolor == theme.cells(step, 2).style.bgcolor
        else:
            assert cell.text == theme.glyph(step) * 2 + " "


@pytest.mark.parametrize("theme", [Theme(), Theme(ascii=True, encoding="ascii"), PLAIN, ASCII])
@pytest.mark.parametrize("room", [20, 40, 80, 300])
def test_the_legend_fits(theme, room):
    block = scale_block(WEIGHTS, theme, room)
    assert max(map(cell_len, block.plain.split("\n"))) <= room
    assert all(block.lines)
    assert not theme.ascii or block.plain.isascii()
    assert block.plain.startswith("weight")
    assert room < 80 or len(block.lines) == 1
    told = WEIGHTS._replace(words="share of the weight", after="colour: a sentence of many words")
    assert max(map(cell_len, scale_block(told, theme, 20).plain.split("\n"))) <= 20


def test_values_below_a_hundredth_are_explained():
    tokens = Tokens((0,), ("a",), (False,))
    shown = Maps([Map("L0H0", np.ones((1, 1)), tokens, tokens)], values=True)
    assert "· below .005" in said(maps_block(shown, PLAIN, 80))
    assert ". below .005" in said(maps_block(shown, ASCII, 80))
    assert "below .005" not in said(maps_block(shown._replace(values=False), PLAIN, 80))
