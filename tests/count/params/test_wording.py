"""Numbers as people write them, against fractions."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.count.params.wording import bytes_text, count, factor, operations, percentage, short

SCALES = {"": 0, "k": 1, "M": 2, "B": 3, "T": 4}
naturals = st.integers(0, 10**40)
positives = st.integers(1, 10**40)


def test_counts_are_exact() -> None:
    assert count(68_976_648_192) == "68,976,648,192"
    assert count(10**30 + 1) == "1,000,000,000,000,000,000,000,000,000,001"


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (1, 4, "25.0%"),
        (1, 3, "33.3%"),
        (2, 3, "66.7%"),
        (1, 10_000, "<0.1%"),
        (5, 10_000, "0.1%"),
        (0, 7, "0.0%"),
        (7, 7, "100.0%"),
        (0, 0, "–"),
    ],
)
def test_shares(part: int, whole: int, text: str) -> None:
    assert percentage(part, whole) == text


@given(naturals, positives)
def test_a_share_is_off_by_half_a_tenth_at_most(part: int, extra: int) -> None:
    text = percentage(part, part + extra)
    exact = Fraction(100 * part, part + extra)
    if text.startswith("<"):
        assert 0 < exact < Fraction(1, 20)
    else:
        assert abs(Fraction(text.removesuffix("%")) - exact) <= Fraction(1, 20)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1 k"),
        (1234, "1.23 k"),
        (99_999, "100.0 k"),
        (999_999, "1 M"),
        (999_999_999, "1 B"),
        (137_438_953_472, "137.4 B"),
        (33_554_432, "33.55 M"),
        (10**21, "1.00e21"),
        (9_999_999 * 10**20, "1.00e27"),
    ],
)
def test_short(number: int, text: str) -> None:
    assert short(number) == text


@given(naturals)
def test_short_keeps_three_digits(number: int) -> None:
    text = short(number)
    match = re.fullmatch(r"([\d,]+(?:\.\d+)?)(?:e(\d+))? ?([kMBT]?)", text)
    assert match is not None, text
    scale = Fraction(1000) ** SCALES[match[3]] * Fraction(10) ** int(match[2] or 0)
    value = Fraction(match[1].replace(",", "")) * scale
    assert abs(value - number) <= Fraction(number, 150)
    assert len(text) <= 9


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (327_680, "327,680 bytes"),
        (999_999, "999,999 bytes"),
        (1_342_177_280, "1.34 GB"),
        (160 * 10**9, "160 GB"),
    ],
)
def test_bytes(number: int, text: str) -> None:
    assert bytes_text(number) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(8, 2, "× 4"), (2, 8, "÷ 4"), (3, 2, "× 1.50"), (5, 5, "× 1"), (0, 5, "–"), (5, 0, "–")],
)
def test_factor(part: int, whole: int, text: str) -> None:
    assert factor(part, whole) == text


def test_operations() -> None:
    assert operations(137_438_953_472) == "137.4 GFLOP"
    assert operations(773_300_000_000_000) == "773.3 TFLOP"
