"""The parts of a logit add up to it, and each is what the model's own modules make of it."""

from __future__ import annotations

import pytest
import torch

from attnviz.engine.attribution_torch import TorchAttributor
from attnviz.engine.patchable import patchable_transformers
from attnviz.records import Input

from .architectures import ARCHITECTURES, inputs_of, small_model, state_of
from .attribution_oracle import ROUTES, Recorded, head_written, to_logits

MASK, ANSWER, FOIL, MASKED = 96, 5, 7, 4
ROUNDING = 2e-6
"""Some norms are float32 in any model."""

PREDICTING = [name for name in ARCHITECTURES if name != "fsmt"]
"""transformers tells of no language-model head of fsmt."""


def asked(name):
    """A model's inputs, as transformers and as attnviz take them; masked where it reads ahead."""
    inputs = inputs_of(name)
    if ARCHITECTURES[name].stack == "encoder":
        inputs["input_ids"][0, MASKED] = MASK
    target = inputs.get("decoder_input_ids")
    ids = inputs["input_ids"][0].tolist()
    return inputs, Input.of_ids(ids, None if target is None else target[0].tolist())


def opened(name, model, given):
    kind = "decoder" if ARCHITECTURES[name].stack == "both" else "self"
    return TorchAttributor(patchable_transformers(model, kind, given, MASK), given)


@pytest.mark.parametrize("name", PREDICTING)
def test_the_parts_add_up_to_the_models_own_logit(name):
    model, (inputs, given) = small_model(name), asked(name)
    before = state_of(model)
    with torch.no_grad():
        logits = model(**inputs).logits[0].double()
    attributor = opened(name, model, given)
    place = MASKED if ARCHITECTURES[name].stack == "encoder" else len(logits) - 1
    positions = [place] if place == MASKED else [place, 3]
    for position in positions:
        found = attributor.attribute(given, position=position, foil=FOIL)
        own = logits[position]
        assert found.answer == int(own.argmax())
        assert found.logit == pytest.approx(float(own.max() - own[FOIL]), abs=1e-5)
        assert [token for token, _ in found.top] == own.topk(5).indices.tolist()
        assert dict(found.top)[found.answer] == pytest.approx(float(own.softmax(-1).max()))
        assert found.tolerance <= 1e-4 * float(own.abs().max()) * 1.001
        assert found.tallies
        assert len(found.rows) == len(found.heads)
        assert found.notes == ()
        for key, row in found.rows.items():
            assert row.sum() == pytest.approx(found.heads[key], abs=found.tolerance)
        assert [part.kind for part in found.parts].count("embedding") == 1
    assert attributor.attribute(given).position == place
    assert state_of(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ROUTES)
def test_each_part_is_what_the_models_own_modules_make_of_it(name):
    model, (inputs, given) = small_model(name, attention="eager"), asked(name)
    if name != "gpt_oss":  # its experts know no float64
        model = model.double()
    route, run = ROUTES[name], Recorded(model, inputs, output_attentions=True)
    layers = len(ARCHITECTURES[name].layers)
    place = MASKED if name == "bert" else len(given.predicted) - 1
    attributor = opened(name, model, given)
    keys = list(attributor.attribute(given).heads)
    found = attributor.attribute(given, answer=ANSWER, foil=FOIL, maps=keys)

    def towards(logits):
        return (logits[..., ANSWER] - logits[..., FOIL]).detach()

    parts = {(one.kind, one.layer): one.contribution for one in found.parts if one.head is None}
    entered = run.entered[route.block.format(0)][0, place]
    stream = to_logits(run, route, layers, 0, 0, entered, place)
    assert parts["embedding", None] == pytest.approx(float(towards(stream)), abs=ROUNDING)
    for layer in range(layers):
        path, *between = (one.format(layer) for one in route.mlp)
        written = run.left[path].flatten(0, -2)[place]
        for step in between:
            written = run.through(step, written, place)
        bias = getattr(model.get_submodule(path), "bias", None)
        assert bias is None or name in ("bert", "bloom")
        written = to_logits(run, route, layers, layer, 1, written, place)
        assert parts["mlp", layer] == pytest.approx(float(towards(written)), abs=ROUNDING), layer

    for kind, layer, head in keys:
        total = sum(key[:2] == (kind, layer) for key in keys)
        merged = run.entered[route.heads[kind][0].format(layer)][0]
        alone = torch.zeros_like(merged).unflatten(-1, (total, -1))
        alone[:, head] = merged.unflatten(-1, (total, -1))[:, head]
        alone = alone.flatten(-2)
        one = towards(head_written(run, route, layers, kind, layer, alone[place], place))
        assert found.heads[kind, layer, head] == pytest.approx(float(one), abs=ROUNDING)
        if kind not in route.values:
            continue
        # Every query and source token: the weights that transformers reports times the values.
        reported = run.outputs["cross_attentions" if kind == "cross" else ATTENTIONS[kind]]
        weights = reported[layer][0, head]
        values = run.left[route.values[kind].format(layer)][0]
        values = values.unflatten(-1, (-1, alone.shape[-1] // total))
        group = head * values.shape[1] // total
        for query in {place, 1}:
            moved = torch.zeros(len(values), total, values.shape[-1], dtype=values.dtype)
            moved[:, head] = weights[query, :, None] * values[:, group]
            each = head_written(run, route, layers, kind, layer, moved.flatten(-2), query)
            expected = towards(each).numpy()
            assert found.maps[kind, layer, head][query] == pytest.approx(expected, abs=ROUNDING)
        assert found.rows[kind, layer, head] == pytest.approx(
            found.maps[kind, layer, head][place], abs=ROUNDING
        )


ATTENTIONS = {"self": "attentions", "decoder": "decoder_attentions"}
