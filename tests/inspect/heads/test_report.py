"""How far attention moves: bounds, symmetry, and by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnviz.engine.capture import capture
from attnviz.inspect.heads.report import HeadsReport, compare_heads, heads_report, total_variation
from attnviz.models.own import OwnAttention
from attnviz.records import HeadsRecord


def report(text: str = "a b a c", target: str | None = None, **options: object) -> HeadsRecord:
    model = OwnAttention(12, 3, **options)
    tokens = model.encode(text)
    asking = None if target is None else model.encode_queries(target, tokens)
    kind = "self" if target is None else "cross"
    return heads_report(capture(model, tokens, kind=kind, target=asking), selected=False)


def test_by_hand() -> None:
    one = np.array([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]])
    other = np.array([[[1.0, 0.0], [0.25, 0.75]], [[0.0, 1.0], [1.0, 0.0]]])
    np.testing.assert_allclose(total_variation(one, other), [0.125, 1.0])


@pytest.mark.parametrize("seed", range(5))
def test_it_is_a_distance_between_zero_and_one(seed: int) -> None:
    generator = np.random.default_rng(seed)
    one, other, third = generator.dirichlet(np.full(7, 0.2), size=(3, 5))
    assert total_variation(one, one) == 0
    assert total_variation(one, other) == total_variation(other, one)
    assert 0 < total_variation(one, other) <= 1
    assert (
        total_variation(one, third)
        <= total_variation(one, other) + total_variation(other, third) + 1e-12
    )


def test_each_report_is_held_against_the_first() -> None:
    plain, masked, additive = report(), report(causal=True), report(score="additive")
    found = compare_heads([plain, masked, additive])
    assert found.moved[0] is None
    for other, moved in zip((masked, additive), found.moved[1:], strict=True):
        assert moved is not None
        for head in range(3):
            one, two = plain.weights(0, head), other.weights(0, head)
            expected = (
                sum(abs(float(x) - float(y)) for x, y in zip(one.flat, two.flat, strict=True)) / 8
            )
            assert moved[0, head] == pytest.approx(expected, abs=1e-6)


def test_texts_that_differ_are_not_held_together() -> None:
    found = compare_heads([report(), report(target="a b")])
    assert found.moved == (None, None)
    assert found.first is found.reports[0]
    assert found.kept_by(0, 2) == (0, 1)
    assert found.kept_by(0, 3) == ()


def test_a_single_run_is_a_comparison_of_one() -> None:
    assert compare_heads([report()]).moved == (None,)
    with pytest.raises(ValueError, match="needs a report"):
        HeadsReport((), ())
    two = compare_heads([report(), report(causal=True)])
    with pytest.raises(ValueError, match="got 2 and 1"):
        dataclasses.replace(two, moved=(None,))
