"""Palettes grow brighter with the weight and keep the colours that people know."""

import pytest

from attnviz.draw.palette import (
    DIVERGING,
    PALETTES,
    STEPS,
    colour_table,
    contrasting,
    paper_table,
    to_hex,
)


def luminance(colour):
    """Relative luminance (WCAG 2.1)."""
    linear = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for c in (v / 255 for v in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", ["viridis", "magma", "blues", "grey"])
def test_a_larger_weight_is_never_darker(name):
    table = colour_table(name)
    assert len(table) == STEPS == 256
    bright = [luminance(colour) for colour in table]
    assert bright == sorted(bright)
    assert bright[-1] - bright[0] > 0.6


@pytest.mark.parametrize("name", PALETTES)
def test_ends_and_middles_are_the_anchors(name):
    anchors = PALETTES[name].split()
    table = [to_hex(colour)[1:] for colour in colour_table(name)]
    assert (table[0], table[-1]) == (anchors[0], anchors[-1])
    for place, anchor in enumerate(anchors):
        near = table[round(place * (STEPS - 1) / (len(anchors) - 1))]
        assert all(
            abs(a - b) <= 4 for a, b in zip(bytes.fromhex(near), bytes.fromhex(anchor), strict=True)
        )


def test_ink_can_be_read_on_every_step():
    for name in PALETTES:
        for colour in colour_table(name):
            ink, paper = sorted((luminance(contrasting(colour)), luminance(colour)))
            assert (paper + 0.05) / (ink + 0.05) > 4.5


def test_on_paper_zero_is_white_and_both_signs_grow_darker():
    assert all(part >= 252 for part in paper_table(DIVERGING)[128])
    bright = [luminance(colour) for colour in paper_table(DIVERGING)]
    assert bright[:128] == sorted(bright[:128])
    assert bright[128:] == sorted(bright[128:], reverse=True)
    assert paper_table("magma") == colour_table("magma")
    for step in (40, 215):  # of bars
        assert bright[step] < 0.5


def test_hex_and_an_unknown_palette():
    assert to_hex((0, 10, 255)) == "#000aff"
    with pytest.raises(KeyError):
        colour_table("jet")
