"""Heads of classifiers, ablated and patched: against a loop over the modules of transformers."""

from contextlib import contextmanager

import pytest
import torch

from attnviz.engine.effects import ScanOptions, Variant
from attnviz.engine.patchable import patchable_transformers, with_labels
from attnviz.engine.patching import Pair, Patch, PatchOptions
from attnviz.engine.scan.on_torch import torch_patching, torch_scan
from attnviz.records import Input

from .test_labels import GIVEN, MODELS, classifier, logits

OUTPUTS = {
    "bert": "bert.encoder.layer.{}.attention.output.dense",
    "roberta": "roberta.encoder.layer.{}.attention.output.dense",
    "distilbert": "distilbert.transformer.layer.{}.attention.out_lin",
    "gpt2": "transformer.h.{}.attn.c_proj",
    "llama": "model.layers.{}.self_attn.o_proj",
    "bert tokens": "bert.encoder.layer.{}.attention.output.dense",
    "qwen3 tokens": "model.layers.{}.self_attn.o_proj",
}
"""The output projections of attention, whose inputs are the heads' outputs side by side."""

CORRUPT = Input.of_ids([3, 5, 7, 8, 13, 17, 5])
EVERY = range(len(GIVEN.ids))


def labelled(model):
    return with_labels(model, patchable_transformers(model, "self", GIVEN), GIVEN)


@contextmanager
def replaced(model, name, layer, head, heads, values=None):
    """Put other values in the place of a head's output, or zero; yield what stood there."""
    seen = []

    def enter(module, args):
        split = args[0].unflatten(-1, (heads, -1)).clone()
        seen.append(split[..., head, :].clone())
        split[..., head, :] = 0 if values is None else values
        return (split.flatten(-2), *args[1:])

    hook = model.get_submodule(OUTPUTS[name].format(layer)).register_forward_pre_hook(enter)
    try:
        yield seen
    finally:
        hook.remove()


def scores(model, places, given=GIVEN):
    """Return the log-probabilities of labels, (place, label)."""
    found = model(torch.tensor([given.ids])).logits[0].double()
    return (found[None] if found.ndim == 1 else found[list(places)]).log_softmax(-1)


@pytest.mark.parametrize("name", MODELS)
def test_ablations_are_those_of_a_loop(name):
    model, patchable = classifier(name), labelled(classifier(name))
    heads = patchable.heads
    singles = [(layer, head) for layer, count in heads.items() for head in range(count)]
    pair = ScanOptions(pair=(2, 0), labels=True, token_losses=True)
    scan = torch_scan(patchable, [GIVEN], pair, [])
    assert scan.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    by_token = name.endswith("tokens")
    plain = scores(model, EVERY)
    own = plain.argmax(-1)
    for piece in scan.scan(0, [Variant((each,)) for each in singles], range(len(singles))):
        assert piece.baseline["loss"] == pytest.approx(
            -float(plain.max(-1).values.mean()), abs=1e-5
        )
        assert (piece.token_losses is not None) == by_token
        for row, at in enumerate(piece.variants):
            layer, head = singles[at]
            with replaced(model, name, layer, head, heads[layer]):
                changed = scores(model, EVERY)
            loss = -(changed - plain).gather(-1, own[:, None])[:, 0]
            kl = (plain.exp() * (plain - changed)).sum(-1)
            flips = (changed.argmax(-1) != own).double()
            lead = (changed[-1, 2] - changed[-1, 0]) - (plain[-1, 2] - plain[-1, 0])
            found = {metric: values[row] for metric, values in piece.metrics.items()}
            assert found["loss_delta"] == pytest.approx(float(loss.mean()), abs=2e-5)
            assert found["kl"] == pytest.approx(float(kl.mean()), abs=2e-5)
            assert found["flip_rate"] == pytest.approx(float(flips.mean()))
            assert found["logit_diff"] == pytest.approx(float(lead), abs=2e-5)
            if piece.token_losses is not None:
                assert piece.token_losses[row] == pytest.approx(loss.numpy(), abs=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_patches_are_those_of_a_loop(name):
    model, patchable = classifier(name), labelled(classifier(name))
    place = MODELS[name][3]
    options = PatchOptions("denoise", metrics=("logit_diff", "log_prob"))
    patching = torch_patching(patchable, [Pair(GIVEN, CORRUPT)], options)
    clean, corrupt = patching.predictions(0)
    assert clean.top == int(logits(model, place).argmax())
    assert (clean.position, corrupt.position) == (place, place)
    sites = patching.sites("output")
    patches = [Patch((site,)) for site in sites]
    before = scores(model, [place], CORRUPT)[0]
    for piece in patching.patch(0, patches, range(len(patches)), 1, 2):
        assert piece.corrupt["log_prob"] == pytest.approx(float(before[1]), abs=1e-5)
        for row, at in enumerate(piece.patches):
            layer, head = sites[at].layer, sites[at].head or 0
            with replaced(model, name, layer, head, patchable.heads[layer]) as seen:
                scores(model, [place])
            with replaced(model, name, layer, head, patchable.heads[layer], seen[0]):
                after = scores(model, [place], CORRUPT)[0]
            found = {metric: values[row] for metric, values in piece.metrics.items()}
            assert found["log_prob"] == pytest.approx(float(after[1]), abs=2e-5)
            assert found["logit_diff"] == pytest.approx(float(after[1] - after[2]), abs=2e-5)
