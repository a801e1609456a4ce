"""Round numbers for axes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.draw.numbers import round_ticks, short_number


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
def test_ticks_by_hand(low: float, high: float, ticks: list[float], digits: int) -> None:
    found, decimals = round_ticks(low, high)
    assert found == pytest.approx(ticks)
    assert decimals == digits


@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e6),
    st.integers(6, 12),
)
def test_ticks_lie_inside_and_differ_as_written(low: float, span: float, most: int) -> None:
    ticks, digits = round_ticks(low, low + span, most)
    assert 2 <= len(ticks) <= most
    slack = 1e-6 * span
    assert all(low - slack <= tick <= low + span + slack for tick in ticks)
    assert len({f"{tick:.{digits}f}" for tick in ticks}) == len(ticks)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"),
        (850, "850"),
        (999.6, "1 k"),
        (40_000, "40 k"),
        (1_254_000, "1.25 M"),
        (24_000_000, "24 M"),
        (3e9, "3 G"),
    ],
)
def test_short_numbers(number: float, words: str) -> None:
    assert short_number(number) == words
