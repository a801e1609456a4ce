"""Small maps against a loop: each cell is the share of its block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.draw.maps import cell_steps, small_map, small_map_cells
from attnviz.draw.theme import Theme
from attnviz.records import HeadsReport

sizes = st.integers(1, 17)


@given(sizes, sizes, sizes, sizes, st.booleans())
def test_blank_is_exactly_what_only_the_future_fills(
    queries: int, keys: int, rows: int, columns: int, causal: bool
) -> None:
    steps = cell_steps(np.full((queries, keys), 1 / keys), rows, columns, causal)
    rows, columns = min(rows, queries), min(columns, keys)
    assert steps.shape == (rows, columns)
    for row in range(rows):
        last_query = (row + 1) * queries // rows - 1
        for column in range(columns):
            first_key = column * keys // columns
            assert (steps[row, column] == -1) == (causal and first_key > last_query)


@given(sizes, sizes, sizes, sizes, st.sampled_from(["colour", "plain", "ascii"]))
def test_a_small_map_keeps_its_room(
    queries: int, keys: int, lines: int, columns: int, kind: str
) -> None:
    theme = Theme(colour=kind == "colour", ascii=kind == "ascii")
    block = small_map(np.full((queries, keys), 1 / keys), lines, columns, True, theme)
    assert 1 <= len(block.lines) <= lines
    assert block.width <= columns
    rows, cells = small_map_cells(queries, keys, lines, columns, theme)
    assert block.width in (cells, 2 * cells)
    assert len(block.lines) in (rows, (rows + 1) // 2)


@pytest.mark.parametrize(("lines", "columns"), [(7, 14), (4, 7), (2, 3), (3, 7), (1, 1)])
def test_each_half_block_shows_its_weight(
    reports: Callable[..., HeadsReport],
    look: Callable[..., Any],
    step_of: Callable[[float], int],
    lines: int,
    columns: int,
) -> None:
    weights = reports(causal=False).weights(0, 0)
    n = len(weights)
    block = small_map(weights, lines, columns, False, Theme())
    screen = look(block, 20)
    large = lines >= n and columns >= 2 * n
    rows, cells = (n, n) if large else (min(2 * lines, n), min(columns, n))
    for row in range(rows):
        queries = range(row * n // rows, (row + 1) * n // rows)
        for column in range(cells):
            keys = range(column * n // cells, (column + 1) * n // cells)
            share = np.mean([sum(weights[i, j] for j in keys) for i in queries])
            y, half, x = (row, 0, 2 * column) if large else (row // 2, row % 2, column)
            assert step_of(share) in screen.cell(y, x)[half]
