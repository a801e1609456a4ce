"""Tiny random models of transformers, and one thread for small matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers

from attnviz.models.prepare import prepared
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Tokens
from attnviz.verify.examinee import Examinee
from attnviz.verify.model import open_examinee

_WORDS = {"vocab_size": 89, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LLAMA = {
    "hidden_size": 24,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 31,
}
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 15, "n_layer": 2, "n_head": 3, "n_positions": 31},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _LLAMA),
    "bert": (
        "BertForMaskedLM",
        "BertConfig",
        {
            "hidden_size": 21,
            "intermediate_size": 37,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "max_position_embeddings": 31,
        },
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "d_model": 23,
            "d_kv": 5,
            "d_ff": 37,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": 3,
            "decoder_start_token_id": 0,
        },
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        _LLAMA
        | {
            "intermediate_size": 36,
            "num_local_experts": 3,
            "num_experts_per_tok": 2,
            "sliding_window": 5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "gptj": (
        "GPTJForCausalLM",
        "GPTJConfig",
        {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 31, "rotary_dim": 4},
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        _LLAMA
        | {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 4,
            "linear_value_head_dim": 4,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 12,
            "shared_expert_intermediate_size": 12,
        },
    ),
}


def small(name: str, dtype: torch.dtype = torch.float32) -> TransformersModel:
    """A random model whose weights are large enough for mistakes to show."""
    model_class, config_class, fields = CONFIGS[name]
    config = getattr(transformers, config_class)(**_WORDS, **fields)
    torch.manual_seed(11)
    model = getattr(transformers, model_class)(config)
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
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
