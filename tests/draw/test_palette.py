"""Palettes grow brighter with the weight and keep the colours that people know."""

import pytest
from rich.color import Color, ColorSystem

from attnviz.draw import palette
from attnviz.draw.maps import coarse_steps
from attnviz.draw.theme import Theme


def luminance(colour):
    linear = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for c in (v / 255 for v in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", ["viridis", "magma", "blues", "grey"])
def test_a_larger_weight_is_never_darker(name):
    table = palette.colour_table(name)
    assert len(table) == palette.STEPS == 256
    bright = [luminance(colour) for colour in table]
    assert bright == sorted(bright)
    assert bright[-1] - bright[0] > 0.6


@pytest.mark.parametrize("name", palette.PALETTES)
def test_ends_and_middles_are_the_anchors(name):
    anchors = palette.PALETTES[name].split()
    table = [palette.to_hex(colour)[1:] for colour in palette.colour_table(name)]
    assert (table[0], table[-1]) == (anchors[0], anchors[-1])
    for place, anchor in enumerate(anchors):
        near = table[round(place * (palette.STEPS - 1) / (len(anchors) - 1))]
        assert all(
            abs(a - b) <= 4 for a, b in zip(bytes.fromhex(near), bytes.fromhex(anchor), strict=True)
        )


def test_ink_can_be_read_on_every_step():
    for name in palette.PALETTES:
        for colour in palette.colour_table(name):
            ink, paper = sorted((luminance(palette.contrasting(colour)), luminance(colour)))
            assert (paper + 0.05) / (ink + 0.05) > 4.5


def test_on_paper_zero_is_white_and_both_signs_grow_darker():
    assert all(part >= 252 for part in palette.paper_table(palette.DIVERGING)[128])
    bright = [luminance(colour) for colour in palette.paper_table(palette.DIVERGING)]
    assert bright[:128] == sorted(bright[:128])
    assert bright[128:] == sorted(bright[128:], reverse=True)
    assert palette.paper_table("magma") == palette.colour_table("magma")
    for step in (40, 215):  # of bars
        assert bright[step] < 0.5


def test_contrast_begins_the_last_colour_at_a_smaller_weight():
    plain, full = palette.colour_table("blues"), palette.contrasted("blues", 0.25)
    for table in (
        palette.colour_table,
        palette.paper_table,
    ):  # the step of .25 is half of that of 1
        assert table(full)[0] == table("blues")[0]
        assert {*table(full)[128:]} == {table("blues")[255]}
    assert palette.colour_table(full)[64] == plain[128]
    assert Theme(full, colour=False).glyph(128) == Theme(colour=False).glyph(255)


def test_a_terminal_of_256_colours_tells_weights_apart():
    """All its levels differ there, and each is brighter than the one before."""
    levels = sorted(set(coarse_steps("blues-256").tolist()) - {-1})
    shown = [Color.from_rgb(*palette.colour_table("blues-256")[level]) for level in levels]
    few = [colour.downgrade(ColorSystem.EIGHT_BIT).get_truecolor() for colour in shown]
    bright = [luminance(colour) for colour in few]
    assert len(levels) == 15
    assert bright == sorted(set(bright))


def test_hex_and_an_unknown_palette():
    assert palette.to_hex((0, 10, 255)) == "#000aff"
    with pytest.raises(KeyError):
        palette.colour_table("jet")
