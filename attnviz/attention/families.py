"""The model families that ``NumpyStack`` can run: one description for each, no code.

A description names the fields of ``config.json`` that hold the sizes, the settings that are
supported, the settings that do not affect the forward pass, and the stored tensor of each role; see
``family``. A checkpoint is not understood if its config has any other field or value, or if it has
a tensor that no role names.

To add a family: copy the nearest one, change what differs, and add a small config of it to
``tests/attention/test_families.py``, which compares its weights with transformers'.
"""

from __future__ import annotations

from dataclasses import replace

from attnviz.attention.family import (
    LINEAR,
    SIZES,
    UNEMBEDDING,
    Family,
    Head,
    encoder_heads,
    gpt_heads,
    in_layer,
    linear,
    llama_heads,
    norm,
)

_ATTENTION, _FEED_FORWARD = LINEAR[:4], LINEAR[4:]
_NORMS = "input_layernorm post_attention_layernorm"

# fmt: off

# Decoders -------------------------------------------------------------------------------------

_LLAMA_ATTENTION = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj"
LLAMA = Family(
    model_types=("llama",), prefixes=("model.", ""), heads=llama_heads("Llama"),
    causal=True, order="before", norm="rms", norm_eps="rms_norm_eps", activation="hidden_act",
    rotary="whole", cut=True,
    sizes={
        **SIZES, "kv_heads": "num_key_value_heads?=heads", "head_dim": "head_dim?=d_model/heads",
        "context": "max_position_embeddings=2048",
    },
    tensors={
        "tokens": "embed_tokens", "final_norm": "norm",
        **in_layer("layers.N", _NORMS, _LLAMA_ATTENTION, "mlp.gate_proj mlp.up_proj mlp.down_proj"),
    },
    biases={
        **dict.fromkeys(_ATTENTION, "attention_bias"), **dict.fromkeys(_FEED_FORWARD, "mlp_bias"),
    },
    # in two conversions of SmolLM; no release of transformers reads them
    settings={"is_llama_config": (True,), "rope_interleaved": (False,)},
    unused=r"(lm_head|score)\..*|.*rotary_emb\.inv_freq",
)

_STATED = {**SIZES, "kv_heads": "num_key_value_heads", "head_dim": "head_dim=d_model/heads"}

_MISTRAL = replace(
    LLAMA, model_types=("mistral",), heads=llama_heads("Mistral"),
    sizes={**_STATED, "head_dim": "head_dim?=d_model/heads"},
    biases={}, settings={}, windows="every", required=("sliding_window",),
)

_QWEN2 = replace(
    LLAMA, model_types=("qwen2",), heads=llama_heads("Qwen2"), sizes=_STATED,
    biases=dict.fromkeys(("query", "key", "value"), True),
    settings={"use_mrope": (False,)}, windows="listed", silent=("max_window_layers",),
)

_QWEN3 = replace(
    _QWEN2, model_types=("qwen3",), heads=llama_heads("Qwen3"),
    sizes={**_STATED, "head_dim": "head_dim=128"},
    tensors={
        **LLAMA.tensors, "layers.N.query_norm": "layers.N.self_attn.q_norm",
        "layers.N.key_norm": "layers.N.self_attn.k_norm",
    },
    biases=dict.fromkeys(_ATTENTION, "attention_bias"),
)

_PHI3_ATTENTION = 3 * "self_attn.qkv_proj " + "self_attn.o_proj"
_PHI3 = replace(
    LLAMA, model_types=("phi3",), heads=llama_heads("Phi3"),
    sizes={**_STATED, "original_context": "original_max_position_embeddings=4096"},
    tensors={
        **LLAMA.tensors,
        **in_layer("layers.N", _NORMS, _PHI3_ATTENTION, 2 * "mlp.gate_up_proj " + "mlp.down_proj"),
    },
    biases={}, settings={}, rotary="part", stretches=("default", "longrope"), windows="every",
    cut=None,
    required=("pad_token_id",), silent=("resid_pdrop", "embd_pdrop"),
)

_SMOLLM3 = replace(
    LLAMA, model_types=("smollm3",), heads=llama_heads("SmolLM3"), sizes=_STATED, tied=True,
    settings={}, theta="rope_theta=2000000", turned="no_rope_layers", windows="listed",
    required=("pad_token_id",), silent=("no_rope_layer_interval", "max_window_layers"),
)

_GEMMA = replace(
    LLAMA, model_types=("gemma",), heads=llama_heads("Gemma"), tied=True,
    sizes={**_STATED, "head_dim": "head_dim=256"}, norm="rms-from-one", embedding_scale="d_model",
    activations={"gelu": "gelu_tanh"}, biases=dict.fromkeys(_ATTENTION, "attention_bias"),
    settings={"use_bidirectional_attention": (False, None)}, silent=("hidden_activation",),
)

