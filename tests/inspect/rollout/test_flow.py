"""Rollout: the golden value, its invariants, and a loop over layers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import transformers

import attnviz
from attnviz.engine import observer
from attnviz.engine.capture import capture
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.rollout.flow import follow, rollout_after
from attnviz.models.bundled import Bundled
from attnviz.models.prepare import prepared

from ...small_models import bert_fields, llama_fields


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


@pytest.mark.parametrize("name", ["llama", "mistral", "bert"])
def test_followed_rows_equal_those_of_all(name: str) -> None:
    """With grouped heads, a window, and an encoder."""
    torch.manual_seed(2)
    fields = llama_fields(12, 17, 400, (6, 2, 4), layers=3) | {"initializer_range": 1.0}
    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaModel, fields),
        "mistral": (
            transformers.MistralConfig,
            transformers.MistralModel,
            fields | {"sliding_window": 20},
        ),
        "bert": (transformers.BertConfig, transformers.BertModel, bert_fields(12, 17, 400)),
    }
    config, built, fields = classes[name]
    made = built(config(vocab_size=101, **fields))
    model = prepared("made", made, None, torch.device("cpu"))
    tokens = model.encode(" ".join(f"w{number * number % 89}" for number in range(150)))
    whole, some = follow(model, tokens), follow(model, tokens, sampled=5)
    assert some.sampled is not None
    assert len(some.sampled) == 5
    assert some.sampled[-1] == whole.last
    for one, other in ((some.matrix, whole.matrix), (some.raw, whole.raw)):
        assert np.abs(one - other[list(some.sampled)]).max() < 1e-5
    assert (some.layers, some.causal) == (whole.layers, whole.causal)
    screen = str(dataclasses.replace(some, text="a text"))
    assert "5 of them followed" in screen
    assert "sums over 3 keys" in screen
    rows = list(some.rows())[1:]
    assert {row[0] for row in rows} == set(some.sampled)
    assert some.data()["queries"] == some.sampled


def test_rows_are_followed_by_request_or_by_length(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="--backend torch"):
        attnviz.rollout("tiny", "one two three", reduce="fused")
    fields = llama_fields(12, 17, 400, (6, 2, 4))
    made = transformers.LlamaModel(transformers.LlamaConfig(vocab_size=101, **fields))
    model = prepared("made", made, None, torch.device("cpu"))
    text = "one two three " * 60
    assert attnviz.rollout(model, text).sampled is None
    monkeypatch.setattr(observer, "_LONG", 100)
    monkeypatch.setattr(observer, "_LARGE", 100)
    assert attnviz.rollout(model, text).sampled is not None
    assert attnviz.rollout(model, text, reduce="full").sampled is None
    monkeypatch.setattr("attnviz.models.memory.free_memory", lambda device=None: 1_000)
    with pytest.raises(UsageError, match=r"queries and keys of .* shorten the text"):
        attnviz.rollout(model, text)


def test_layers_that_are_no_attention_are_named_and_nothing_is_a_share_of_the_input() -> None:
    model = Bundled()
    types = ("linear_attention", *["full_attention"] * 5)
    model._info = dataclasses.replace(model.info, layer_types=types)
    found = follow(model, model.encode("The cat sat."))
    assert found.data()["layers_not_followed"] == (0,)
    assert "no shares of the input" in found.model.notes[-1]
    finding = found.document().finding
    assert "no share of the input: tokens mix otherwise in layer 0" in finding
    assert "comes from" not in finding
