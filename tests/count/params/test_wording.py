"""Numbers as people write them, against fractions."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.count.params.wording import bytes_text, count, factor, operations, percentage, short

SCALES = {"": 0, "k": 1, "M": 2, "B": 3, "T": 4}
naturals = st.integers(0, 10**40)
positives = st.integers(1, 10**40)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (count(10**30 + 1), "1,000,000,000,000,000,000,000,000,000,001"),
        (percentage(1, 3), "33.3%"),
        (percentage(1, 10_000), "<0.1%"),
        (percentage(5, 10_000), "0.1%"),
        (percentage(0, 7), "0.0%"),
        (percentage(0, 0), "–"),
        (short(0), "0"),
        (short(1000), "1 k"),
        (short(1234), "1.23 k"),
        (short(99_999), "100.0 k"),
        (short(999_999), "1 M"),
        (short(137_438_953_472), "137.4 B"),
        (short(10**21), "1.00e21"),
        (short(9_999_999 * 10**20), "1.00e27"),
        (bytes_text(1), "1 byte"),
        (bytes_text(999_999), "999,999 bytes"),
        (bytes_text(1_342_177_280), "1.34 GB"),
        (factor(8, 2), "× 4"),
        (factor(2, 8), "÷ 4"),
        (factor(3, 2), "× 1.50"),
        (factor(0, 5), "–"),
        (operations(773_300_000_000_000), "773.3 TFLOP"),
    ],
)
def test_numbers(text, right):
    assert text == right


@given(naturals, positives)
def test_a_share_is_off_by_half_a_tenth_at_most(part, extra):
    text = percentage(part, part + extra)
    exact = Fraction(100 * part, part + extra)
    if text.startswith("<"):
        assert 0 < exact < Fraction(1, 20)
    else:
        assert abs(Fraction(text.removesuffix("%")) - exact) <= Fraction(1, 20)


@given(naturals)
def test_short_keeps_three_digits(number):
    text = short(number)
    match = re.fullmatch(r"([\d,]+(?:\.\d+)?)(?:e(\d+))? ?([kMBT]?)", text)
    assert match is not None, text
    scale = Fraction(1000) ** SCALES[match[3]] * Fraction(10) ** int(match[2] or 0)
    value = Fraction(match[1].replace(",", "")) * scale
    assert abs(value - number) <= Fraction(number, 150)
    assert len(text) <= 9
