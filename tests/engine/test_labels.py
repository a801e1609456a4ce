"""Labels of classifiers: found by a trial, and taken apart as words are."""

import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from attnviz.engine.attribution.on_torch import TorchAttributor
from attnviz.engine.attribution.parts import AskedLogit
from attnviz.engine.effects import ScanOptions, Variant
from attnviz.engine.patchable import POOLED, SEVERAL, patchable_transformers, with_labels
from attnviz.engine.patching import Pair, Patch, PatchOptions
from attnviz.engine.scan.on_torch import torch_patching, torch_scan
from attnviz.errors import UnsupportedError, UsageError
from attnviz.records import Input

from ..small_models import bert_fields, gpt_fields, llama_fields
from .attribution.attribution_oracle import ROUTES, Recorded, head_written

SEQUENCE, TOKENS = AutoModelForSequenceClassification, AutoModelForTokenClassification
WORDS = 41
GIVEN = Input.of_ids([3, 5, 7, 11, 13, 17, 5])
BERT, LLAMA = bert_fields(21, 37, 31), llama_fields(24, 37, 31, (4, 2, 6))
MODELS = {
    "bert": (SEQUENCE, "bert", BERT, 0),
    "roberta": (SEQUENCE, "roberta", BERT, 0),
    "distilbert": (SEQUENCE, "distilbert", {"dim": 21, "n_layers": 2, "n_heads": 3}, 0),
    "gpt2": (SEQUENCE, "gpt2", gpt_fields(21, 31), 6),
    "llama": (SEQUENCE, "llama", LLAMA, 6),
    "bert tokens": (TOKENS, "bert", BERT, 6),
    "qwen3 tokens": (TOKENS, "qwen3", LLAMA, 6),
}
HIDES = "bert.pooler.dense", "bert.pooler.activation", "classifier"
PLACES = {
    "bert": replace(ROUTES["bert"], ending=HIDES),
    "bert tokens": replace(ROUTES["bert"], ending=("classifier",)),
    "gpt2": replace(ROUTES["gpt2"], ending=("transformer.ln_f", "score")),
    "llama": replace(ROUTES["llama"], ending=("model.norm", "score")),
}
"""How a head's writing comes to the labels, by the modeling files."""
CORRUPT = Input.of_ids([3, 5, 7, 8, 13, 17, 5])
EVERY = range(len(GIVEN.ids))


