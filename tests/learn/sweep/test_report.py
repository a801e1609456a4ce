"""The records of a sweep: spreads by hand, models by heads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from attnviz.learn.sweep.report import Spread, SweepReport

Sweeps = Callable[..., SweepReport]


def test_models_by_heads(sweeps: Sweeps) -> None:
    found = sweeps({1: (0.5, 0.75), 2: (0.25,)})
    assert [model.seed for model in found.of(1)] == [0, 1]
    assert found.spread(1) == Spread(0.625, pytest.approx(0.03125**0.5))
    assert found.spread(2, "accuracy") == Spread(0.875, None)
    assert found.notes == ("interrupted: 3 of 4 models are trained, the others are left out",)
    assert found.measured == (1, 2)
    assert not found.complete
    assert sweeps({1: (0.5, 0.75), 2: (0.25, 0.5)}).complete
    assert sweeps({1: (), 2: (0.25,)}).measured == (2,)
