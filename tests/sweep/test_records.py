"""The records of a sweep: spreads by hand, models by heads."""

from __future__ import annotations

import pytest

from attnviz.sweep.records import (
    PatternScore,
    Reference,
    Spread,
    SweepModel,
    SweepReport,
    SweepTask,
)


def model(heads: int, seed: int, loss: float) -> SweepModel:
    pattern = PatternScore("previous", "previous token", 0, 1, 0.5, 0.1)
    return SweepModel(heads, seed, 11, (), loss, 0.5, 0.01, (pattern,))


def report(*models: SweepModel) -> SweepReport:
    return SweepReport(
        task=SweepTask("copy", "copy it", 5, 7, Reference("chance", 1.0, 0.2)),
        heads=(1, 2),
        seeds=(3, 4),
        layers=2,
        d_model=8,
        d_ff=8,
        steps=1,
        batch=1,
        learning_rate=0.01,
        held_out=1,
        predictions=1,
        device="cpu",
        threads=1,
        models=models,
        seconds=1.0,
    )


def test_spread_by_hand() -> None:
    assert Spread.of([1.0, 2.0, 6.0]) == Spread(3.0, pytest.approx(7**0.5))
    assert Spread.of([2.5]) == Spread(2.5, None)


def test_models_by_heads() -> None:
    found = report(model(1, 3, 0.5), model(2, 3, 0.25), model(1, 4, 0.75))
    assert [each.seed for each in found.of(1)] == [3, 4]
    assert found.spread(1, lambda each: each.loss) == Spread(0.625, pytest.approx(0.03125**0.5))
    assert found.spread(2, lambda each: each.loss) == Spread(0.25, None)
    assert found.measured == (1, 2)
    assert not found.complete
    assert report(*(model(heads, seed, 1.0) for seed in (3, 4) for heads in (1, 2))).complete


def test_heads_without_a_model_were_not_measured() -> None:
    assert report(model(2, 3, 0.25)).measured == (2,)


def test_patterns_by_name() -> None:
    found = model(1, 3, 0.5)
    assert found.pattern("previous").head == 1
    with pytest.raises(KeyError, match="induction"):
        found.pattern("induction")
