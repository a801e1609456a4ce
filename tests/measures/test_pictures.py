"""Measures on pictures equal what is written here pair by pair."""

import math
from math import log

import numpy as np
import pytest

from attnviz.measures import pictures
from attnviz.token_layout import Grid, TokenLayout


def layout(rows, columns, before=("cls",)):
    """A layout of one grid behind some tokens without a place."""
    patches = [(row, column) for row in range(rows) for column in range(columns)]
    places = np.array([(-1, -1)] * len(before) + patches)
    kinds = (*before, *("patch",) * len(patches))
    grid = np.where(places[:, 0] < 0, -1, 0)
    return TokenLayout(kinds, (Grid(0, rows, columns),), grid, places[:, 0], places[:, 1])


def by_pairs(weights, places):
    """The mean over patches of Σ weight · distance / Σ weight, with loops."""
    patches = [at for at in range(len(places)) if places.grid[at] == 0]
    means = []
    for query in patches:
        apart = [
            math.dist(
                (places.row[query], places.column[query]), (places.row[key], places.column[key])
            )
            for key in patches
        ]
        given = [weights[query, key] for key in patches]
        means.append(sum(w * d for w, d in zip(given, apart, strict=True)) / sum(given))
    return sum(means) / len(means)


@pytest.mark.parametrize("blocks", [1, 4])
def test_distances_and_shares_in_blocks_of_rows(blocks):
    places = layout(3, 4, ("cls", "register"))
    weights = np.random.default_rng(0).dirichlet(np.full(14, 0.3), (2, 14))
    sums = pictures.PictureSums(places, heads=2)
    for rows in np.array_split(np.arange(14), blocks):
        sums.add(int(rows[0]), weights[:, rows])
    expected = [by_pairs(head, places) for head in weights]
    np.testing.assert_allclose(sums.distance, expected)
    np.testing.assert_allclose(sums.means, weights[:, 2:].mean(1))


def test_even_attention_has_the_uniform_distance_in_every_order():
    places = layout(4, 4)
    sums = pictures.PictureSums(places, heads=1)
    sums.add(0, np.full((1, 17, 17), 1 / 17))
    assert sums.distance[0] == pytest.approx(pictures.uniform_distance(places))
    np.testing.assert_allclose(sums.shuffled[:, 0], sums.near[0])


def test_a_local_head_is_nearer_than_every_order_and_a_scattered_one_is_not():
    places = layout(5, 5, ())
    apart = np.hypot(*(places.centres()[:, None] - places.centres()[None]).transpose(2, 0, 1))
    near = np.exp(-2 * apart) / np.exp(-2 * apart).sum(-1, keepdims=True)
    order = np.random.default_rng(1).permutation(25)
    sums = pictures.PictureSums(places, heads=2)
    sums.add(0, np.stack([near, near[:, order]]))
    assert (sums.near[0] < sums.shuffled[:, 0]).all()
    assert not (sums.near[1] < sums.shuffled[:, 1]).all()


def test_the_uniform_distance_of_a_vision_transformer_of_16_by_16():
    assert pictures.uniform_distance(layout(16, 16)) == pytest.approx(
        8.3, abs=0.05
    )  # Dosovitskiy et al.


def test_patches_of_two_grids_have_no_distance():
    kinds, numbers = ("patch", "patch"), np.array([0, 1])
    zero = np.zeros(2, np.intp)
    places = TokenLayout(kinds, (Grid(0, 1, 1), Grid(0, 1, 1)), numbers, zero, zero)
    assert np.isnan(pictures.PictureSums(places, 1).distances(np.array([0]))[0, 1])


def test_the_contour_holds_sixty_percent():
    weights = np.array([[0.4, 0.3], [0.2, 0.1]])
    assert pictures.contour(weights) == 0.3
    assert pictures.contour(np.array([np.nan, 1.0])) == 1.0
    assert math.isnan(pictures.contour(np.zeros(3)))


def test_the_largest_part_touches_at_corners():
    weights = np.array([[3.0, 0, 0, 4], [0, 3, 0, 0], [0, 0, 0, 5]])
    assert (
        pictures.largest_part(weights).tolist()
        == (np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0] * 4]) > 0).tolist()
    )
    assert not pictures.largest_part(np.zeros((2, 2))).any()


def test_outlying_norms_are_those_of_patches():
    norms = np.array([99.0, 1, 1, 1, 4.1])
    assert pictures.outlying(norms, layout(2, 2)).tolist() == [4]


def test_the_elbow_is_farthest_from_the_line_between_the_ends():
    assert pictures.elbow(np.array([0.9, 0.0, 0.1, 0.1, 0.5])) == 0.1
    assert pictures.elbow(np.full(4, 0.25)) == 0.25


def test_parts_touch_at_sides_and_corners():
    cells = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 1]], bool)
    parts = pictures.connected(np.stack([cells, ~cells]))
    assert len(np.unique(parts[0])) == 1 + 3
    assert parts[0, 0, 0] == parts[0, 1, 1] != parts[0, 0, 3]
    assert len(np.unique(parts[1])) == 1 + 1
    snake = np.array([[1, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]], bool)
    assert len(np.unique(pictures.connected(snake[None]))) == 1 + 1


def test_spatial_entropy_is_that_of_the_masses_of_the_parts():
    one = np.zeros((4, 4))
    one[1:3, 1:3] = 0.2
    two = np.zeros((4, 4))
    two[0, 0], two[3, 3] = 0.6, 0.2
    hole = two.copy()
    hole[1, 1] = np.nan
    expected = -(0.75 * log(0.75) + 0.25 * log(0.25))
    assert pictures.spatial_entropy(np.stack([one, two, hole])) == pytest.approx(
        [0, expected, expected]
    )
    assert pictures.spatial_entropy(np.zeros((1, 3, 3))) == [0]


def test_one_part_is_less_than_in_random_orders_and_noise_is_not():
    draw = np.random.default_rng(0)
    noise = draw.random((40, 8, 8))
    clear = np.zeros((1, 8, 8))
    clear[0, 2:5, 2:5] = 1
    assert pictures.spatial_entropy(clear) < pictures.shuffled_entropies(clear, 19)
    by_chance = pictures.spatial_entropy(noise) < pictures.shuffled_entropies(noise, 19)
    assert by_chance.mean() <= 0.15


def test_sinks_have_a_large_part_of_their_state_in_a_massive_dimension():
    states = np.full((6, 1000), 0.01, np.float32)
    states[2, 7] = 500.0
    states[4, 7] = 3.0  # large for its token, not massive
    states[5, 9] = 3.0
    found = pictures.activations(states)
    assert found.massive == {7}
    assert found.large == {(2, 7), (4, 7), (5, 9)}
