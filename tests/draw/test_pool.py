"""Pooled maps against a loop over tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.draw.maps import block_starts, pool, pooling

sizes = st.integers(1, 23)


def blocks(tokens: int, count: int) -> list[list[int]]:
    """Which tokens share a block: token t is in the last block that starts at or before it."""
    members: list[list[int]] = [[] for _ in range(count)]
    for token in range(tokens):
        members[max(b for b in range(count) if b * tokens // count <= token)].append(token)
    return members


def loop_pool(weights: np.ndarray, queries: int, keys: int) -> np.ndarray:
    rows, columns = blocks(weights.shape[0], queries), blocks(weights.shape[1], keys)
    return np.array(
        [
            [np.mean([sum(weights[i, j] for j in column) for i in row]) for column in columns]
            for row in rows
        ]
    )


@given(sizes, sizes)
def test_blocks_cover_each_token_once_and_evenly(tokens: int, count: int) -> None:
    count = min(count, tokens)
    starts = block_starts(tokens, count).tolist()
    sizes_of = np.diff([*starts, tokens])
    assert starts[0] == 0
    assert sizes_of.sum() == tokens
    assert sizes_of.min() >= 1
    assert sizes_of.max() - sizes_of.min() <= 1


@given(sizes, sizes, sizes, sizes)
def test_pooling_equals_the_loop_and_keeps_row_sums(
    rows: int, columns: int, queries: int, keys: int
) -> None:
    queries, keys = min(queries, rows), min(keys, columns)
    weights = np.random.default_rng(rows * 31 + columns).dirichlet(np.ones(columns), size=rows)
    pooled = pool(weights, queries, keys)
    np.testing.assert_allclose(pooled, loop_pool(weights, queries, keys), atol=1e-12)
    np.testing.assert_allclose(pooled.sum(-1), 1)


def test_a_map_with_room_is_left_as_it_is() -> None:
    weights = np.random.default_rng(0).random((3, 5))
    assert pool(weights, 3, 5) is weights
    assert pool(weights, 99, 99) is weights


def test_by_hand() -> None:
    weights = np.array([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0.25, 0.25, 0.25, 0.25]])
    np.testing.assert_array_equal(pool(weights, 2, 2), [[1, 0], [0.25, 0.75]])


def test_a_block_with_a_hole_is_a_hole() -> None:
    weights = np.array([[0.5, np.nan], [0.5, 0.5]])
    assert np.isnan(pool(weights, 1, 2)).tolist() == [[False, True]]


@pytest.mark.parametrize(
    ("tokens", "cells", "said"),
    [
        ((5, 5), (5, 5), None),
        ((400, 300), (160, 80), "pooled: 2.5 queries by 3.8 keys a cell"),
        ((7, 50), (7, 40), "pooled: 1.0 queries by 1.2 keys a cell"),
    ],
)
def test_the_caption_says_what_a_cell_is(
    tokens: tuple[int, int], cells: tuple[int, int], said: str | None
) -> None:
    caption = pooling(tokens, cells)
    if said is None:
        assert caption is None
    else:
        assert caption == f"{said}, summed over keys, mean over queries"
