"""Values of one metric are written alike, and never as something that they are not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.draw.numbers import NumberScale


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
def test_text(limit: float, value: float, text: str, power: int) -> None:
    scale = NumberScale(limit)
    assert (scale.text(value), scale.power) == (text, power)


@pytest.mark.parametrize(("limit", "value", "text"), [(85, 12.4, "12"), (3.2, 0.61, "0.6")])
def test_percent(limit: float, value: float, text: str) -> None:
    assert NumberScale(limit, signed=False, percent=True).text(value) == text


@pytest.mark.parametrize(
    ("room", "text"),
    [(7, "+0.532"), (6, "+0.532"), (5, "+.532"), (4, "+.53"), (3, "+.5"), (2, None), (0, None)],
)
def test_as_much_as_fits(room: int, text: str | None) -> None:
    assert NumberScale(0.532).fitted(0.532, room) == text


def test_what_rounds_to_zero_has_no_sign() -> None:
    for value in (0.0, 0.0001, -0.0001):
        assert NumberScale(0.532).fitted(value, 6) == "0.000"
        assert NumberScale(0.532).fitted(value, 4) == ".00"


@given(st.floats(1e-14, 1e14), st.floats(-1, 1), st.integers(1, 12), st.booleans(), st.booleans())
def test_every_value_fits_where_the_largest_does(
    limit: float, share: float, room: int, signed: bool, percent: bool
) -> None:
    scale = NumberScale(limit, signed, percent)
    text = scale.fitted(share * limit if signed else abs(share) * limit, room)
    assert text is None or len(text) <= room + (not signed and share < 0)


@given(st.floats(1e-12, 1e12), st.floats(-1, 1))
def test_a_written_value_reads_back(limit: float, share: float) -> None:
    scale = NumberScale(limit)
    read = float(scale.text(share * limit)) * 10.0**scale.power
    assert math.isclose(read, share * limit, abs_tol=0.006 * limit)
