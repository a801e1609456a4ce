"""Which checkpoints ``NumpyStack`` can run: one description for each family, no code.

A description says how ``config.json`` calls the sizes, which of its settings are computed and which
say nothing about the forward pass, and how the tensors of each role are called. A checkpoint whose
config has any other field, or another value, is not understood; neither is one with a tensor that
has no place.

To add a family: copy the nearest one, change what differs, and add a small config of it to
``tests/attention/test_families.py``, which holds its weights against transformers'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from attnviz.attention.functional import Rotary
from attnviz.attention.numpy_stack import Activation, StackShape


class NotUnderstoodError(Exception):
    """What of a checkpoint no description covers, in words."""


_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""What transformers calls them."""

_SILENT = {
    *("architectures", "model_type", "_name_or_path", "name_or_path", "transformers_version"),
    *("torch_dtype", "dtype", "use_cache", "initializer_range", "gradient_checkpointing"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id"),
    *("decoder_start_token_id", "task_specific_params", "finetuning_task", "problem_type"),
    *("id2label", "label2id", "return_dict", "output_attentions", "output_hidden_states"),
    *("tie_word_embeddings", "attention_dropout", "pretraining_tp", "_commit_hash"),
}
"""Fields of every family that say nothing about the forward pass of attention."""

_MUST_BE: Mapping[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "chunk_size_feed_forward": (0,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "tf_legacy_loss": (False,),
    "use_bfloat16": (False,),
    "torchscript": (False,),
}
"""Fields of every family, and the values with which the computation is the plain one."""


@dataclass(frozen=True)
class Family:
    """How a checkpoint of one architecture is read.

    model_types: as ``config.json`` says them.
    sizes: our names, such as ``layers``, and the config's; a default behind ``=`` where the field
        may be missing, in terms of other sizes: ``num_key_value_heads=heads``.
    tensors: role and stored name, with ``N`` for the layer. Roles that share a name are stacked in
        one tensor, one below the other, in the order in which they stand here.
    prefixes: what may stand before all of the names.
    order, norm, causal: see ``StackShape``.
    norm_eps: what the config calls it. activation: what the config calls that of the feed-forward.
    transposed: roles whose tensors are stored (in, out).
    by_head: whether stacked queries, keys and values alternate head by head.
    settings: further fields, and the values with which the computation is the one described.
    silent: further fields that say nothing about it.
    unused: names of tensors, as a pattern, that no map needs.
    rotary: whether query and key are turned by position.
    first_position: the row of learned positions that the first token has, or the field that it
        is one more than.
    """

    model_types: tuple[str, ...]
    sizes: Mapping[str, str]
    tensors: Mapping[str, str]
    prefixes: tuple[str, ...]
    order: Literal["before", "after", "parallel"]
    norm: Literal["rms", "layer"]
    norm_eps: str
    activation: str
    causal: bool
    unused: str = ""
    transposed: tuple[str, ...] = ()
    by_head: bool = False
    rotary: bool = False
    first_position: str | int = 0
    settings: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()


_LLAMA_SIZES = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads=heads",
    "d_model": "hidden_size",
    "head_dim": "head_dim=d_model/heads",
    "d_ff": "intermediate_size",
    "vocabulary": "vocab_size",
    "context": "max_position_embeddings",
}

LLAMA_TENSORS = {
    "tokens": "embed_tokens",
    "layers.N.attention_norm": "layers.N.input_layernorm",
    "layers.N.query": "layers.N.self_attn.q_proj",
    "layers.N.key": "layers.N.self_attn.k_proj",
    "layers.N.value": "layers.N.self_attn.v_proj",
    "layers.N.output": "layers.N.self_attn.o_proj",
    "layers.N.feed_norm": "layers.N.post_attention_layernorm",
    "layers.N.gate": "layers.N.mlp.gate_proj",
    "layers.N.up": "layers.N.mlp.up_proj",
    "layers.N.down": "layers.N.mlp.down_proj",
    "final_norm": "norm",
}

_BERT_SIZES = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "vocabulary": "vocab_size",
    "context": "max_position_embeddings",
}

_BERT_TENSORS = {
    "tokens": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "layers.N.query": "encoder.layer.N.attention.self.query",
    "layers.N.key": "encoder.layer.N.attention.self.key",
    "layers.N.value": "encoder.layer.N.attention.self.value",
    "layers.N.output": "encoder.layer.N.attention.output.dense",
    "layers.N.attention_norm": "encoder.layer.N.attention.output.LayerNorm",
    "layers.N.up": "encoder.layer.N.intermediate.dense",
    "layers.N.down": "encoder.layer.N.output.dense",
    "layers.N.feed_norm": "encoder.layer.N.output.LayerNorm",
}

_LLAMA = Family(
    model_types=("llama",),
    sizes=_LLAMA_SIZES,
    tensors=LLAMA_TENSORS,
    prefixes=("model.", ""),
    order="before",
    norm="rms",
    norm_eps="rms_norm_eps",
    activation="hidden_act",
    causal=True,
    rotary=True,
    unused=r"lm_head\.weight|score\..*|.*rotary_emb\.inv_freq",
    silent=("attention_bias", "mlp_bias"),
)
