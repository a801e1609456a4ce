"""Which decoders ``NumpyStack`` can run: one description for each family, no code.

A description says how ``config.json`` calls the sizes, which of its settings are computed and which
say nothing about the forward pass, and how the tensors of each role are called. A checkpoint whose
config has any other field, or another value, is not understood; neither is one with a tensor that
has no place.

To add a family: copy the nearest one, change what differs, and add a small config of it to
``tests/attention/test_families.py``, which holds its weights against transformers'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from attnviz.attention.numpy_stack import Activation

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""What transformers calls them."""

SILENT = {
    *("architectures", "model_type", "_name_or_path", "name_or_path", "transformers_version"),
    *("torch_dtype", "dtype", "use_cache", "initializer_range", "gradient_checkpointing"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id"),
    *("decoder_start_token_id", "task_specific_params", "finetuning_task", "problem_type"),
    *("id2label", "label2id", "return_dict", "output_attentions", "output_hidden_states"),
    *("tie_word_embeddings", "attention_dropout", "pretraining_tp", "_commit_hash"),
    "tokenizer_class",
}
"""Fields of every family that say nothing about the forward pass of attention."""

MUST_BE: Mapping[str, tuple[object, ...]] = {
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
    sizes: our names, such as ``layers``, and the config's fields; behind ``=`` what holds where
        the field is missing or null: a number, or other sizes as in ``d_model/heads``.
    tensors: role and stored name, with ``N`` for the layer. Roles that share a name are stacked in
        one tensor, one below the other, in the order in which they stand here.
    prefixes: what may stand before all of the names.
    heads: the classes of models, and of each the names and shapes of the tensors that its head has,
        in our sizes; one that begins with ``?`` may be missing, and so may an unembedding that is
        the embedding. tied: whether it is where the config does not say.
    norm, order, causal: see ``StackShape``. norm_eps: the field of it.
    activation: the field of that of the feed-forward.
    biases: roles, and whether they have one: always, or where a field says so.
    rotary: whether query and key are turned by position, whole or a part that the config says.
    required: further fields without which transformers would take a number of its own.
    padding: see ``StackShape``.
    transposed: whether the linear maps are stored (in, out), as GPT-2's ``Conv1D`` does.
    by_head: whether stacked queries, keys and values alternate head by head.
    settings: further fields, and the values with which the computation is the one described; a
        missing field has the first of them.
    silent: further fields that say nothing about the attention.
    unused: what else may be stored, as a pattern of names: other heads, and buffers of older
        versions.
    """

    model_types: tuple[str, ...]
    sizes: Mapping[str, str]
    tensors: Mapping[str, str]
    prefixes: tuple[str, ...]
    norm: Literal["rms", "layer"]
    order: Literal["before", "after", "parallel"]
    norm_eps: str
    activation: str
    causal: bool
    biases: Mapping[str, bool | str]
    heads: Mapping[str, Mapping[str, str]]
    unused: str
    tied: bool = False
    rotary: Literal["whole", "part"] | None = None
    required: tuple[str, ...] = ()
    padding: int | None = None
    transposed: bool = False
    by_head: bool = False
    settings: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()


LINEAR = ("query", "key", "value", "output", "gate", "up", "down")
_ATTENTION, _FEED_FORWARD = LINEAR[:4], LINEAR[4:]

UNEMBEDDING = "vocabulary d_model"


def _causal(name: str) -> dict[str, dict[str, str]]:
    return {f"{name}Model": {}, f"{name}ForCausalLM": {"lm_head.weight": UNEMBEDDING}}


SIZES = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "vocabulary": "vocab_size",
    "context": "max_position_embeddings",
}
"""As most configs call them."""

LLAMA = Family(
    model_types=("llama",),
    sizes={
        **SIZES,
        "kv_heads": "num_key_value_heads=heads",
        "head_dim": "head_dim=d_model/heads",
        "context": "max_position_embeddings=2048",
    },
    tensors={
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
    },
    prefixes=("model.", ""),
    norm="rms",
    order="before",
    norm_eps="rms_norm_eps",
    activation="hidden_act",
    causal=True,
    biases={
        **dict.fromkeys(_ATTENTION, "attention_bias"),
        **dict.fromkeys(_FEED_FORWARD, "mlp_bias"),
    },
    rotary="whole",
    heads=_causal("Llama"),
    unused=r"lm_head\.weight|score\..*|.*rotary_emb\.inv_freq",
)

_STATED = {**LLAMA.sizes, **SIZES, "kv_heads": "num_key_value_heads"}

_MISTRAL = replace(
    LLAMA,
    model_types=("mistral",),
    sizes=_STATED,
    heads=_causal("Mistral"),
    biases={},
    required=("sliding_window",),
)

_QWEN2 = replace(
    LLAMA,
    model_types=("qwen2",),
    sizes=_STATED,
    heads=_causal("Qwen2"),
    biases=dict.fromkeys(("query", "key", "value"), True),
    settings={"use_sliding_window": (False,), "use_mrope": (False,)},
    silent=("max_window_layers", "sliding_window"),
)

_QWEN3 = replace(
    _QWEN2,
    model_types=("qwen3",),
    heads=_causal("Qwen3"),
    sizes={**_STATED, "head_dim": "head_dim=128"},
    tensors={
        **LLAMA.tensors,
        "layers.N.query_norm": "layers.N.self_attn.q_norm",
        "layers.N.key_norm": "layers.N.self_attn.k_norm",
    },
    biases=dict.fromkeys(_ATTENTION, "attention_bias"),
)

_PHI3 = replace(
    LLAMA,
    model_types=("phi3",),
    sizes=_STATED,
    heads=_causal("Phi3"),
    tensors={
        **LLAMA.tensors,
        **dict.fromkeys(
            ("layers.N.query", "layers.N.key", "layers.N.value"), "layers.N.self_attn.qkv_proj"
        ),
        **dict.fromkeys(("layers.N.gate", "layers.N.up"), "layers.N.mlp.gate_up_proj"),
    },
    biases={},
    silent=("resid_pdrop", "embd_pdrop", "original_max_position_embeddings"),
)

_GPT2 = Family(
    model_types=("gpt2",),
    sizes={
        "layers": "n_layer",
        "heads": "n_head",
        "d_model": "n_embd",
        "d_ff": "n_inner=4*d_model",
        "vocabulary": "vocab_size",
        "context": "n_positions",
    },
    tensors={
        "tokens": "wte",
        "positions": "wpe",
        "layers.N.attention_norm": "h.N.ln_1",
        "layers.N.query": "h.N.attn.c_attn",
        "layers.N.key": "h.N.attn.c_attn",
        "layers.N.value": "h.N.attn.c_attn",
        "layers.N.output": "h.N.attn.c_proj",
        "layers.N.feed_norm": "h.N.ln_2",
        "layers.N.up": "h.N.mlp.c_fc",
        "layers.N.down": "h.N.mlp.c_proj",
        "final_norm": "ln_f",
    },
    prefixes=("transformer.", ""),
    norm="layer",
    order="before",
    norm_eps="layer_norm_epsilon",
    activation="activation_function",
    causal=True,
    biases=dict.fromkeys(LINEAR, True),
    transposed=True,
    settings={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
    silent=(
        *("n_ctx", "attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn"),
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
        *("summary_type", "summary_use_proj"),
    ),
    heads={"GPT2Model": {}, "GPT2LMHeadModel": {"lm_head.weight": UNEMBEDDING}},
    tied=True,
    unused=r"lm_head\.weight|score\.weight|.*\.attn\.(masked_)?bias",
)

_GPT_NEOX = Family(
    model_types=("gpt_neox",),
    sizes=SIZES,
    tensors={
        "tokens": "embed_in",
        "layers.N.attention_norm": "layers.N.input_layernorm",
        "layers.N.query": "layers.N.attention.query_key_value",
        "layers.N.key": "layers.N.attention.query_key_value",
        "layers.N.value": "layers.N.attention.query_key_value",
        "layers.N.output": "layers.N.attention.dense",
        "layers.N.feed_norm": "layers.N.post_attention_layernorm",
        "layers.N.up": "layers.N.mlp.dense_h_to_4h",
        "layers.N.down": "layers.N.mlp.dense_4h_to_h",
        "final_norm": "final_layer_norm",
    },
    prefixes=("gpt_neox.", ""),
    norm="layer",
    order="parallel",
    norm_eps="layer_norm_eps",
    activation="hidden_act",
    causal=True,
    biases={
        **dict.fromkeys(_ATTENTION, "attention_bias=true"),
        **dict.fromkeys(_FEED_FORWARD, True),
    },
    by_head=True,
    rotary="part",
    settings={"use_parallel_residual": (True,)},
    silent=("hidden_dropout", "classifier_dropout"),
    heads={
        "GPTNeoXModel": {},
        "GPTNeoXForCausalLM": {"embed_out.weight": UNEMBEDDING},
    },
    unused=r"embed_out\.weight|.*\.attention\.(masked_)?bias|.*rotary_emb\.inv_freq",
)

DECODERS = (LLAMA, _MISTRAL, _QWEN2, _QWEN3, _PHI3, _GPT2, _GPT_NEOX)
