"""A checkpoint with the weights of its first day is called so in the first line."""

import math
import re

import torch

import attnviz
from attnviz.engine.text_pass import judged
from attnviz.models.resolve import load


def test_a_random_checkpoint_and_its_loss(checkpoint):
    """The loss is recomputed by transformers."""
    from transformers import AutoModelForCausalLM

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
