"""Values of one metric are written alike, never as what they are not; ticks are round."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.draw.numbers import NumberScale, round_ticks, short_number


@pytest.mark.parametrize(
    ("limit", "value", "text", "power"),
    [
        (0.532, 0.532, "+0.532", 0),
        (0.532, -0.0004, "0.000", 0),
        (14.05, 3.4, "+3.40", 0),
        (178.0, -44.5, "-44.5", 0),
        (0.053, 0.053, "+0.0530", 0),
        (0.0053, 0.0053, "+5.300", -3),
        (0.00044, 0.00022, "+0.220", -3),
        (0.000099, 0.00005, "+50.00", -6),
        (0.0, 0.0, "0.000", 0),
        (4200.0, 2100.0, "+2.100", 3),
    ],
)
def test_text(limit, value, text, power):
    scale = NumberScale(limit)
    assert (scale.text(value), scale.power) == (text, power)


def test_as_much_as_fits_and_what_rounds_to_zero_has_no_sign():
    fitting = {7: "+0.532", 6: "+0.532", 5: "+.532", 4: "+.53", 3: "+.5", 2: None, 0: None}
    for room, text in fitting.items():
        assert NumberScale(0.532).fitted(0.532, room) == text
    for value in (0.0, 0.0001, -0.0001):
        assert NumberScale(0.532).fitted(value, 6) == "0.000"
        assert NumberScale(0.532).fitted(value, 4) == ".00"
    assert NumberScale(85, signed=False, percent=True).text(12.4) == "12"
    assert NumberScale(3.2, signed=False, percent=True).text(0.61) == "0.6"


@given(st.floats(1e-14, 1e14), st.floats(-1, 1), st.integers(1, 12), st.booleans(), st.booleans())
def test_every_value_fits_where_the_largest_does(limit, share, room, signed, percent):
    scale = NumberScale(limit, signed, percent)
    text = scale.fitted(share * limit if signed else abs(share) * limit, room)
    assert text is None or len(text) <= room + (not signed and share < 0)


@given(st.floats(1e-12, 1e12), st.floats(-1, 1))
def test_a_written_value_reads_back(limit, share):
    scale = NumberScale(limit)
    read = float(scale.text(share * limit)) * 10.0**scale.power
    assert math.isclose(read, share * limit, abs_tol=0.006 * limit)


@pytest.mark.parametrize(
    ("low", "high", "ticks", "digits"),
    [
        (0.0, 5.0, [0, 1, 2, 3, 4, 5], 0),
        (3.31, 8.3, [4, 5, 6, 7, 8], 0),
        (0.0, 0.8, [0, 0.2, 0.4, 0.6, 0.8], 1),
        (7.9, 8.2, [7.9, 8.0, 8.1, 8.2], 1),
        (-30.0, 60.0, [-20, 0, 20, 40, 60], 0),
    ],
)
def test_ticks_by_hand(low, high, ticks, digits):
    found, decimals = round_ticks(low, high)
    assert found == pytest.approx(ticks)
    assert decimals == digits


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(6, 12))
def test_ticks_lie_inside_and_differ_as_written(low, span, most):
    ticks, digits = round_ticks(low, low + span, most)
    assert 2 <= len(ticks) <= most
    slack = 1e-6 * span
    assert all(low - slack <= tick <= low + span + slack for tick in ticks)
    assert len({f"{tick:.{digits}f}" for tick in ticks}) == len(ticks)


def test_short_numbers():
    numbers = (0, 850, 999.6, 40_000, 1_254_000, 24_000_000, 3e9)
    words = ["0", "850", "1 k", "40 k", "1.25 M", "24 M", "3 G"]
    assert [*map(short_number, numbers)] == words
