"""A text coloured token by token, read back from a terminal and from paper."""

import itertools
import math
import re

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw.coloured_text import extremes, scale_block, text_block
from attnviz.draw.document import WEIGHTS, Map, Maps, Scale
from attnviz.draw.drawing import Cells, Label, Tip
from attnviz.draw.labels import width
from attnviz.draw.map_figure import text_figure
from attnviz.draw.maps import weight_steps
from attnviz.draw.markdown import part_markdown
from attnviz.draw.palette import DIVERGING
from attnviz.draw.panels import maps_block
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import label_text, share
from attnviz.draw.theme import Theme
from attnviz.records import HeadLabel, Tokens

COLOUR, PLAIN = Theme(), Theme(colour=False)
ASCII = Theme("viridis", colour=False, ascii=True, encoding="ascii")
PIECES = ("<s>", "Old", " Tom", " saw", " A", "nn", ",", " and", " A", "nn", " saw", " Tom", ".")
BOTH_SIGNS = Scale([(0.0, "-1"), (0.5, "0"), (1.0, "+1")], "nats", palette=DIVERGING)
UNCOLOURED = Theme(colour=False)
UNCOLOURED_ASCII = Theme(colour=False, ascii=True, encoding="ascii")


def text_of(values, pieces=PIECES, limit=1.0, full=1.0):
    special = tuple(piece == "<s>" for piece in pieces)
    tokens = Tokens(tuple(range(len(pieces))), tuple(pieces), special)
    return Map("L0H3", np.array([values]), Tokens((0,), ("",), (True,)), tokens, limit=limit,
               full=full)  # fmt: skip


def test_each_token_has_the_colour_of_its_value(look):
    values = np.linspace(-1, 1, len(PIECES))
    values[0] = np.nan
    shown = look(text_block(text_of(values.tolist()), COLOUR, 70), 70, palette=DIVERGING)
    y, x = shown.find("Old")
    assert "Old Tom saw Ann, and Ann saw Tom." in shown.text(y)
    for label, place in (("Old", 1), ("saw", 3), ("and", 7)):
        _, at = shown.find(label)
        _, back = shown.cell(y, at)
        expected = 127.5 + 127.5 * np.sign(values[place]) * np.sqrt(abs(values[place]))
        if abs(values[place]) < 0.015:
            assert back is None
            continue
        assert min(abs(step - expected) for step in back) <= 1.5
    assert shown.cell(y, x - 1) == (None, None)  # the blank before a word is not coloured


def test_weights_have_the_colours_of_the_reader(look):
    shown = text_of([0.0, 0.02, 0.08, 0.0], ("<s>", "one", " two", " three"), limit=0, full=0.08)
    screen = look(text_block(shown, COLOUR, 40), 40)
    y, x = screen.find("two")
    assert 255 in screen.cell(y, x)[1]
    y, x = screen.find("one")
    assert 128 in screen.cell(y, x)[1]
    y, x = screen.find("three")
    assert screen.cell(y, x) == (None, None)
    assert "highest: two (2) .08 · one (1) .02" in screen.text(1)


@pytest.mark.parametrize("theme", [PLAIN, ASCII])
def test_without_colour_glyphs_tell_sign_and_size(theme):
    shown = text_of([math.nan, 1.0, -1.0, 0.0], ("<s>", "up", " down", " not"))
    above, below = text_block(shown, theme, 40).plain.splitlines()[:2]
    assert above == "  <s> up down not"
    up, down, not_ = ("##", "%%%%", "...") if theme.ascii else ("██", "≡≡≡≡", "···")
    assert below == f"      {up} {down} {not_}"


def test_a_short_text_is_not_cut_and_the_end_of_a_long_one_fills_its_lines():
    """Broken from the beginning the last line of the long one would hold three words."""
    drawn = text_block(text_of([0.5] * len(PIECES)), COLOUR, 80, 3).plain
    assert drawn == "  <s> Old Tom saw Ann, and Ann saw Tom.\n"
    pieces = [f" word{place}" for place in range(10, 21)]
    shown = text_of([0.0] * 10 + [1.0], tuple(pieces))
    (line,) = text_block(shown, COLOUR, 64, lines=1).plain.splitlines()
    assert line.startswith("…")
    assert line.split()[-1] == "word20"
    assert len(line.split()) == 9


