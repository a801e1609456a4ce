"""Which decoders ``NumpyStack`` can run: one description for each family, no code.

A description says how ``config.json`` calls the sizes, which of its settings are computed and which
say nothing about the forward pass, and how the tensors of each role are called; see ``family``. A
checkpoint whose config has any other field, or another value, is not understood; neither is one
with a tensor that has no place.

To add a family: copy the nearest one, change what differs, and add a small config of it to
``tests/attention/test_families.py``, which holds its weights against transformers'.
"""

from __future__ import annotations

from dataclasses import replace

from attnviz.attention.family import LINEAR, SIZES, UNEMBEDDING, Family, linear

_ATTENTION, _FEED_FORWARD = LINEAR[:4], LINEAR[4:]


def _heads(name: str) -> dict[str, dict[str, str]]:
    """The classes of the Llama line."""
    return {
        f"{name}Model": {},
        f"{name}ForCausalLM": {"lm_head.weight": UNEMBEDDING},
        f"{name}ForSequenceClassification": {"score.weight": "labels d_model"},
        f"{name}ForTokenClassification": linear("score", "labels"),
    }


LLAMA = Family(
    model_types=("llama",),
    sizes={
        **SIZES,
        "kv_heads": "num_key_value_heads?=heads",
        "head_dim": "head_dim?=d_model/heads",
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
    # what two conversions of SmolLM's say, and no release of transformers reads
    settings={"is_llama_config": (True,), "rope_interleaved": (False,)},
    heads=_heads("Llama"),
    unused=r"(lm_head|score)\..*|.*rotary_emb\.inv_freq",
)

_STATED = {
    **SIZES,
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim=d_model/heads",
}

_MISTRAL = replace(
    LLAMA,
    model_types=("mistral",),
    sizes={**_STATED, "head_dim": "head_dim?=d_model/heads"},
    heads=_heads("Mistral"),
    biases={},
    settings={},
    windows="every",
    required=("sliding_window",),
)

_QWEN2 = replace(
    LLAMA,
    model_types=("qwen2",),
    sizes=_STATED,
    heads=_heads("Qwen2"),
    biases=dict.fromkeys(("query", "key", "value"), True),
    settings={"use_mrope": (False,)},
    windows="listed",
    silent=("max_window_layers",),
)

_QWEN3 = replace(
    _QWEN2,
    model_types=("qwen3",),
    heads=_heads("Qwen3"),
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
    sizes={**_STATED, "original_context": "original_max_position_embeddings=4096"},
    heads=_heads("Phi3"),
    tensors={
        **LLAMA.tensors,
        **dict.fromkeys(
            ("layers.N.query", "layers.N.key", "layers.N.value"), "layers.N.self_attn.qkv_proj"
        ),
        **dict.fromkeys(("layers.N.gate", "layers.N.up"), "layers.N.mlp.gate_up_proj"),
    },
    biases={},
    settings={},
    rotary="part",
    stretches=("default", "longrope"),
    required=("pad_token_id",),
    windows="every",
    silent=("resid_pdrop", "embd_pdrop"),
)

_SMOLLM3 = replace(
    LLAMA,
    model_types=("smollm3",),
    sizes=_STATED,
    heads=_heads("SmolLM3"),
    required=("pad_token_id",),
    tied=True,
    settings={},
    theta="rope_theta=2000000",
    turned="no_rope_layers",
    windows="listed",
    silent=("no_rope_layer_interval", "max_window_layers"),
)

_GEMMA = replace(
    LLAMA,
    model_types=("gemma",),
    sizes={**_STATED, "head_dim": "head_dim=256"},
    heads=_heads("Gemma"),
    tied=True,
    norm="rms-from-one",
    embedding_scale="d_model",
    activations={"gelu": "gelu_tanh"},
    biases=dict.fromkeys(_ATTENTION, "attention_bias"),
    settings={"use_bidirectional_attention": (False, None)},
    silent=("hidden_activation",),
)

_GPT2 = Family(
    model_types=("gpt2",),
    sizes={
        "layers": "n_layer",
        "heads": "n_head",
        "d_model": "n_embd",
        "d_ff": "n_inner?=4*d_model",
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
    heads={
        "GPT2Model": {},
        "GPT2LMHeadModel": {"lm_head.weight": UNEMBEDDING},
        "GPT2ForSequenceClassification": {"score.weight": "labels d_model"},
        "GPT2ForTokenClassification": linear("classifier", "labels"),
        "GPT2ForQuestionAnswering": linear("qa_outputs", "2"),
    },
    tied=True,
    unused=r"(lm_head|score|classifier|qa_outputs)\..*|.*\.attn\.(masked_)?bias",
)

_GPT_NEO = replace(
    _GPT2,
    model_types=("gpt_neo",),
    sizes={
        "layers": "num_layers",
        "heads": "num_heads",
        "d_model": "hidden_size",
        "d_ff": "intermediate_size?=4*d_model",
        "vocabulary": "vocab_size",
        "context": "max_position_embeddings",
    },
    tensors={
        **_GPT2.tensors,
        "layers.N.query": "h.N.attn.attention.q_proj",
        "layers.N.key": "h.N.attn.attention.k_proj",
        "layers.N.value": "h.N.attn.attention.v_proj",
        "layers.N.output": "h.N.attn.attention.out_proj",
    },
    biases=dict.fromkeys(("output", "up", "down"), True),
    transposed=False,
    scaled=False,
    windows="listed",
    window="window_size",
    settings={},
    silent=(
        *("resid_dropout", "embed_dropout", "classifier_dropout", "attention_layers"),
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
        *("summary_type", "summary_use_proj"),
    ),
    heads={
        "GPTNeoModel": {},
        "GPTNeoForCausalLM": {"lm_head.weight": UNEMBEDDING},
        "GPTNeoForSequenceClassification": {"score.weight": "labels d_model"},
        "GPTNeoForTokenClassification": linear("classifier", "labels"),
        "GPTNeoForQuestionAnswering": linear("qa_outputs", "2"),
    },
    unused=r"(lm_head|score|classifier|qa_outputs)\..*|.*\.attention\.(masked_)?bias",
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
    theta="rotary_emb_base=10000",
    share="rotary_pct=0.25",
    settings={"use_parallel_residual": (True,)},
    silent=("hidden_dropout", "classifier_dropout"),
    heads={
        "GPTNeoXModel": {},
        "GPTNeoXForCausalLM": {"embed_out.weight": UNEMBEDDING},
        "GPTNeoXForSequenceClassification": {"score.weight": "labels d_model"},
        "GPTNeoXForTokenClassification": linear("classifier", "labels"),
        "GPTNeoXForQuestionAnswering": linear("qa_outputs", "2"),
    },
    unused=r"(embed_out|score|classifier|qa_outputs)\..*|.*\.attention\.(masked_)?bias|.*rotary_emb\.inv_freq",
)

DECODERS = (
    *(LLAMA, _MISTRAL, _QWEN2, _QWEN3, _PHI3, _SMOLLM3, _GEMMA),
    *(_GPT2, _GPT_NEO, _GPT_NEOX),
)
