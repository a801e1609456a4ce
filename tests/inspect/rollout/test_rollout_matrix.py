"""Rollout: the golden value, its invariants, and a loop over layers."""

from __future__ import annotations

import numpy as np
import pytest

from attnviz.engine.capture import capture
from attnviz.errors import UsageError
from attnviz.inspect.rollout.flow import follow, rollout_after
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention


def rolled_out(layers: list[np.ndarray]) -> np.ndarray:
    """The rollout of some layers, first layer first."""
    joined: np.ndarray | None = None
    for mean in layers:
        joined = rollout_after(mean, joined)
    assert joined is not None
    return joined


def test_golden_value() -> None:
    layer = np.array([[1.0, 0], [0.5, 0.5]])
    assert rolled_out([layer, layer]).tolist() == [[1, 0], [0.4375, 0.5625]]


def test_one_layer_is_half_itself() -> None:
    layer = np.array([[0.25, 0.75], [1.0, 0]])
    assert rolled_out([layer]).tolist() == [[0.625, 0.375], [0.5, 0.5]]


def test_rows_sum_to_one_and_the_future_stays_unseen() -> None:
    generator = np.random.default_rng(0)
    layers = [np.tril(generator.random((7, 7))) for _ in range(5)]
    matrix = rolled_out([layer / layer.sum(-1, keepdims=True) for layer in layers])
    assert matrix.sum(-1) == pytest.approx(1)
    assert (np.triu(matrix, 1) == 0).all()


def test_a_model_is_followed_through_all_layers() -> None:
    model = Bundled("float64")
    tokens = model.encode("The captain said that the ship would reach the harbour.")
    found = follow(model, tokens)
    record = capture(model, tokens, kind="self")
    assert len(record.layers) == model.info.layers
    expected = np.eye(len(tokens))
    for layer in record.layers:
        mean = sum(layer.weights) / len(layer.weights)
        expected = (0.5 * mean + 0.5 * np.eye(len(tokens))) @ expected
    assert found.matrix == pytest.approx(expected)
    assert found.raw == pytest.approx(record.layers[-1].weights.mean(0))
    assert (found.layers, found.causal, found.tokens) == (model.info.layers, True, tokens)


def test_the_own_attention_has_one_layer() -> None:
    model = OwnAttention(16, 2)
    found = follow(model, model.encode("one two three"))
    assert found.matrix == pytest.approx(0.5 * found.raw + 0.5 * np.eye(3))
    assert not found.causal


def test_another_kind_is_refused() -> None:
    model = Bundled()
    with pytest.raises(UsageError, match="no cross attention"):
        follow(model, model.encode("one two"), kind="cross")
