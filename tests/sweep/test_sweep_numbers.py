"""How the numbers of a sweep are written."""

from __future__ import annotations

import pytest

from attnviz.sweep.numbers import (
    heads_name,
    milliseconds,
    nats,
    of_seeds,
    percent,
    with_spread,
)
from attnviz.sweep.records import Spread


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (0.0005, "0.001"),
        (0.00002, "2e-05"),
        (-0.0004, "-4e-04"),
        (2.19722, "2.197"),
    ],
)
def test_losses(value: float, text: str) -> None:
    assert nats(value) == text


def test_the_others() -> None:
    assert percent(0.9785) == "97.9%"
    assert milliseconds(0.01236) == "12.4"
    assert with_spread(Spread(0.5, 0.125)) == "0.500 ± 0.125"
    assert with_spread(Spread(0.5, 0.125), "+-") == "0.500 +- 0.125"
    assert with_spread(Spread(0.5, None)) == "0.500"
    assert (heads_name(1), heads_name(4)) == ("1 head", "4 heads")
    assert (of_seeds(1, 1), of_seeds(0, 3)) == ("1 of 1 seed", "0 of 3 seeds")
