"""Grids of heads: every cell keeps its word, whatever the room; rows wrap evenly."""

import re

import pytest
from rich.cells import cell_len

from attnviz.draw.blocks import DIM
from attnviz.draw.document import Cell, HeadGrid, Tint
from attnviz.draw.grid import grid_block
from attnviz.draw.maps import signed_tint
from attnviz.draw.theme import Theme

PLAIN = Theme(colour=False, lines=60)
ASCII = Theme(colour=False, ascii=True, encoding="ascii", lines=60)
COLOUR = Theme(lines=60)
SHORT = ["prev", "sink", "self", "next", "dup", "ind", "punc", "subj"]


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
