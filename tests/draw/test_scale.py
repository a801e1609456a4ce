"""The scale of every map."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attnviz.draw.maps import cell_steps, signed_limit, weight_steps


def step(weight):
    return int(weight_steps(np.array(weight)))


def test_steps_by_hand():
    by_hand = {0.0: 0, 1.0: 255, 0.25: 128, 0.01: 26, 1e-6: 0, 2.5: 255, -0.1: 0}
    assert {weight: step(weight) for weight in by_hand} == by_hand


def test_what_is_no_number_is_blank_in_any_shape():
    assert weight_steps(np.array([np.nan, 0.5])).tolist() == [-1, 180]
    assert weight_steps(np.full((2, 3, 5), 0.25, np.float32)).shape == (2, 3, 5)


@given(st.floats(0, 1))
def test_a_step_tells_the_weight_within_half_a_step(weight):
    assert abs((step(weight) / 255) - weight**0.5) <= 0.5 / 255 + 1e-12


def test_the_future_is_not_drawn():
    seen = cell_steps(np.zeros((3, 3)), (1, 1), True) == 0
    assert seen.tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    assert (cell_steps(np.zeros((2, 5)), (1, 1), False) == 0).all()


def test_changes_that_no_screen_shows_have_no_full_colour():
    assert signed_limit(np.array([np.nan, 1.7e-12, -0.004])) == 1.0
    assert signed_limit(np.array([0.2, -0.3])) == 0.3
