"""Every metric of heads at both ends and between equals the slow loop's, on every architecture."""

from __future__ import annotations

import pytest
import torch

from attnviz.engine.ablation import ablating
from attnviz.engine.effects import METRICS, Variant
from attnviz.engine.patchable import patchable_transformers

from ..ablation_loop import MASK, PROJECTIONS, heads_of, loop_metrics, outputs_without
from ..architectures import ARCHITECTURES, inputs_of, quick_or_long, small_model, state_of
from ..scans import input_of, torch_scan

CASES = [(name, kind) for name, kinds in PROJECTIONS.items() for kind in kinds]
TOLERANCE = 1e-5
APART = ("gpt2", "gemma2", "gpt_neox", "qwen3_next", "albert", "t5", "bloom", "falcon")
"""Projections that lie transposed, are shared by layers, or follow attention of the model's own."""


def layers_of(name, kind):
    if kind == "encoder":
        return (0, 1)
    return ARCHITECTURES[name].layers


def short_inputs(name):
    # The loop over masked models runs once for each word.
    masked = ARCHITECTURES[name].stack == "encoder"
    return inputs_of(name, source=5 if masked else 11, target=7), masked


@pytest.mark.parametrize("name", quick_or_long(PROJECTIONS))
def test_every_metric_equals_the_loop(name):
    for kind in PROJECTIONS[name]:
        compared(name, kind)


def compared(name, kind):
    model, (inputs, masked) = small_model(name), short_inputs(name)
    before = state_of(model)
    scan = torch_scan(model, [input_of(inputs)], kind=kind, mask=MASK, pair=(5, 7))
    pairs = heads_of(name, kind, layers_of(name, kind))
    assert [(layer, head) for layer, some in scan.heads.items() for head in range(some)] == pairs
    variants = [Variant((pair,)) for pair in pairs]
    variants.append(Variant((pairs[0], pairs[-1])))  # two layers together
    (piece,) = scan.scan(0, variants, range(len(variants)))
    assert scan.notes == []  # nothing fell back on the loop
    assert set(piece.metrics) == set(METRICS)
    heads = scan.heads[pairs[0][0]]
    for place, index in enumerate(piece.variants):
        if index not in (0, len(pairs) // 2, len(pairs) - 1, len(pairs)):
            continue  # the loop takes the time
        expected = loop_metrics(model, name, kind, heads, variants[index].heads, inputs, masked)
        found = {metric: float(values[place]) for metric, values in piece.metrics.items()}
        assert found == pytest.approx(expected, rel=0, abs=TOLERANCE), variants[index]
    assert state_of(model) == before


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[0] in APART])
def test_a_head_without_rows_in_the_projection_costs_exactly_nothing(name, kind):
    model, (inputs, _) = small_model(name), short_inputs(name)
    layer, head = heads_of(name, kind, layers_of(name, kind))[-2]
    scan = torch_scan(
        model, [input_of(inputs)], kind=kind, mask=MASK, pair=(5, 7), token_losses=True
    )
    heads = scan.heads[layer]
    projection = model.get_submodule(PROJECTIONS[name][kind].format(layer))
    transposed = type(projection).__name__ == "Conv1D"
    weight = projection.weight if transposed else projection.weight.T
    width = weight.shape[0] // heads
    with torch.no_grad():
        weight[head * width : (head + 1) * width] = 0
    variants = [Variant((pair,)) for pair in heads_of(name, kind, layers_of(name, kind))]
    (piece,) = scan.scan(0, variants, range(len(variants)))
    place = piece.variants.index(variants.index(Variant(((layer, head),))))
    assert {
        metric: float(values[place]) for metric, values in piece.metrics.items()
    } == dict.fromkeys(METRICS, 0.0)
    losses = piece.token_losses[place]
    assert set(losses[losses == losses]) == {0.0}


@pytest.mark.parametrize("name", ["gpt2", "bert", "bart", "gptj", "gpt_neox", "opt"])
def test_all_heads_removed_leaves_the_bias_of_the_projection(name):
    model, (inputs, _) = small_model(name), short_inputs(name)
    kind = next(iter(PROJECTIONS[name]))
    subject = patchable_transformers(model, kind, input_of(inputs), MASK)
    pairs = heads_of(name, kind, layers_of(name, kind))
    seen = []
    for layer in subject.heads:
        projection = model.get_submodule(PROJECTIONS[name][kind].format(layer))
        bias = 0 if projection.bias is None else projection.bias
        projection.register_forward_hook(
            lambda *call, b=bias: seen.append((call[-1] - b).abs().max())
        )
    with ablating(subject, pairs), torch.inference_mode():
        model(**inputs)
    assert len(seen) == len(subject.heads)
    assert max(seen) == 0


def test_the_loop_of_this_test_removes_something():
    model, (inputs, _) = small_model("gpt2"), short_inputs("gpt2")
    clean = outputs_without(model, "gpt2", "self", 3, (), inputs)
    removed = outputs_without(model, "gpt2", "self", 3, [(1, 2)], inputs)
    assert (clean.logits - removed.logits).abs().max() > 0.01
