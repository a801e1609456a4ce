"""Captured weights equal transformers' eager ``output_attentions`` bit for bit."""

from __future__ import annotations

import pytest
import torch

from .architectures import (
    ARCHITECTURES,
    eager_attentions,
    inputs_of,
    observe_transformers,
    quick_or_long,
    small_model,
    state_of,
)


@torch.inference_mode()
def logits(model, inputs):
    return model(**inputs).logits


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_kind_and_layer_is_equal_and_the_model_is_as_before(name, recorder, monkeypatch):
    if ARCHITECTURES[name].registered:
        monkeypatch.delattr("attnviz.engine.observe_torch._observe_reported")
    model, inputs = small_model(name), inputs_of(name)
    before, state = logits(model, inputs), state_of(model)
    observer = recorder()
    observe_transformers(model, observer, **inputs)
    expected = eager_attentions(name, **inputs)
    assert observer.seen.keys() == expected.keys()
    for place, weights in expected.items():
        assert torch.equal(observer.seen[place], weights), place
    assert state_of(model) == state
    assert torch.equal(logits(model, inputs), before)


@pytest.mark.parametrize("name", quick_or_long(ARCHITECTURES))
def test_one_layer_alone_is_equal_and_no_other_is_handed_over(name, recorder):
    model, inputs = small_model(name), inputs_of(name)
    expected = eager_attentions(name, **inputs)
    for kind in dict.fromkeys(kind for kind, _ in expected):
        place = max(place for place in expected if place[0] == kind)
        observer = recorder({place})
        observe_transformers(model, observer, **inputs)
        assert observer.seen.keys() == {place}
        assert torch.equal(observer.seen[place], expected[place])


@pytest.mark.parametrize("name", quick_or_long(ARCHITECTURES))
def test_padding_changes_no_real_token(name, recorder):
    inputs = inputs_of(name)
    ids = inputs["input_ids"]
    short = ids[:, :7]
    padded = torch.cat([short, torch.zeros_like(ids[:, 7:])], 1)
    mask = torch.ones(2, ids.shape[1], dtype=torch.long)
    mask[1, 7:] = 0
    batch = {key: value.repeat(2, 1) for key, value in inputs.items()}
    batch["input_ids"] = torch.cat([ids, padded])
    observer = recorder()
    observe_transformers(small_model(name), observer, **batch, attention_mask=mask)
    expected = eager_attentions(name, **batch, attention_mask=mask)
    alone = recorder()
    observe_transformers(small_model(name), alone, **(inputs | {"input_ids": short}))
    assert observer.seen.keys() == expected.keys()
    for (kind, layer), weights in expected.items():
        seen = observer.seen[kind, layer]
        queries = slice(None) if kind in ("decoder", "cross") else slice(7)
        keys = slice(None) if kind == "decoder" else slice(7)
        assert torch.equal(seen[0], weights[0])
        assert torch.equal(seen[1, :, queries], weights[1, :, queries])
        torch.testing.assert_close(
            seen[1, :, queries, keys], alone.seen[kind, layer][0], rtol=0, atol=2e-5
        )


@pytest.mark.parametrize(
    "name", [name for name, kind in ARCHITECTURES.items() if kind.stack == "both"]
)
def test_texts_of_equal_length_do_not_confuse_self_and_cross(name, recorder):
    for length in (1, 5):
        model, inputs = small_model(name), inputs_of(name, source=length, target=length)
        observer = recorder()
        observe_transformers(model, observer, **inputs)
        expected = eager_attentions(name, **inputs)
        assert observer.seen.keys() == expected.keys()
        assert all(torch.equal(observer.seen[place], expected[place]) for place in expected)
