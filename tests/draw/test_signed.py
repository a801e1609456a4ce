"""Values of either sign: every outlet shows sign and size, and a grid keeps all of its layers."""

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw.document import Document, Group, Map, Maps, Note
from attnviz.draw.figure import document_drawing
from attnviz.draw.maps import pool_signed
from attnviz.draw.markdown import part_markdown
from attnviz.draw.numbers import NumberScale
from attnviz.draw.palette import DIVERGING, colour_table, paper_table, to_hex
from attnviz.draw.panels import maps_block
from attnviz.draw.signed import signed_grid, signed_scale
from attnviz.draw.svg import svg_document
from attnviz.draw.terminal import first_screen
from attnviz.draw.theme import Theme
from attnviz.records import Tokens

PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")
VALUES = np.array([[0.5, -2.0, 8.0], [-8.0, np.nan, 0.0]])
STEPS = [[159, 64, 255], [0, None, 128]]
"""By hand: 127.5 (1 ± √(|value| / 8)), rounded; NaN is blank."""


def tokens(*texts):
    return Tokens(tuple(range(len(texts))), texts, (False,) * len(texts))


def signed_maps(weights=VALUES, limit=8.0, **more):
    axes = tokens("a", "b"), tokens("the", "cat", "sat")
    return Maps([Map("L0H0", weights, *axes, limit=limit)], scale=None, **more)


def grid(layers, heads, limit=8.0):
    values = np.random.default_rng(5).uniform(-limit, limit, (layers, heads))
    values[0, 0] = limit
    rows, columns = [f"L{layer}" for layer in range(layers)], [f"H{head}" for head in range(heads)]
    found = {
        (layer, head): float(values[layer, head])
        for layer in range(layers)
        for head in range(heads)
    }
    return signed_grid(rows, columns, found, NumberScale(limit))


def document(groups):
    return Document("", "", groups, finding="F.", heading=[("H", True)], first=lambda *_: groups)


def lines_of(block):
    return block.plain.splitlines()


def colours(step):
    return "default" if step is None else to_hex(colour_table(DIVERGING)[step])[1:]


@pytest.mark.parametrize("small", [None, (2, 6)])
def test_a_cell_has_the_colour_of_its_sign_and_root(look, small):
    screen = look(maps_block(signed_maps(small=small), Theme(), 40), 40)
    found = [[cell.bg for cell in row if cell.bg != "default"] for row in screen.rows]
    drawn = [list(dict.fromkeys(row)) for row in found if row]
    assert drawn == [[colours(step) for step in row if step is not None] for row in STEPS]


@pytest.mark.parametrize(("theme", "rows"), [(PLAIN, ["░=█", "≡·"]), (ASCII, [":=#", "%."])])
def test_without_colour_a_glyph_has_sign_and_size(theme, rows):
    drawn = lines_of(maps_block(signed_maps(), theme, 80))[-2:]
    assert ["".join(dict.fromkeys(line[2:].replace(" ", ""))) for line in drawn] == rows


def test_values_stand_in_cells_with_their_sign():
    for factor, rows in (
        (1.0, ["+0.5 -2.0 +8.0", "-8.0 0.0"]),
        (10.0, ["+5.0 -20.0 +80.0", "-80.0 0.0"]),
        (1e-4, ["+.05 -.20 +.80", "-.80 .00"]),
    ):
        shown = signed_maps(VALUES * factor, 8.0 * factor, values=True)
        drawn = lines_of(maps_block(shown, PLAIN, 80))[-2:]
        assert [" ".join(line[1:].split()) for line in drawn] == rows


def test_pooled_it_keeps_the_largest_size_and_its_sign():
    values = np.array([[0.5, -2.0, 1.0, np.nan], [1.5, 0.0, -1.0, np.nan]])
    np.testing.assert_array_equal(pool_signed(values, (2, 2)), [[-2.0, 1.0]])
    np.testing.assert_array_equal(pool_signed(values[:, 3:], (2, 1)), [[np.nan]])


def test_markdown_and_pictures_have_the_signs():
    text = part_markdown(signed_maps(VALUES * 1e-4, 8e-4))
    assert "**L0H0** ×1e-3" in text
    rows = ["| a | +0.050 | -0.200 | +0.800 |", "| b | -0.800 |  | 0.000 |"]
    assert text.splitlines()[-2:] == rows
    for small in (None, (4, 13)):
        drawing = document_drawing(document([Group([signed_maps(small=small)])]))
        picture = svg_document(drawing, "viridis")
        for step in {step for row in STEPS for step in row} - {None}:
            assert to_hex(paper_table(DIVERGING)[step]) in picture


@pytest.mark.parametrize(("theme", "limit"), [(Theme(), 0.03), (PLAIN, 0.8), (ASCII, 26.0)])
def test_twelve_layers_of_twelve_heads_keep_their_numbers_in_80_columns(theme, limit):
    shown = grid(12, 12, limit)
    head, *rows = lines_of(first_screen(document([Group([shown])]), theme, 80, 24))[3:]
    assert head.split() == list(shown.columns)
    assert len(rows) == 12
    for layer, row in enumerate(rows):
        for column in range(12):
            _, text, row = row.partition(shown.cells[layer, column].text)
            assert text


@pytest.mark.parametrize(("layers", "heads"), [(24, 32), (32, 32), (33, 7), (28, 70)])
def test_a_deep_grid_has_two_layers_a_line_and_loses_none(look, layers, heads):
    shown = grid(layers, heads)
    groups = [Group([shown]), Group([Note("what yields")], yields=1)]
    block = first_screen(document(groups), Theme(), 80, 24)
    assert len(block.lines) <= 24
    assert max(map(cell_len, lines_of(block))) <= 80
    screen = look(block, 80)
    rows = [row for row in screen.rows if any(cell.data in "▀▄" for cell in row)]
    for pair, row in enumerate(rows):
        cells = [cell for cell in row if cell.data in "▀▄"]
        wide = len(cells) // heads
        for half, layer in enumerate((2 * pair, 2 * pair + 1)):
            tints = [shown.cells[layer, head].tint for head in range(heads) if layer < layers]
            drawn = [cell.bg if half else cell.fg for cell in cells[::wide]]
            assert drawn == [colours(tint.step) for tint in tints if tint] or layer == layers
    assert len(rows) == -(-layers // 2)


def test_the_colour_bar_is_symmetric_and_says_its_unit():
    for limit in (0.0, 3.2e-7, 0.4, 17.0, 52000.0):
        scale = NumberScale(limit)
        bar = signed_scale(scale, "logits", "contribution")
        assert bar.words == "logits" + scale.times
        low, *_, high = (text for _, text in bar.ticks)
        assert low.lstrip("-") == high.lstrip("+")
        assert float(high) * 10.0**scale.power == pytest.approx(limit, rel=1e-2)
        assert [place for place, _ in bar.ticks] == [0, 0.25, 0.5, 0.75, 1]
        assert "√|contribution|" in bar.after
