"""Losses of a text are those of float64; a page's vectors are there, or a note says why not."""

import math
import re

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import attnviz
from attnviz.engine import text_pass
from attnviz.engine.text_pass import judged, token_losses
from attnviz.models.resolve import load

from .sizes import set_sizes

TEXT = "the cat saw the dog ."


@pytest.mark.parametrize("tokens", [0, 1, 2, 11])
def test_losses_are_those_of_float64(tokens, monkeypatch):
    set_sizes(monkeypatch, logit_cells=3 * 23)
    logits = torch.randn(tokens, 23, generator=torch.Generator().manual_seed(0)) * 5
    ids = [(5 * at) % 23 for at in range(tokens)]
    logs = logits.double().log_softmax(-1)
    expected = [-float(logs[at, word]) for at, word in enumerate(ids[1:])]
    for given in (logits.numpy(), logits):
        found = token_losses(given, ids)
        assert found.dtype == np.float64
        assert found == pytest.approx(expected, abs=1e-5)
    if tokens:
        assert token_losses(logits.bfloat16(), ids) == pytest.approx(expected, abs=0.1)


def vectors_of(model, **options):
    report = attnviz.heads(str(model), TEXT, vectors=True, **options).first
    return report.vectors


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_queries_and_keys_make_the_weights(checkpoint, name):
    given, maps = vectors_of(checkpoint(name)), attnviz.capture(str(checkpoint(name)), TEXT)
    assert given.notes == ()
    for layer, head in maps:
        weights = maps[layer, head]
        scores = given.queries[layer][head] @ given.keys[layer][head].T * given.factor
        powers = np.exp(scores) * (weights > 0)
        assert powers / powers.sum(-1, keepdims=True) == pytest.approx(weights, abs=1e-5)


def test_what_is_missing_is_said(checkpoint, monkeypatch):
    (note,) = vectors_of(checkpoint("t5"), kind="encoder").notes
    assert note.startswith("Without query × key: the weights of ")
    assert note.endswith("alone (a soft cap, a sink or a bias of its own).")
    assert vectors_of("tiny", ablate=["L1H2"]).notes == (
        "Without query × key: heads were ablated, which changes those of later layers.",
    )
    monkeypatch.setattr(text_pass, "_MOST", 100)
    (note,) = vectors_of("tiny").notes
    assert "more than 100 numbers" in note


def test_a_random_checkpoint_and_its_loss(checkpoint):
    """The loss is recomputed by transformers."""
    path = str(checkpoint("llama"))
    model = judged(load(path))
    loss, uniform = map(float, re.findall(r"[\d.]+", model.info.untrained))
    other = AutoModelForCausalLM.from_pretrained(path)
    assert uniform == round(math.log(other.config.vocab_size), 2)
    ids = torch.tensor(
        [model.encode("The cat sat on the mat because it was tired, and the dog went home.").ids]
    )
    with torch.no_grad():
        assert loss == round(float(other(ids, labels=ids).loss), 2)


def test_a_trained_model_and_one_whose_gains_moved_are_not(checkpoint):
    assert judged(load("tiny")).info.untrained == ""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = str(checkpoint("gpt2"))
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        model.transformer.h[0].ln_1.weight[0] += 0.1
    report = attnviz.heads(model, "a b", tokenizer=AutoTokenizer.from_pretrained(path))
    assert report.first.record.model.untrained == ""
