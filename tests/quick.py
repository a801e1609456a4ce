"""Which parameters of a test the quick run takes."""

import pytest


def one_in(count, values):
    """Return parameters for a test: one in so many is quick, the others are marked long."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)
        if at % count
        else value
        for at, value in enumerate(values)
    ]
