"""Parts of a map and of a grid around a cursor: what is drawn where, and where a click lands."""

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.draw.grid import GridCell, GridPart, draw_part
from attnviz.draw.heatmap import Axes, MapPart, map_part
from attnviz.draw.maps import Fit, Place
from attnviz.draw.palette import Tint
from attnviz.draw.theme import Theme

PLAIN = Theme(colour=False)
COLOUR = Theme()


def weights(count):
    found = np.tril(np.random.default_rng(0).random((count, count)))
    return found / found.sum(-1, keepdims=True)


def part(count, cursor, corner=None):
    names = [f"w{place}" for place in range(count)]
    return MapPart(weights(count), Axes(names, names, causal=True), cursor, corner or Place(0, 0))


def text_of(line):
    return "".join(segment.text for segment in line)


def test_outside_of_the_map_no_cell_is_found():
    picture = map_part(part(6, Place(2, 1)), Fit(2, False, (1, 1)), PLAIN, 10, 60)
    assert picture.whole
    assert picture.left == 0  # the tokens stand on the diagonal
    assert [picture.cell_at(0, 0), picture.cell_at(11, 5)] == [Place(0, 0), Place(5, 5)]
    assert [picture.cell_at(12, 5), picture.cell_at(0, 6), picture.cell_at(-1, 0)] == [None] * 3


@pytest.mark.parametrize("wide", [1, 2, 4])
def test_rows_stay_as_long_as_their_cells_whatever_they_say(wide):
    plan = Fit(wide, False, (1, 1), max(wide // 2, 1))
    picture = map_part(part(30, Place(20, 7)), plan, PLAIN, 12, 24)
    lengths = {cell_len(text_of(line)) for line in picture.lines[1:]}
    assert lengths == {picture.left + min(30, (24 - picture.left) // wide) * wide}


def grid(rows, columns, cursor):
    cells = {
        (row, column): GridCell(("prev .85", "prev", "P"), Tint(200), 0.85)
        for row in range(rows)
        for column in range(columns)
    }
    names = [f"L{row}" for row in range(rows)], [f"H{column}" for column in range(columns)]
    return GridPart(*names, cells, cursor, {(0, 0)})


@pytest.mark.parametrize("theme", [COLOUR, PLAIN])
@pytest.mark.parametrize(("cursor", "lines"), [((0, 3), 40), ((15, 7), 8), ((31, 0), 16)])
def test_the_row_of_the_cursor_is_drawn_and_clicks_find_its_cells(theme, cursor, lines):
    shown = grid(32, 8, cursor)
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
    shown = grid(2, 8, (0, 1))
    picture = draw_part(shown, COLOUR, 10, columns, focused=False)
    below = text_of(picture.lines[2])
    assert below[picture.left :][: picture.wide].strip() == said
    assert "×" in text_of(picture.lines[1])[picture.left :][: picture.wide]
    assert shown.widths() == (3 + 9 * 8, 3 + 5 * 8, 3 + 2 * 8, 3 + 8)
