"""Maps in cells against loops: downsampled by whole numbers, the largest weight is kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.draw.maps import cell_steps, fitted, pool, pooling, small_map, thumbnails_fit
from attnviz.draw.theme import Theme

sizes = st.integers(1, 47)
factors = st.integers(1, 9)
themes = st.sampled_from([Theme(), Theme(colour=False), Theme(colour=False, ascii=True)])


@given(sizes, sizes, factors, factors)
def test_pooling_keeps_the_largest_weight_of_each_block(queries, keys, down, across):
    weights = np.random.default_rng(queries * 31 + keys).random((queries, keys))
    pooled = pool(weights, (down, across))
    assert pooled.shape == (-(-queries // down), -(-keys // across))
    for (row, column), value in np.ndenumerate(pooled):
        block = weights[row * down : (row + 1) * down, column * across : (column + 1) * across]
        assert value == max(block.ravel().tolist())


def test_by_hand():
    """What is no number is no weight, and words say what a cell is."""
    weights = np.array([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]])
    np.testing.assert_array_equal(pool(weights, (2, 2)), [[1, 0], [0.3, 0.5]])
    np.testing.assert_array_equal(pool(weights, (1, 3)), [[1], [0.5], [0.5]])
    assert pool(weights, (1, 1)) is weights
    weights = np.array([[0.5, np.nan, np.nan], [0.25, np.nan, np.nan]])
    np.testing.assert_array_equal(pool(weights, (2, 2)), [[0.5, np.nan]])
    assert pooling((1, 1)) == ""
    assert pooling((3, 3)) == "downsampled 3× (max)"
    assert pooling((1, 2)) == "downsampled 2× over keys (max)"
    assert pooling((4, 2)) == "downsampled 4× over queries, 2× over keys (max)"


@given(sizes, factors, st.booleans())
def test_blank_is_exactly_what_only_the_future_fills(tokens, factor, causal):
    steps = cell_steps(np.full((tokens, tokens), 1 / tokens), (factor, factor), causal)
    for (row, column), step in np.ndenumerate(steps):
        last_query = min((row + 1) * factor, tokens) - 1
        assert (step == -1) == (causal and column * factor > last_query)


@given(sizes, sizes, st.integers(1, 20), st.integers(1, 60), themes)
def test_a_map_fits_and_no_finer_one_does(queries, keys, lines, columns, theme):
    fit = fitted(queries, keys, lines, columns, theme)
    rows = 2 * lines if theme.half_blocks else lines
    down, across = -(-queries // fit.factors[0]), -(-keys // fit.factors[1])
    assert down <= (rows if fit.halves else lines)
    assert across * fit.wide <= max(columns, fit.wide)
    if queries == keys:
        assert fit.factors[0] == fit.factors[1]
        finer = fit.factors[0] - 1
        assert not finer or -(-queries // finer) > min(rows, columns)
    else:
        for size, factor, room in zip((queries, keys), fit.factors, (rows, columns), strict=True):
            assert factor == max(fit.factors) or factor == 1 or -(-size // (factor - 1)) > room // 2


@given(sizes, st.integers(1, 12), st.integers(2, 24), themes)
def test_a_small_map_keeps_its_room(tokens, lines, columns, theme):
    block = small_map(np.full((tokens, tokens), 0.5), lines, columns, True, theme)
    assert 1 <= len(block.lines) <= lines
    assert block.width <= columns


@pytest.mark.parametrize(("lines", "columns"), [(7, 14), (4, 7), (2, 3), (3, 7), (1, 1)])
def test_each_half_block_shows_its_weight(reports, look, step_of, lines, columns):
    weights = reports(causal=False).weights(0, 0)
    n = len(weights)
    screen = look(small_map(weights, lines, columns, False, Theme()), 20)
    large = lines >= n and columns >= 2 * n
    factor = 1 if large else max(-(-n // (2 * lines)), -(-n // columns))
    for row in range(-(-n // factor)):
        for column in range(-(-n // factor)):
            block = weights[row * factor :, column * factor :][:factor, :factor]
            y, half, x = (row, 0, 2 * column) if large else (row // 2, row % 2, column)
            assert step_of(block.max()) in screen.cell(y, x)[half]


def test_thumbnails_are_whole_and_apart_or_not_shown():
    for tokens, rows, across, lines, columns, size in (
        (13, 6, 4, 53, 58, (7, 13)),
        (13, 6, 4, 52, 68, None),
        (13, 6, 4, 54, 57, None),
        (20, 6, 4, 71, 86, (10, 20)),
        (8, 1, 1, 6, 13, (4, 13)),
        (7, 1, 1, 99, 99, None),
        (41, 1, 1, 99, 99, None),
    ):
        assert thumbnails_fit(tokens, rows, across, lines, columns) == size
