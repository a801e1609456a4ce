"""Sizes of memory in words."""

from __future__ import annotations

import pytest

from attnviz.models.memory import byte_text


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.00 kB"),
        (30_100_000, "30.10 MB"),
        (1_342_177_280, "1.34 GB"),
        (4_943_257_600_000, "4,943.26 GB"),
    ],
)
def test_a_size_is_said_in_the_largest_unit_that_it_fills(count: int, expected: str) -> None:
    assert byte_text(count) == expected
