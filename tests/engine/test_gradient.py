"""Gradient importance equals the slope that finite differences find, gate by gate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import GPT2Model

from attnviz.engine.gradient import gradient_importance
from attnviz.engine.patchable import Passage, transformers_subject
from attnviz.engine.scan.run import open_scan
from attnviz.errors import UsageError
from attnviz.models.bundled import Bundled

from .architectures import ARCHITECTURES, inputs_of, small_model
from .removal_loop import MASK, PROJECTIONS, heads_of

STEP = 1e-3


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
    target = inputs.get("decoder_input_ids")
    passage = Passage(
        tuple(inputs["input_ids"][0].tolist()),
        target if target is None else tuple(target[0].tolist()),
    )
    subject = transformers_subject(model, kind, passage, MASK)
    before = [parameter.requires_grad for parameter in model.parameters()]
    found = gradient_importance(subject, [passage])
    layers = ARCHITECTURES[name].layers
    pairs = heads_of(name, kind, layers)
    assert list(found) == pairs
    heads = subject.heads[layers[0]]
    for pair in pairs[:: max(1, len(pairs) // 5)]:
        ends = [
            loss_with_gate(model, name, kind, heads, pair, 1 + step, inputs, masked)
            for step in (STEP, -STEP)
        ]
        assert found[pair] == pytest.approx(abs(ends[0] - ends[1]) / (2 * STEP), rel=5e-3, abs=3e-4)
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def passages():
    ids = tuple(inputs_of("gpt2")["input_ids"][0].tolist())
    return [Passage(ids), Passage(tuple(reversed(ids))), Passage(ids[4:])]


def test_absolute_values_are_taken_for_each_text_or_for_all():
    subject = transformers_subject(small_model("gpt2"), "self", passages()[0])
    each = [gradient_importance(subject, [one]) for one in passages()]
    mean = gradient_importance(subject, passages())
    batch = gradient_importance(subject, passages(), reduction="batch")
    for pair, score in mean.items():
        assert score == pytest.approx(np.mean([one[pair] for one in each]))
        assert batch[pair] <= score + 1e-9
    assert any(batch[pair] < mean[pair] * 0.9 for pair in mean)


def test_normalised_scores_have_a_length_of_one_in_each_layer():
    subject = transformers_subject(small_model("gpt2"), "self", passages()[0])
    scores = gradient_importance(subject, passages(), normalise=True)
    for layer in range(3):
        assert sum(scores[layer, head] ** 2 for head in range(3)) == pytest.approx(1)


def test_a_gate_can_lead_to_the_mean_and_heads_can_be_gone_already():
    subject = transformers_subject(small_model("gpt2"), "self", passages()[0])
    plain = gradient_importance(subject, passages())
    stand_ins = {layer: torch.full((1, 3, 8), 0.3) for layer in range(3)}
    mean = gradient_importance(subject, passages(), stand_ins=stand_ins)
    gone = gradient_importance(subject, passages(), removed={(0, 1)})
    assert mean.keys() == gone.keys() == plain.keys()
    assert mean != plain
    assert gone[2, 2] != plain[2, 2]


def test_progress_counts_texts():
    told = []
    subject = transformers_subject(small_model("gpt2"), "self", passages()[0])
    gradient_importance(subject, passages(), on_progress=lambda *numbers: told.append(numbers))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_the_bundled_model_has_scores_through_the_scan():
    model = Bundled()
    scan = open_scan(model, [model.encode("Once upon a time there was a little dog.")])
    scores = scan.gradients()
    assert len(scores) == model.info.layers * model.info.heads
    assert min(scores.values()) > 0


@pytest.mark.parametrize(
    ("build", "passage", "sentence"),
    [
        (lambda: GPT2Model(small_model("gpt2").config), passages()[0], "no language-model head"),
        (lambda: small_model("gpt2"), Passage((5,)), "too short for a loss"),
        (lambda: small_model("bert"), passages()[0], "no mask token"),
    ],
)
def test_where_there_is_no_loss_there_is_no_gradient(build, passage, sentence):
    subject = transformers_subject(build().eval(), "self", passage)
    with pytest.raises(UsageError, match=sentence):
        gradient_importance(subject, [passage])


def test_no_text_is_refused():
    subject = transformers_subject(small_model("gpt2"), "self", passages()[0])
    with pytest.raises(UsageError, match="at least one"):
        gradient_importance(subject, [])
