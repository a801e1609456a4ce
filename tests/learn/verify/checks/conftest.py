"""Tiny random models of transformers, and one thread for small matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnviz.learn.verify.examinee import Examinee
from attnviz.learn.verify.model import open_examinee
from attnviz.models.prepare import prepared
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Tokens

from ....small_models import (
    GPT_OSS,
    QWEN3_NEXT,
    SPECIAL,
    bert_fields,
    gpt_fields,
    llama_fields,
    random_model,
    t5_fields,
)

_LLAMA = llama_fields(24, 37, 31, (6, 2, 4))
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", gpt_fields(15, 31)),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _LLAMA),
    "bert": ("BertForMaskedLM", "BertConfig", bert_fields(21, 37, 31)),
    "t5": ("T5ForConditionalGeneration", "T5Config", t5_fields(23, 5, 37)),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", _LLAMA | GPT_OSS),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", gpt_fields(24, 31) | {"rotary_dim": 4}),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        _LLAMA | QWEN3_NEXT | {"layer_types": ["linear_attention", "full_attention"]},
    ),
}


def small(name: str, dtype: torch.dtype = torch.float32) -> TransformersModel:
    """A random model whose weights are large enough for mistakes to show."""
    torch.manual_seed(11)
    model = random_model(CONFIGS[name], vocab_size=89, **SPECIAL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return prepared(name, model.to(dtype), None, torch.device("cpu"), seed=11)


def tokens(count: int, seed: int = 3) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 89, (count,), generator=generator).tolist()
    return Tokens(tuple(ids), ("",) * count, (False,) * count)


@pytest.fixture
def examinee() -> Callable[..., tuple[TransformersModel, Examinee]]:
    """``examinee("gpt2")``: a model and its examinee over eleven tokens."""

    def make(name: str, dtype: torch.dtype = torch.float32) -> tuple[TransformersModel, Examinee]:
        model = small(name, dtype)
        return model, open_examinee(model, tokens(11), tokens(7, 5) if name == "t5" else None)

    return make


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Small matrices are slower on several threads."""
