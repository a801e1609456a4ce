"""Gradient importance equals the slope that finite differences find, gate by gate."""

import numpy as np
import pytest
import torch
from transformers import GPT2Model

from attnviz.engine.patchable import patchable_transformers
from attnviz.engine.scan.on_torch import gradient_importance
from attnviz.engine.scan.run import open_scan
from attnviz.errors import UsageError
from attnviz.models.bundled import Bundled
from attnviz.records import Input

from .ablation_loop import MASK, PROJECTIONS, heads_of
from .architectures import ARCHITECTURES, inputs_of, small_model
from .scans import IDS, input_of

STEP = 1e-3
TEXTS = [Input.of_ids(ids) for ids in (IDS, tuple(reversed(IDS)), IDS[4:])]


def loss_with_gate(model, name, kind, heads, pair, gate, inputs, masked):
    """The loss with one head's columns multiplied, by a hook of the test's own, in float64."""
    layer, head = pair

    def multiply(module, args):
        merged = args[0].clone()
        width = merged.shape[-1] // heads
        merged[..., head * width : (head + 1) * width] *= gate
        return (merged, *args[1:])

    projection = model.get_submodule(PROJECTIONS[name][kind].format(layer))
    hook = projection.register_forward_pre_hook(multiply)
    read = inputs["decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"][0]
    with torch.no_grad():
        if masked:
            losses = []
            for at in range(len(read)):
                hidden = inputs["input_ids"].clone()
                hidden[0, at] = MASK
                scores = model(hidden).logits[0, at].log_softmax(-1)
                losses.append(-float(scores[read[at]]))
            loss = np.mean(losses)
        else:
            scores = model(**inputs).logits[0].log_softmax(-1)
            loss = -float(scores[:-1].gather(-1, read[1:, None]).mean())
    hook.remove()
    return loss


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gpt2", "self"), ("llama", "self"), ("gptj", "self"), ("bert", "self"), ("t5", "cross")],
)
def test_every_score_is_the_slope_of_the_loss(name, kind):
    model = small_model(name).double()
    inputs = inputs_of(name, source=5, target=4)
    masked = ARCHITECTURES[name].stack == "encoder"
    given = input_of(inputs)
    patchable = patchable_transformers(model, kind, given, MASK)
    before = [parameter.requires_grad for parameter in model.parameters()]
    found = gradient_importance(patchable, [given])
    layers = ARCHITECTURES[name].layers
    pairs = heads_of(name, kind, layers)
    assert list(found) == pairs
    heads = patchable.heads[layers[0]]
    for pair in pairs[:: max(1, len(pairs) // 5)]:
        ends = [
            loss_with_gate(model, name, kind, heads, pair, 1 + step, inputs, masked)
            for step in (STEP, -STEP)
        ]
        assert found[pair] == pytest.approx(abs(ends[0] - ends[1]) / (2 * STEP), rel=5e-3, abs=3e-4)
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_absolute_values_are_taken_for_each_text():
    patchable = patchable_transformers(small_model("gpt2"), "self", TEXTS[0])
    each = [gradient_importance(patchable, [one]) for one in TEXTS]
    for pair, score in gradient_importance(patchable, TEXTS).items():
        assert score == pytest.approx(np.mean([one[pair] for one in each]))


def test_a_gate_can_lead_to_the_mean():
    patchable = patchable_transformers(small_model("gpt2"), "self", TEXTS[0])
    plain = gradient_importance(patchable, TEXTS)
    replacements = {("output", layer): torch.full((1, 3, 8), 0.3) for layer in range(3)}
    mean = gradient_importance(patchable, TEXTS, replacements=replacements)
    assert mean.keys() == plain.keys()
    assert mean != plain


def test_the_bundled_model_has_scores_through_the_scan():
    model = Bundled()
    scan = open_scan(model, [Input(model.encode("Once upon a time there was a little dog."))])
    scores = scan.gradients()
    assert len(scores) == model.info.layers * model.info.heads
    assert min(scores.values()) > 0


@pytest.mark.parametrize(
    ("build", "given", "sentence"),
    [
        (lambda: GPT2Model(small_model("gpt2").config), TEXTS[0], "no language-model head"),
        (lambda: small_model("gpt2"), Input.of_ids((5,)), "too short for a loss"),
        (lambda: small_model("bert"), TEXTS[0], "no mask token"),
    ],
)
def test_where_there_is_no_loss_there_is_no_gradient(build, given, sentence):
    patchable = patchable_transformers(build().eval(), "self", given)
    with pytest.raises(UsageError, match=sentence):
        gradient_importance(patchable, [given])
