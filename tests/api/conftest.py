"""Weights of anyone's model, a tiny transformers model, and a terminal that has no wishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

WORDS = ("the", "cat", "sat", "on", "mat", "dog")


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR", "LINES", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def rows() -> Callable[..., np.ndarray]:
    """``rows(2, 3, 5)``: weights of 2 heads, 3 queries and 5 keys, rows that sum to one."""

    def draw(*shape: int, seed: int = 0) -> np.ndarray:
        raw = np.random.default_rng(seed).random(shape) + 0.01
        return raw / raw.sum(-1, keepdims=True)

    return draw


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Words of a small vocabulary between ``<s>`` and ``</s>``."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    names = ["<unk>", "<s>", "</s>", *WORDS]
    words = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


@pytest.fixture
def model() -> Any:
    """A fresh random llama: 2 layers, 3 heads on 1 key/value head, dropout while training."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=12,
        intermediate_size=13,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=31,
        attention_dropout=0.5,
    )
    return transformers.LlamaForCausalLM(config)
