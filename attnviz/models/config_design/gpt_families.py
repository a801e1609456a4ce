"""The decoders of the GPT-2 generation, each with its spellings and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attnviz.designs import Design
from attnviz.models.config_design import gpt, open_gpt
from attnviz.models.config_design.family import Family

__all__ = ["GPT_FAMILIES"]


_GPT_NAMES = {
    "hidden_size": ("n_embd",),
    "num_attention_heads": ("n_head",),
    "num_hidden_layers": ("n_layer",),
    "max_position_embeddings": ("n_positions",),
}


def _gpt(
    read: Callable[..., Design],
    bare: str,
    causal: str,
    defaults: Mapping[str, Any],
    spellings: Mapping[str, tuple[str, ...]],
) -> Family:
    classes = {bare: partial(read, with_head=False), causal: partial(read, with_head=True)}
    return Family(classes, causal, defaults, spellings)


def _gpt_sizes(
    vocab: int, positions: int, width: int, layers: int, heads: int, *, tied: bool, **more: Any
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
        **more,
    }


GPT_FAMILIES = {
    "gpt2": _gpt(
        *(gpt.gpt2, "GPT2Model", "GPT2LMHeadModel"),
        _gpt_sizes(50257, 1024, 768, 12, 12, tied=True),
        _GPT_NAMES,
    ),
    "gpt_bigcode": _gpt(
        *(gpt.gpt_bigcode, "GPTBigCodeModel", "GPTBigCodeForCausalLM"),
        _gpt_sizes(50257, 1024, 768, 12, 12, tied=True, multi_query=True),
        _GPT_NAMES,
    ),
    "gpt_neo": _gpt(
        *(gpt.gpt_neo, "GPTNeoModel", "GPTNeoForCausalLM"),
        _gpt_sizes(
            *(50257, 2048, 2048, 24, 16),
            tied=True,
            window_size=256,
            attention_types=[[["global", "local"], 12]],
        ),
        {"num_attention_heads": ("num_heads",), "num_hidden_layers": ("num_layers",)},
    ),
    "gptj": _gpt(
        *(gpt.gptj, "GPTJModel", "GPTJForCausalLM"),
        _gpt_sizes(50400, 2048, 4096, 28, 16, tied=False),
        _GPT_NAMES,
    ),
    "codegen": _gpt(
        *(gpt.gptj, "CodeGenModel", "CodeGenForCausalLM"),
        _gpt_sizes(50400, 2048, 4096, 28, 16, tied=False),
        _GPT_NAMES,
    ),
    "gpt_neox": _gpt(
        *(gpt.gpt_neox, "GPTNeoXModel", "GPTNeoXForCausalLM"),
        _gpt_sizes(
            *(50432, 2048, 6144, 44, 64), tied=False, intermediate_size=24576, attention_bias=True
        ),
        {},
    ),
    "bloom": _gpt(
        *(open_gpt.bloom, "BloomModel", "BloomForCausalLM"),
        _gpt_sizes(250880, 2048, 64, 2, 8, tied=True),
        {
            "hidden_size": ("n_embed",),
            "num_attention_heads": ("n_head",),
            "num_hidden_layers": ("n_layer",),
        },
    ),
    "falcon": _gpt(
        *(open_gpt.falcon, "FalconModel", "FalconForCausalLM"),
        _gpt_sizes(65024, 2048, 4544, 32, 71, tied=True, multi_query=True, parallel_attn=True),
        {"num_attention_heads": ("n_head",), "num_hidden_layers": ("n_layer",)},
    ),
    "mpt": _gpt(
        *(open_gpt.mpt, "MptModel", "MptForCausalLM"),
        _gpt_sizes(50368, 2048, 2048, 24, 16, tied=True),
        {
            "hidden_size": ("d_model",),
            "num_attention_heads": ("n_heads",),
            "num_hidden_layers": ("n_layers",),
            "max_position_embeddings": ("max_seq_len",),
        },
    ),
    "opt": _gpt(
        *(open_gpt.opt, "OPTModel", "OPTForCausalLM"),
        _gpt_sizes(
            *(50272, 2048, 768, 12, 12),
            tied=True,
            ffn_dim=3072,
            do_layer_norm_before=True,
            enable_bias=True,
            layer_norm_elementwise_affine=True,
        ),
        {},
    ),
}
