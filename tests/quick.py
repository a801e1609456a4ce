"""Which parameters of a test the quick run takes."""

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(count: int, values: Iterable[Any]) -> list[Any]:
    """Return parameters for a test: one in so many is quick, the others are marked long."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)
        if at % count
        else value
        for at, value in enumerate(values)
    ]
