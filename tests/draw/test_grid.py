"""Grids of heads: every cell keeps its word, whatever the room; rows wrap evenly."""

import re

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw.blocks import DIM
from attnviz.draw.document import Cell, HeadGrid
from attnviz.draw.grid import GridCell, GridPart, draw_part, grid_block
from attnviz.draw.heatmap import Axes, MapPart, map_part
from attnviz.draw.maps import Fit, Place, signed_tint
from attnviz.draw.palette import Tint
from attnviz.draw.theme import Theme

PLAIN = Theme(colour=False, lines=60)
ASCII = Theme(colour=False, ascii=True, encoding="ascii", lines=60)
COLOUR = Theme(lines=60)
SHORT = ["prev", "sink", "self", "next", "dup", "ind", "punc", "subj"]
UNCOLOURED = Theme(colour=False)
COLOURED = Theme()


def grid(layers, heads, *, numbers=False):
    cells = {}
    for layer in range(layers):
        for head in range(heads):
            value = (7 * layer + 3 * head) % 19 / 20
            tint = Tint(200) if (layer + head) % 3 else None
            if numbers:
                value -= 0.4
                text = re.sub(r"0\.", ".", f"{value:+.2f}")
                cells[layer, head] = Cell(value, tint, text)
            else:
                text = f"{value:.2f}"[1:]
                cells[layer, head] = Cell(value, tint, text, SHORT[(layer * 5 + head) % 8])
    rows, columns = [f"L{layer}" for layer in range(layers)], [f"H{head}" for head in range(heads)]
    return HeadGrid(rows, columns, cells)


def lines_of(shown, theme, room):
    lines = grid_block(shown, theme, room).plain.splitlines()
    assert all(cell_len(line) <= room for line in lines)
    assert not theme.ascii or all(line.isascii() for line in lines)
    return lines


@pytest.mark.parametrize("theme", [PLAIN, ASCII, COLOUR])
def test_words_and_numbers_stand_under_their_names(theme):
    shown = grid(6, 4)
    head, *rows = lines_of(shown, theme, 80)
    assert len(rows) == 6
    for (layer, column), cell in shown.cells.items():
        start = head.index(f"H{column}")
        assert rows[layer][start : start + 8] == f"{cell.letter:<4} {cell.text}"


@pytest.mark.parametrize(
    ("layers", "heads", "room", "a_line"),
    [(24, 16, 80, 16), (3, 32, 80, 16), (3, 12, 34, 6), (2, 13, 40, 7), (2, 40, 200, 40)],
)
def test_rows_wrap_evenly(layers, heads, room, a_line):
    shown = grid(layers, heads)
    rows = [line for line in lines_of(shown, PLAIN, room) if line.startswith("L")]
    names = [re.findall(r"[.a-z]+", row) for row in rows]
    words = [[name[:3] for name in row if name[0] != "."] for row in names]
    assert len(words[0]) == a_line
    assert max(map(len, words)) - min(map(len, words)) <= 1
    shortened = [cell.letter[:3] for cell in shown.cells.values()]
    assert [word for row in words for word in row] == shortened
    if a_line < heads:
        assert [row.split()[0] for row in rows[:2]] == ["L0H0", f"L0H{a_line}"]


def test_rows_are_not_wrapped_beyond_the_screen():
    low = Theme(colour=False, lines=24)
    assert len(lines_of(grid(24, 16), low, 80)) == 25
    assert len(lines_of(grid(24, 32), low, 80)) == 25


@pytest.mark.parametrize("theme", [PLAIN, ASCII, COLOUR])
def test_numbers_are_never_cut(theme):
    for room in (30, 45, 60, 80, 120):
        shown = grid(4, 12, numbers=True)
        found = re.findall(r"[+-]\.\d+", "\n".join(lines_of(shown, theme, room)))
        assert found == [cell.text for cell in shown.cells.values()]


def test_rows_by_hand():
    """A glyph beside a signed number is its size, and cells without words are filled."""
    cells = {(0, 0): Cell(-0.9, signed_tint(-0.9, 1), "-.90"), (0, 1): Cell(-0.1, None, "-.10")}
    (_, row) = lines_of(HeadGrid(["L0"], ["H0", "H1"], cells), PLAIN, 40)
    assert row == "L0 █-.90  -.10"
    cells = {(0, 0): Cell(1.0, Tint(9)), (0, 1): Cell(0.0, None, "12")}
    (_, row) = lines_of(HeadGrid(["L0"], ["H0", "H1"], cells), PLAIN, 40)
    assert row == "L0 ███  12"
    cells = {(0, 0): Cell(0.2, Tint(9), ".07"), (0, 1): Cell(0.9, Tint(9), ".90 L0H0")}
    shown = HeadGrid(["back"], ["uniform", "1 head"], cells)
    assert lines_of(shown, PLAIN, 60) == ["      uniform   1 head", "back ░.07      █.90 L0H0"]


