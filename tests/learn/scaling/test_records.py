"""The records of scaling: what they hold and what they refuse."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from attnviz.learn.scaling.records import (
    BIN_EDGES,
    MEASURES,
    Estimate,
    ScaledSoftmax,
    ScalingCase,
    ScalingReport,
)

COUNTS = (3, *([0] * (len(BIN_EDGES) - 3)), 1)


def side(scale: float = 1.0) -> ScaledSoftmax:
    return ScaledSoftmax(scale, {name: Estimate(0.5) for name in MEASURES}, COUNTS, 8.0)


def case(d_k: int = 8, **changes: int) -> ScalingCase:
    return ScalingCase(d_k, side(), side(0.5), queries=2, weights=4, **changes)


def test_bins_shares_and_names() -> None:
    assert (BIN_EDGES[0], BIN_EDGES[1], BIN_EDGES[-1]) == (0.0, 1e-8, 1.0)
    assert len(BIN_EDGES) == 34
    for low, high in pairwise(BIN_EDGES[1:]):
        assert high / low == pytest.approx(10**0.25)
    assert side().shares()[0] == 0.75
    assert sum(side().shares()) == 1
    report = ScalingReport((case(),), seed=0, keys=2, index_base=1)
    assert report.name(case()) == "d_k 8"
    assert report.name(case(layer=2)) == "layer 3"
    assert report.name(case(layer=2, head=0)) == "L3H1"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the measures"):
        dataclasses.replace(side(), measures={"score_variance": Estimate(1.0)})
    with pytest.raises(ValueError, match="expected 33 bins, got 2"):
        dataclasses.replace(side(), histogram=(3, 1))
    with pytest.raises(ValueError, match="expected 5 weights in a histogram, got 4"):
        dataclasses.replace(case(), weights=5)
    with pytest.raises(ValueError, match="at least one case"):
        ScalingReport((), seed=0, keys=2)
    with pytest.raises(ValueError, match="in order, each once"):
        ScalingReport((case(8), case(8)), seed=0, keys=2)
