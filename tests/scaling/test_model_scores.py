"""A model's queries and keys: against loops over what it itself reports."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention
from attnviz.scaling.model_scores import model_scaling, needed_text_bytes
from attnviz.scaling.records import MEASURES

TEXT = "one two three two one four five"


def loop(weights: np.ndarray, causal: bool) -> dict[str, float]:
    """Means over queries that see two keys or more, with a Jacobian written out."""
    entropies, largest, norms, above, count = [], [], [], 0, 0
    for query, row in enumerate(weights.astype(float)):
        seen = row[: query + 1] if causal else row
        if len(seen) < 2:
            continue
        entropies.append(-sum(p * math.log(p) for p in seen if p > 0) / math.log(len(seen)))
        largest.append(max(seen))
        norms.append(float(np.linalg.norm(np.diag(seen) - np.outer(seen, seen))))
        above += int((seen > 0.9).sum())
        count += len(seen)
    return {
        "normalised_entropy": float(np.mean(entropies)),
        "largest_weight": float(np.mean(largest)),
        "weights_above": above / count,
        "queries_above": float(np.mean([p > 0.9 for p in largest])),
        "jacobian_norm": float(np.mean(norms)),
        "queries_vanished": float(np.mean([norm < 0.01 for norm in norms])),
    }


@pytest.mark.parametrize("causal", [False, True])
def test_with_the_scale_it_is_what_the_model_does(causal: bool) -> None:
    model = OwnAttention(30, 5, causal=causal, seed=1)
    tokens = model.encode(TEXT)
    kept: list[np.ndarray] = []
    model.run(tokens, lambda layer: True, lambda layer, weights: kept.append(weights))
    report = model_scaling(model, tokens, by_head=True)
    assert [report.name(case) for case in report.cases] == [f"L0H{head}" for head in range(5)]
    for head, case in enumerate(report.cases):
        for name, value in loop(kept[0][head], causal).items():
            assert case.scaled.measures[name].value == pytest.approx(value, abs=1e-6), name
            assert case.scaled.measures[name].error is None
        assert case.queries == (6 if causal else 7)
        assert case.weights == (sum(range(2, 8)) if causal else 49)
    (layer,) = model_scaling(model, tokens).cases
    for name in MEASURES:
        mean = np.mean([case.plain.measures[name].value for case in report.cases])
        assert layer.plain.measures[name].value == pytest.approx(mean)
    assert layer.weights == sum(case.weights for case in report.cases)
    assert (layer.heads, layer.head) == (5, None)


def test_without_the_scale_the_scores_are_larger_by_its_inverse() -> None:
    """What the bare scores would give, from the weights alone: p^√d_k, made to sum to one."""
    model = Bundled(dtype="float64")
    tokens = model.encode("The cat sat on the mat.")
    kept: dict[int, np.ndarray] = {}
    model.run(tokens, lambda layer: True, kept.__setitem__)
    report = model_scaling(model, tokens, {1: frozenset({0, 2})}, by_head=True, index_base=1)
    assert [report.name(case) for case in report.cases] == ["L2H1", "L2H3"]
    for case in report.cases:
        assert case.head is not None
        root = math.sqrt(case.d_k)
        assert case.scaled.scale == pytest.approx(1 / root)
        ratio = case.plain.measures["score_variance"].value / case.d_k
        assert case.scaled.measures["score_variance"].value == pytest.approx(ratio)
        logs = np.log(np.maximum(kept[1][case.head], 1e-300)) * root
        bare = np.exp(logs - logs.max(1, keepdims=True))
        bare /= bare.sum(1, keepdims=True)
        for name, value in loop(bare, causal=True).items():
            assert case.plain.measures[name].value == pytest.approx(value, abs=1e-6), name


def test_queries_of_zero_are_even_with_and_without() -> None:
    """A model whose scores are all equal: nothing that the scale could change."""
    model = OwnAttention(12, 3)
    attention = model._attention
    attention.query_weight[:] = 0
    (case,) = model_scaling(model, model.encode(TEXT)).cases
    for side in (case.plain, case.scaled):
        assert side.measures["score_variance"].value == 0
        assert side.measures["normalised_entropy"].value == pytest.approx(1)
        assert side.measures["largest_weight"].value == pytest.approx(1 / 7)
        assert side.measures["jacobian_norm"].value == pytest.approx(math.sqrt(6) / 7)


def test_what_cannot_be_measured_is_refused() -> None:
    model = OwnAttention(12, 3)
    tokens = model.encode("one")
    with pytest.raises(UsageError, match="at least two tokens"):
        model_scaling(model, tokens)
    with pytest.raises(UsageError, match="none of the chosen layers"):
        model_scaling(model, model.encode(TEXT), {5: frozenset({0})})
    narrow = OwnAttention(3, 3)
    with pytest.raises(UnsupportedError, match="does not scale its scores"):
        model_scaling(narrow, narrow.encode(TEXT))


def test_memory_grows_with_the_square_of_the_text() -> None:
    assert needed_text_bytes(2000) == 4 * needed_text_bytes(1000)
    assert needed_text_bytes(10**6) > 10**13
