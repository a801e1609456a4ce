"""Localisation heads and sinks by their definitions, on numbers that can be checked on paper."""

from math import log

import numpy as np
import pytest

from attnviz.measures.localisation import activations, elbow, shuffled_entropies, spatial_entropy
from attnviz.measures.pictures import connected


def test_the_elbow_is_farthest_from_the_line_between_the_ends():
    assert elbow(np.array([0.9, 0.0, 0.1, 0.1, 0.5])) == 0.1
    assert elbow(np.full(4, 0.25)) == 0.25


def test_parts_touch_at_sides_and_corners():
    cells = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 1]], bool)
    parts = connected(np.stack([cells, ~cells]))
    assert len(np.unique(parts[0])) == 1 + 3
    assert parts[0, 0, 0] == parts[0, 1, 1] != parts[0, 0, 3]
    assert len(np.unique(parts[1])) == 1 + 1
    snake = np.array([[1, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]], bool)
    assert len(np.unique(connected(snake[None]))) == 1 + 1


def test_spatial_entropy_is_that_of_the_masses_of_the_parts():
    one = np.zeros((4, 4))
    one[1:3, 1:3] = 0.2
    two = np.zeros((4, 4))
    two[0, 0], two[3, 3] = 0.6, 0.2
    hole = two.copy()
    hole[1, 1] = np.nan
    expected = -(0.75 * log(0.75) + 0.25 * log(0.25))
    assert spatial_entropy(np.stack([one, two, hole])) == pytest.approx([0, expected, expected])
    assert spatial_entropy(np.zeros((1, 3, 3))) == [0]


def test_one_part_is_less_than_in_random_orders_and_noise_is_not():
    draw = np.random.default_rng(0)
    noise = draw.random((40, 8, 8))
    clear = np.zeros((1, 8, 8))
    clear[0, 2:5, 2:5] = 1
    assert spatial_entropy(clear) < shuffled_entropies(clear, 19, seed=1)
    by_chance = spatial_entropy(noise) < shuffled_entropies(noise, 19, seed=1)
    assert by_chance.mean() <= 0.15


def test_sinks_have_a_large_part_of_their_state_in_a_massive_dimension():
    states = np.full((6, 1000), 0.01, np.float32)
    states[2, 7] = 500.0
    states[4, 7] = 3.0  # large for its token, not massive
    states[5, 9] = 3.0
    found = activations(states)
    assert found.massive == {7}
    assert found.large == {(2, 7), (4, 7), (5, 9)}