def test_what_does_not_matter_is_faint():
    block = grid_block(grid(1, 3), COLOUR, 80)
    _, *cells = [segment for segment in block.lines[1] if segment.text.strip()]
    assert [cell.style == DIM for cell in cells] == [True, False, False]
    plain = lines_of(grid(1, 3), PLAIN, 80)[1]
    assert plain == "L0  prev .00 ░sink .15 ▒self .30"


def part(count, cursor, corner=None):
    names = [f"w{place}" for place in range(count)]
    weights = np.tril(np.random.default_rng(0).random((count, count)))
    weights /= weights.sum(-1, keepdims=True)
    return MapPart(weights, Axes(names, names, causal=True), cursor, corner or Place(0, 0))


def text_of(line):
    return "".join(segment.text for segment in line)


def test_outside_of_the_map_no_cell_is_found():
    picture = map_part(part(6, Place(2, 1)), Fit(2, False, (1, 1)), UNCOLOURED, 10, 60)
    assert picture.whole
    assert picture.left == 0  # the tokens stand on the diagonal
    assert [picture.cell_at(0, 0), picture.cell_at(11, 5)] == [Place(0, 0), Place(5, 5)]
    assert [picture.cell_at(12, 5), picture.cell_at(0, 6), picture.cell_at(-1, 0)] == [None] * 3


@pytest.mark.parametrize("wide", [1, 2, 4])
def test_rows_stay_as_long_as_their_cells_whatever_they_say(wide):
    plan = Fit(wide, False, (1, 1), max(wide // 2, 1))
    picture = map_part(part(30, Place(20, 7)), plan, UNCOLOURED, 12, 24)
    lengths = {cell_len(text_of(line)) for line in picture.lines[1:]}
    assert lengths == {picture.left + min(30, (24 - picture.left) // wide) * wide}


def square(rows, columns, cursor):
    cells = {
        (row, column): GridCell(("prev .85", "prev", "P"), Tint(200), 0.85)
        for row in range(rows)
        for column in range(columns)
    }
    names = [f"L{row}" for row in range(rows)], [f"H{column}" for column in range(columns)]
    return GridPart(*names, cells, cursor, {(0, 0)})


@pytest.mark.parametrize("theme", [COLOURED, UNCOLOURED])
@pytest.mark.parametrize(("cursor", "lines"), [((0, 3), 40), ((15, 7), 8), ((31, 0), 16)])
def test_the_row_of_the_cursor_is_drawn_and_clicks_find_its_cells(theme, cursor, lines):
    shown = square(32, 8, cursor)
    picture = draw_part(shown, theme, lines, 60, focused=True)
    assert len(picture.lines) <= lines
    assert all(cell_len(text_of(line)) <= 60 for line in picture.lines)
    found = {
        place: (x, y)
        for y in range(len(picture.lines))
        for x in range(60)
        if (place := picture.cell_at(x, y)) is not None
    }
    row = cursor[0] - cursor[0] % picture.shared
    x, y = found[row, cursor[1]]
    assert picture.lines[y][0].text.split()[0] == f"L{cursor[0]}"
    assert picture.left <= x < picture.left + 8 * picture.wide
    assert picture.cell_at(picture.left - 1, y) is None
    assert picture.cell_at(x, 0) is None


@pytest.mark.parametrize(
    ("columns", "said"), [(80, "prev .85"), (48, "prev"), (19, "P"), (3 + 8 * 3, "P")]
)
def test_a_cell_has_its_longest_text_that_fits(columns, said):
    shown = square(2, 8, (0, 1))
    picture = draw_part(shown, COLOURED, 10, columns, focused=False)
    below = text_of(picture.lines[2])
    assert below[picture.left :][: picture.wide].strip() == said
    assert "×" in text_of(picture.lines[1])[picture.left :][: picture.wide]
    assert shown.widths() == (3 + 9 * 8, 3 + 5 * 8, 3 + 2 * 8, 3 + 8)