def classifier(name, **more):
    cls, kind, sizes, _ = MODELS[name]
    torch.manual_seed(7)
    fields = {"vocab_size": WORDS, "num_labels": 3, "pad_token_id": 0, **sizes, **more}
    model = cls.from_config(AutoConfig.for_model(kind, **fields), attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval().requires_grad_(False)


def opened(model):
    patchable = patchable_transformers(model, "self", GIVEN)
    return TorchAttributor(with_labels(model, patchable, GIVEN), GIVEN)


def logits(model, place):
    found = model(torch.tensor([GIVEN.ids])).logits[0]
    return found if found.ndim == 1 else found[place]


@pytest.mark.parametrize("name", MODELS)
def test_parts_sum_to_the_label(name):
    model, place = classifier(name), MODELS[name][3]
    attributor = opened(model)
    assert attributor.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    found = attributor.attribute(GIVEN)
    own = logits(model, place)
    assert (found.position, found.answer) == (place, int(own.argmax()))
    assert found.logit == pytest.approx(float(own.max()), abs=1e-5)
    assert found.tallies
    assert (POOLED in found.notes) == (name in ("bert", "roberta", "distilbert"))
    compared = attributor.attribute(GIVEN, answer=2, foil=0)
    assert compared.sum == pytest.approx(float(own[2] - own[0]), abs=1e-5)
    for key, row in compared.rows.items():
        assert row.sum() == pytest.approx(compared.heads[key], abs=1e-5)
    assert len(compared.rows) == len(compared.heads)
    lens = attributor.lens(GIVEN, AskedLogit(None, None, None, ()))
    assert lens.tallies
    assert lens.blocks[-1].probability == pytest.approx(float(own.softmax(-1).max()), abs=1e-6)
    assert [each.head for each in lens.heads] == list(found.heads)
    two, zero = (attributor.lens(GIVEN, AskedLogit(None, at, None, ())).heads for at in (2, 0))
    for one, other in zip(two, zero, strict=True):
        assert one.answer - other.answer == pytest.approx(compared.heads[one.head], abs=1e-5)


@pytest.mark.parametrize("name", PLACES)
def test_a_head_writes_what_the_modules_make_of_it(name):
    model, place, route = classifier(name).double(), MODELS[name][3], PLACES[name]
    run = Recorded(model, {"input_ids": torch.tensor([GIVEN.ids])})
    found = opened(model).attribute(GIVEN, answer=1, foil=2)
    for (kind, layer, head), value in found.heads.items():
        count = sum(key[1] == layer for key in found.heads)
        merged = run.entered[route.heads["self"][0].format(layer)][0, place]
        alone = torch.zeros_like(merged).unflatten(-1, (count, -1))
        alone[head] = merged.unflatten(-1, (count, -1))[head]
        written = head_written(run, route, 2, kind, layer, alone.flatten(), place)
        assert value == pytest.approx(float(written[1] - written[2]), abs=2e-6), (layer, head)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_lens_leaves_later_blocks_out(name):
    model = classifier(name)
    lens = opened(model).lens(GIVEN, AskedLogit(None, 1, None, ()))
    trunk = model.bert.encoder.layer if name == "bert" else model.model.layers
    for left in (0, 1):
        plain = classifier(name)
        blocks = plain.bert.encoder.layer if name == "bert" else plain.model.layers
        del blocks[left:]
        if name == "llama":
            plain.model.config.num_hidden_layers = left
        own = logits(plain, MODELS[name][3]).softmax(-1)
        assert lens.blocks[left].probability == pytest.approx(float(own[1]), abs=1e-5)
    assert len(lens.blocks) == len(trunk) + 1


def test_texts_and_hidden_tokens_are_read_for_labels():
    model = classifier("llama")
    attributor = opened(model)
    other = Input.of_ids([3, 5, 9, 11, 13, 17, 5])
    both = attributor.logits_of_texts([GIVEN, other], 6)
    second = model(torch.tensor([other.ids])).logits[0]
    assert both[0] == pytest.approx(logits(model, 6).numpy(), abs=1e-5)
    assert both[1] == pytest.approx(second.numpy(), abs=1e-5)
    hidden = attributor.logits_of_texts([GIVEN], 6, [6])
    assert hidden[0] == pytest.approx(both[0], abs=1e-5)  # nobody reads the last token


@pytest.mark.parametrize("name", ["bert", "distilbert", "llama"])
def test_a_text_may_have_several_labels(name):
    model, place = classifier(name, problem_type="multi_label_classification"), MODELS[name][3]
    patchable = with_labels(
        model, patchable_transformers(model, "self", GIVEN), GIVEN, several=True
    )
    attributor, own = TorchAttributor(patchable, GIVEN), logits(model, place)
    found = attributor.attribute(GIVEN)
    assert (found.position, found.answer, found.several) == (place, int(own.argmax()), True)
    assert found.tallies
    assert SEVERAL in found.notes
    for label in range(3):
        one = attributor.attribute(GIVEN, answer=label)
        assert one.sum == pytest.approx(float(own[label]), abs=1e-5)
        assert dict(one.top)[label] == pytest.approx(1 / (1 + math.exp(-own[label])), abs=1e-6)
    compared = attributor.attribute(GIVEN, answer=2, foil=0)
    assert compared.sum == pytest.approx(float(own[2] - own[0]), abs=1e-5)
    with pytest.raises(UnsupportedError, match="may have several labels"):
        attributor.lens(GIVEN, AskedLogit(None, None, None, ()))


def test_where_there_is_no_one_label():
    several = classifier("bert", problem_type="multi_label_classification")
    patchable = patchable_transformers(several, "self", GIVEN)
    assert with_labels(several, patchable, GIVEN) is patchable
    attributor = opened(classifier("bert"))
    assert attributor.attribute(GIVEN, position=0).position == 0
    with pytest.raises(UsageError, match="read at position 0 alone"):
        attributor.attribute(GIVEN, position=3)
    tokens = opened(classifier("bert tokens"))
    assert tokens.attribute(GIVEN, position=-5).position == 2
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "modernbert", vocab_size=WORDS, num_labels=3, classifier_pooling="mean", pad_token_id=0,
        bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
        **BERT | {"hidden_size": 24},
    )  # fmt: skip
    mean = SEQUENCE.from_config(config, attn_implementation="eager").eval()
    with pytest.raises(UnsupportedError, match="from 7 tokens at once"):
        opened(mean).attribute(GIVEN)


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