_SUMMARY = (
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj",
)

_GPT2 = Family(
    model_types=("gpt2",), prefixes=("transformer.", ""), heads=gpt_heads("GPT2", "LMHeadModel"),
    causal=True, order="before", norm="layer", norm_eps="layer_norm_epsilon",
    activation="activation_function", tied=True, transposed=True,
    sizes={
        "layers": "n_layer", "heads": "n_head", "d_model": "n_embd", "d_ff": "n_inner?=4*d_model",
        "vocabulary": "vocab_size", "context": "n_positions",
    },
    tensors={
        "tokens": "wte", "positions": "wpe", "final_norm": "ln_f",
        **in_layer("h.N", "ln_1 ln_2", 3 * "attn.c_attn " + "attn.c_proj", "mlp.c_fc mlp.c_proj"),
    },
    biases=dict.fromkeys(LINEAR, True),
    settings={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
    silent=(
        "n_ctx", "attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn", *_SUMMARY,
    ),
    unused=r"(lm_head|score|classifier|qa_outputs)\..*|.*\.attn\.(masked_)?bias",
)

_GPT_NEO_ATTENTION = (
    "attn.attention.q_proj attn.attention.k_proj attn.attention.v_proj attn.attention.out_proj"
)
_GPT_NEO = replace(
    _GPT2, model_types=("gpt_neo",), heads=gpt_heads("GPTNeo"), transposed=False, scaled=False,
    sizes={
        **SIZES, "layers": "num_layers", "heads": "num_heads",
        "d_ff": "intermediate_size?=4*d_model",
    },
    tensors={
        **_GPT2.tensors,
        **in_layer("h.N", "ln_1 ln_2", _GPT_NEO_ATTENTION, "mlp.c_fc mlp.c_proj"),
    },
    biases=dict.fromkeys(("output", "up", "down"), True), windows="listed", window="window_size",
    settings={},
    silent=("resid_dropout", "embed_dropout", "classifier_dropout", "attention_layers", *_SUMMARY),
    unused=r"(lm_head|score|classifier|qa_outputs)\..*|.*\.attention\.(masked_)?bias",
)

_NEOX_ATTENTION = 3 * "attention.query_key_value " + "attention.dense"
_GPT_NEOX = Family(
    model_types=("gpt_neox",), prefixes=("gpt_neox.", ""),
    heads=gpt_heads("GPTNeoX", unembedding="embed_out"), sizes=SIZES,
    causal=True, order="parallel", norm="layer", norm_eps="layer_norm_eps", activation="hidden_act",
    rotary="part", theta="rotary_emb_base=10000", share="rotary_pct=0.25", by_head=True,
    tensors={
        "tokens": "embed_in", "final_norm": "final_layer_norm",
        **in_layer("layers.N", _NORMS, _NEOX_ATTENTION, "mlp.dense_h_to_4h mlp.dense_4h_to_h"),
    },
    biases={
        **dict.fromkeys(_ATTENTION, "attention_bias=true"), **dict.fromkeys(_FEED_FORWARD, True),
    },
    settings={"use_parallel_residual": (True,)}, silent=("hidden_dropout", "classifier_dropout"),
    unused=r"(embed_out|score|classifier|qa_outputs)\..*|.*\.attention\.(masked_)?bias"
    r"|.*rotary_emb\.inv_freq",
)

# Encoders -------------------------------------------------------------------------------------

_POOLER, _CHOSEN = linear("pooler.dense", "d_model"), linear("classifier", "1")
_CLASSIFIED, _NEXT = linear("classifier", "labels"), linear("cls.seq_relationship", "2")
_MAYBE_POOLED = {name: f"?{said}" for name, said in _POOLER.items()}
_DENSE = {**linear("classifier.dense", "d_model"), **linear("classifier.out_proj", "labels")}

_BERT_PREDICTIONS: Head = {
    **linear("cls.predictions.transform.dense", "d_model", role="prediction"),
    **norm("cls.predictions.transform.LayerNorm", "prediction_norm"),
    "cls.predictions.decoder.weight": UNEMBEDDING,
    "cls.predictions.bias": "unembedding.bias: vocabulary",
}
_BERT_ATTENTION = (
    "attention.self.query attention.self.key attention.self.value attention.output.dense"
)
_BERT_NORMS = "attention.output.LayerNorm output.LayerNorm"
_BERT = Family(
    model_types=("bert",), prefixes=("bert.", ""), sizes={**SIZES, "types": "type_vocab_size=2"},
    causal=False, order="after", norm="layer", norm_eps="layer_norm_eps", activation="hidden_act",
    tied=True,
    heads=encoder_heads(
        "Bert", _MAYBE_POOLED, _BERT_PREDICTIONS, {**_POOLER, **_CLASSIFIED},
        ForPreTraining={**_BERT_PREDICTIONS, **_POOLER, **_NEXT},
        ForNextSentencePrediction={**_POOLER, **_NEXT}, ForMultipleChoice={**_POOLER, **_CHOSEN},
    ),
    tensors={
        "tokens": "embeddings.word_embeddings", "positions": "embeddings.position_embeddings",
        "types": "embeddings.token_type_embeddings", "embedding_norm": "embeddings.LayerNorm",
        **in_layer(
            "encoder.layer.N", _BERT_NORMS, _BERT_ATTENTION, "intermediate.dense output.dense",
        ),
    },
    biases=dict.fromkeys(LINEAR, True),
    settings={"position_embedding_type": ("absolute",), "tie_word_embeddings": (True,)},
    silent=(
        "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout",
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_type",
        "pooler_num_fc_layers", "pooler_size_per_head",
    ),
    unused=r"(cls|pooler|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_ROBERTA_PREDICTIONS: Head = {
    **linear("lm_head.dense", "d_model", role="prediction"),
    **norm("lm_head.layer_norm", "prediction_norm"),
    "lm_head.decoder.weight": UNEMBEDDING, "lm_head.bias": "unembedding.bias: vocabulary",
}
_ROBERTA = replace(
    _BERT, model_types=("roberta",), prefixes=("roberta.", ""), head_activation="gelu", padding=1,
    heads=encoder_heads(
        "Roberta", _MAYBE_POOLED, _ROBERTA_PREDICTIONS, _DENSE,
        ForMultipleChoice={**_POOLER, **_CHOSEN},
    ),
    settings={**_BERT.settings, "pad_token_id": (1,)},
    unused=r"(lm_head|pooler|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_PRE = linear("pre_classifier", "d_model")
_DISTILBERT_PREDICTIONS: Head = {
    **linear("vocab_transform", "d_model", role="prediction"),
    **norm("vocab_layer_norm", "prediction_norm"),
    **linear("vocab_projector", "vocabulary", role="unembedding"),
}
_DISTILBERT_ATTENTION = "attention.q_lin attention.k_lin attention.v_lin attention.out_lin"
_DISTILBERT = replace(
    _BERT, model_types=("distilbert",), prefixes=("distilbert.", ""), norm_eps="=1e-12",
    activation="activation",
    heads=encoder_heads(
        "DistilBert", {}, _DISTILBERT_PREDICTIONS, {**_PRE, **_CLASSIFIED},
        ForMultipleChoice={**_PRE, **_CHOSEN},
    ),
    sizes={
        **SIZES, "layers": "n_layers", "heads": "n_heads", "d_model": "dim", "d_ff": "hidden_dim",
    },
    tensors={
        "tokens": "embeddings.word_embeddings", "positions": "embeddings.position_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
        **in_layer(
            "transformer.layer.N", "sa_layer_norm output_layer_norm", _DISTILBERT_ATTENTION,
            "ffn.lin1 ffn.lin2",
        ),
    },
    settings={"sinusoidal_pos_embds": (False, True), "tie_word_embeddings": (True,)},
    silent=("dropout", "qa_dropout", "seq_classif_dropout", "tie_weights_"),
    unused=r"(vocab_\w+|pre_classifier|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_ELECTRA_PREDICTIONS: Head = {
    **linear("generator_predictions.dense", "embedding", role="prediction"),
    **norm("generator_predictions.LayerNorm", "prediction_norm", "embedding"),
    **linear("generator_lm_head", "vocabulary", "embedding", role="unembedding"),
}
_DISCRIMINATOR: Head = {
    **linear("discriminator_predictions.dense", "d_model"),
    **linear("discriminator_predictions.dense_prediction", "1"),
}
_ELECTRA = replace(
    _BERT, model_types=("electra",), prefixes=("electra.", ""), head_activation="gelu",
    heads=encoder_heads(
        "Electra", {}, _ELECTRA_PREDICTIONS, _DENSE, ForPreTraining=_DISCRIMINATOR,
    ),
    sizes={**_BERT.sizes, "embedding": "embedding_size"},
    tensors={**_BERT.tensors, "embedding_projection": "embeddings_project"},
    settings={**_BERT.settings, "summary_activation": ("gelu",)},
    silent=(*_BERT.silent, "summary_last_dropout", "summary_type", "summary_use_proj"),
    unused=r"(generator_\w+|discriminator_\w+|classifier|qa_outputs)\..*|.*\.position_ids",
)

# fmt: on

FAMILIES = (
    *(LLAMA, _MISTRAL, _QWEN2, _QWEN3, _PHI3, _SMOLLM3, _GEMMA, _GPT2, _GPT_NEO, _GPT_NEOX),
    *(_BERT, _ROBERTA, _DISTILBERT, _ELECTRA),
)