def test_the_tokens_that_change_most_are_named():
    values = np.zeros(len(PIECES))
    values[0], values[6], values[9], values[11] = np.nan, 2.5, 0.5, -1.25
    rise, fall = extremes(text_of(values.tolist(), limit=2.5))
    assert rise == ["highest: , (6) +2.50", "A[nn] (9) +0.50"]
    assert fall == ["lowest: Tom (11) -1.25"]
    shown = Maps([text_of(values.tolist(), limit=2.5)], texts=True)
    assert "highest: , (6) +2.50 · A\\[nn\\] (9) +0.50" in part_markdown(shown)
    pieces = ("[CLS]", "un", "##happ", "##y", "cats", "sat")  # which show no blanks
    of_word_pieces = text_of([0.0, 0.0, 0.9, 0.0, 0.5, 0.0], pieces, limit=0.0)
    assert [*extremes(of_word_pieces)] == [["highest: un[happ]y (2) .90", "cats (4) .50"]]


@pytest.mark.parametrize("theme", [COLOUR, PLAIN, ASCII])
@pytest.mark.parametrize("lines", [1, 2, 3, 5])
def test_few_lines_show_the_largest_values(theme, lines):
    pieces = ["<s>", *(f" word{place}" for place in range(300))]
    values = [0.0] * 301
    values[201] = values[203] = 1.0
    drawn = text_block(text_of(values, pieces), theme, 60, lines).plain.splitlines()
    assert len(drawn) <= max(lines, 1 if theme.colour else 2)
    assert any("word200" in line for line in drawn)
    text = [line for line in drawn if "word" in line]
    assert text[0].startswith(theme.ellipsis)
    assert text[-1].endswith(theme.ellipsis)
    assert all(width(line) <= 60 for line in drawn)
    if lines > (2 if theme.colour else 4):
        said = re.fullmatch(r"  tokens (\d+)[–-](\d+) of 301, around the peak", drawn[0])
        words = re.findall(r"word(\d+)", " ".join(text))
        assert [str(int(words[0]) + 1), str(int(words[-1]) + 1)] == [said[1], said[2]]


def test_the_bytes_of_a_character_stand_as_the_character():
    pieces = ("<s>", "<0xEA>", "<0xB0>", "<0x94>", " <0xF0>", "<0x9F>", "<0xFF>", "!")
    block = text_block(text_of([0, 0.1, -0.9, 0.2, 0, 0, 0, 0.3], pieces), PLAIN, 40, 2)
    above, below = block.plain.splitlines()
    assert above == "  <s> 갔 <F0><9F><FF>!"
    assert below.startswith("  ··· ≡≡ ")  # the largest of the three values


@pytest.mark.parametrize("room", [12, 33, 79])
@pytest.mark.parametrize("theme", [COLOUR, PLAIN, ASCII])
def test_it_keeps_within_its_room(room, theme):
    pieces = (*PIECES, " incomprehensibilities" * 3, "한국어", "🙂" * 9)
    values = np.linspace(-1, 1, len(pieces)).tolist()
    for line in text_block(text_of(values, pieces), theme, room).plain.splitlines():
        assert width(line) <= room, line


def test_the_scale_has_a_sample_for_each_tick():
    assert scale_block(BOTH_SIGNS, PLAIN, 80).plain == "nats  ≡≡ -1  ·· 0  ██ +1\n"
    assert scale_block(BOTH_SIGNS, COLOUR, 80).plain == "nats  -1     0     +1\n"


def test_on_paper_a_token_has_its_ground_and_its_value():
    drawing = text_figure(text_of([math.nan, 1.0, 0.0, *[0.25] * 10]))
    (old,) = (item for item in drawing.items if isinstance(item, Label) and item.content == "Old")
    assert old.on.palette == DIVERGING
    cells = [item for item in drawing.items if isinstance(item, Cells)]
    assert len(cells) == 11  # neither what was not measured nor zero
    assert next(item.content for item in drawing.items if isinstance(item, Tip)) == "Old (1): 1"


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


@pytest.mark.parametrize("theme", [UNCOLOURED, UNCOLOURED_ASCII])
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


@pytest.mark.parametrize("theme", [Theme(), UNCOLOURED, UNCOLOURED_ASCII])
def test_the_samples_look_like_their_weights(theme):
    samples = samples_of(theme)
    assert [weight for weight, _ in samples] == [0, 0.05, 0.25, 0.5, 1]
    for weight, cell in samples:
        step = int(weight_steps(np.array(weight)))
        if theme.colour:
            assert cell.style.bgcolor == theme.cells(step, 2).style.bgcolor
        else:
            assert cell.text == theme.glyph(step) * 2 + " "


@pytest.mark.parametrize(
    "theme", [Theme(), Theme(ascii=True, encoding="ascii"), UNCOLOURED, UNCOLOURED_ASCII]
)
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
    assert "· below .005" in said(maps_block(shown, UNCOLOURED, 80))
    assert ". below .005" in said(maps_block(shown, UNCOLOURED_ASCII, 80))
    assert "below .005" not in said(maps_block(shown._replace(values=False), UNCOLOURED, 80))
