"""Weights of anyone's model, a tiny transformers model, and a terminal that has no wishes."""

import numpy as np
import pytest

from ..small_models import llama_fields, word_tokenizer

WORDS = ("the", "cat", "sat", "on", "mat", "dog")


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR", "LINES", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def rows():
    """``rows(2, 3, 5)``: weights of 2 heads, 3 queries and 5 keys, rows that sum to one."""

    def draw(*shape, seed=0):
        raw = np.random.default_rng(seed).random(shape) + 0.01
        return raw / raw.sum(-1, keepdims=True)

    return draw


@pytest.fixture(scope="session")
def tokenizer():
    """Words of a small vocabulary between ``<s>`` and ``</s>``."""
    return word_tokenizer(["<unk>", "<s>", "</s>", *WORDS])


@pytest.fixture
def model():
    """A fresh random llama: 2 layers, 3 heads on 1 key/value head, dropout while training."""
    import torch
    import transformers

    torch.manual_seed(0)
    fields = llama_fields(12, 13, 31, (3, 1, 4))
    config = transformers.LlamaConfig(vocab_size=11, attention_dropout=0.5, **fields)
    return transformers.LlamaForCausalLM(config)
