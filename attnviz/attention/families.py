"""Which models ``NumpyStack`` can run: one description for each family, no code.

A description says how ``config.json`` calls the sizes, which of its settings are computed and which
say nothing about the forward pass, and how the tensors of each role are called; see ``family``. A
checkpoint whose config has any other field, or another value, is not understood; neither is one
with a tensor that has no place.

To add a family: copy the nearest one, change what differs, and add a small config of it to
``tests/attention/test_families.py``, which holds its weights against transformers'.
"""

from __future__ import annotations

from dataclasses import replace

from attnviz.attention.family import LINEAR, SIZES, UNEMBEDDING, Family, in_layer, linear, norm

_ATTENTION, _FEED_FORWARD = LINEAR[:4], LINEAR[4:]
_CLASSIFIED = linear("classifier", "labels")
_ANSWERED = linear("qa_outputs", "2")
_SCORED = {"score.weight": "labels d_model"}
_NORMS = "input_layernorm post_attention_layernorm"
_SUMMARY = (
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
    *("summary_type", "summary_use_proj"),
)

# Decoders -------------------------------------------------------------------------------------


def _llama_heads(name: str) -> dict[str, dict[str, str]]:
    """The classes of the Llama line."""
    return {
        f"{name}Model": {},
        f"{name}ForCausalLM": {"lm_head.weight": UNEMBEDDING},
        f"{name}ForSequenceClassification": _SCORED,
        f"{name}ForTokenClassification": linear("score", "labels"),
    }


_SELF = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj"
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
        **in_layer("layers.N", _NORMS, _SELF, "mlp.gate_proj mlp.up_proj mlp.down_proj"),
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
    heads=_llama_heads("Llama"),
    unused=r"(lm_head|score)\..*|.*rotary_emb\.inv_freq",
)

_STATED = {**SIZES, "kv_heads": "num_key_value_heads", "head_dim": "head_dim=d_model/heads"}

_MISTRAL = replace(
    LLAMA,
    model_types=("mistral",),
    sizes={**_STATED, "head_dim": "head_dim?=d_model/heads"},
    heads=_llama_heads("Mistral"),
    biases={},
    settings={},
    windows="every",
    required=("sliding_window",),
)

_QWEN2 = replace(
    LLAMA,
    model_types=("qwen2",),
    sizes=_STATED,
    heads=_llama_heads("Qwen2"),
    biases=dict.fromkeys(_ATTENTION[:3], True),
    settings={"use_mrope": (False,)},
    windows="listed",
    silent=("max_window_layers",),
)

_QWEN3 = replace(
    _QWEN2,
    model_types=("qwen3",),
    heads=_llama_heads("Qwen3"),
    sizes={**_STATED, "head_dim": "head_dim=128"},
    tensors={
        **LLAMA.tensors,
        "layers.N.query_norm": "layers.N.self_attn.q_norm",
        "layers.N.key_norm": "layers.N.self_attn.k_norm",
    },
    biases=dict.fromkeys(_ATTENTION, "attention_bias"),
)

_PHI3_SELF = 3 * "self_attn.qkv_proj " + "self_attn.o_proj"
_PHI3 = replace(
    LLAMA,
    model_types=("phi3",),
    sizes={**_STATED, "original_context": "original_max_position_embeddings=4096"},
    heads=_llama_heads("Phi3"),
    tensors={
        **LLAMA.tensors,
        **dict.fromkeys(
            (f"layers.N.{each}" for each in _ATTENTION[:3]), "layers.N.self_attn.qkv_proj"
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
    heads=_llama_heads("SmolLM3"),
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
    heads=_llama_heads("Gemma"),
    tied=True,
    norm="rms-from-one",
    embedding_scale="d_model",
    activations={"gelu": "gelu_tanh"},
    biases=dict.fromkeys(_ATTENTION, "attention_bias"),
    settings={"use_bidirectional_attention": (False, None)},
    silent=("hidden_activation",),
)


def _gpt_heads(
    name: str, predicts: str = "ForCausalLM", unembedding: str = "lm_head"
) -> dict[str, dict[str, str]]:
    """The classes of the GPT line."""
    return {
        f"{name}Model": {},
        f"{name}{predicts}": {f"{unembedding}.weight": UNEMBEDDING},
        f"{name}ForSequenceClassification": _SCORED,
        f"{name}ForTokenClassification": _CLASSIFIED,
        f"{name}ForQuestionAnswering": _ANSWERED,
    }


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
        **in_layer("h.N", "ln_1 ln_2", 3 * "attn.c_attn " + "attn.c_proj", "mlp.c_fc mlp.c_proj"),
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
        "n_ctx",
        "attn_pdrop",
        "embd_pdrop",
        "resid_pdrop",
        "reorder_and_upcast_attn",
        *_SUMMARY,
    ),
    heads=_gpt_heads("GPT2", "LMHeadModel"),
    tied=True,
    unused=r"(lm_head|score|classifier|qa_outputs)\..*|.*\.attn\.(masked_)?bias",
)

_GPT_NEO = replace(
    _GPT2,
    model_types=("gpt_neo",),
    sizes={
        **SIZES,
        "layers": "num_layers",
        "heads": "num_heads",
        "d_ff": "intermediate_size?=4*d_model",
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
    silent=("resid_dropout", "embed_dropout", "classifier_dropout", "attention_layers", *_SUMMARY),
    heads=_gpt_heads("GPTNeo"),
    unused=r"(lm_head|score|classifier|qa_outputs)\..*|.*\.attention\.(masked_)?bias",
)

_NEOX = 3 * "attention.query_key_value " + "attention.dense"
_GPT_NEOX = Family(
    model_types=("gpt_neox",),
    sizes=SIZES,
    tensors={
        "tokens": "embed_in",
        **in_layer("layers.N", _NORMS, _NEOX, "mlp.dense_h_to_4h mlp.dense_4h_to_h"),
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
    heads=_gpt_heads("GPTNeoX", unembedding="embed_out"),
    unused=r"(embed_out|score|classifier|qa_outputs)\..*|.*\.attention\.(masked_)?bias|.*rotary_emb\.inv_freq",
)

# Encoders -------------------------------------------------------------------------------------


_POOLER = linear("pooler.dense", "d_model")
_MAYBE_POOLER = {name: f"?{said}" for name, said in _POOLER.items()}
_CHOSEN = linear("classifier", "1")
_DENSE_CLASSIFIED = {
    **linear("classifier.dense", "d_model"),
    **linear("classifier.out_proj", "labels"),
}
_NEXT = linear("cls.seq_relationship", "2")
_BERT_PREDICTIONS = {
    **linear("cls.predictions.transform.dense", "d_model", role="prediction"),
    **norm("cls.predictions.transform.LayerNorm", "prediction_norm"),
    "cls.predictions.decoder.weight": UNEMBEDDING,
    "cls.predictions.bias": "unembedding.bias: vocabulary",
}

_BERT_NORMS = "attention.output.LayerNorm output.LayerNorm"
_BERT_SELF = "attention.self.query attention.self.key attention.self.value attention.output.dense"
_BERT = Family(
    model_types=("bert",),
    sizes={**SIZES, "types": "type_vocab_size=2"},
    tensors={
        "tokens": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "types": "embeddings.token_type_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
        **in_layer("encoder.layer.N", _BERT_NORMS, _BERT_SELF, "intermediate.dense output.dense"),
    },
    prefixes=("bert.", ""),
    norm="layer",
    order="after",
    norm_eps="layer_norm_eps",
    activation="hidden_act",
    causal=False,
    biases=dict.fromkeys(LINEAR, True),
    heads={
        "BertModel": {name: f"?{said}" for name, said in _POOLER.items()},
        "BertForMaskedLM": _BERT_PREDICTIONS,
        "BertForPreTraining": {**_BERT_PREDICTIONS, **_POOLER, **_NEXT},
        "BertForNextSentencePrediction": {**_POOLER, **_NEXT},
        "BertForSequenceClassification": {**_POOLER, **_CLASSIFIED},
        "BertForMultipleChoice": {**_POOLER, **_CHOSEN},
        "BertForTokenClassification": _CLASSIFIED,
        "BertForQuestionAnswering": _ANSWERED,
    },
    tied=True,
    settings={"position_embedding_type": ("absolute",), "tie_word_embeddings": (True,)},
    silent=(
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_type"),
        *("pooler_num_fc_layers", "pooler_size_per_head"),
    ),
    unused=r"(cls|pooler|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_ROBERTA = replace(
    _BERT,
    model_types=("roberta",),
    prefixes=("roberta.", ""),
    heads={
        "RobertaModel": _BERT.heads["BertModel"],
        "RobertaForMaskedLM": {
            **linear("lm_head.dense", "d_model", role="prediction"),
            **norm("lm_head.layer_norm", "prediction_norm"),
            "lm_head.decoder.weight": UNEMBEDDING,
            "lm_head.bias": "unembedding.bias: vocabulary",
        },
        "RobertaForSequenceClassification": _DENSE_CLASSIFIED,
        "RobertaForMultipleChoice": {**_POOLER, **_CHOSEN},
        "RobertaForTokenClassification": _CLASSIFIED,
        "RobertaForQuestionAnswering": _ANSWERED,
    },
    head_activation="gelu",
    padding=1,
    settings={**_BERT.settings, "pad_token_id": (1,)},
    unused=r"(lm_head|pooler|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_DISTIL_NORMS = "sa_layer_norm output_layer_norm"
_DISTIL_SELF = "attention.q_lin attention.k_lin attention.v_lin attention.out_lin"
_PRE_CLASSIFIED = linear("pre_classifier", "d_model")
_DISTILBERT = replace(
    _BERT,
    model_types=("distilbert",),
    sizes={
        **SIZES,
        "layers": "n_layers",
        "heads": "n_heads",
        "d_model": "dim",
        "d_ff": "hidden_dim",
    },
    tensors={
        "tokens": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
        **in_layer("transformer.layer.N", _DISTIL_NORMS, _DISTIL_SELF, "ffn.lin1 ffn.lin2"),
    },
    prefixes=("distilbert.", ""),
    norm_eps="=1e-12",
    activation="activation",
    heads={
        "DistilBertModel": {},
        "DistilBertForMaskedLM": {
            **linear("vocab_transform", "d_model", role="prediction"),
            **norm("vocab_layer_norm", "prediction_norm"),
            **linear("vocab_projector", "vocabulary", role="unembedding"),
        },
        "DistilBertForSequenceClassification": {**_PRE_CLASSIFIED, **_CLASSIFIED},
        "DistilBertForMultipleChoice": {**_PRE_CLASSIFIED, **_CHOSEN},
        "DistilBertForTokenClassification": _CLASSIFIED,
        "DistilBertForQuestionAnswering": _ANSWERED,
    },
    settings={"sinusoidal_pos_embds": (False, True), "tie_word_embeddings": (True,)},
    silent=("dropout", "qa_dropout", "seq_classif_dropout", "tie_weights_"),
    unused=r"(vocab_\w+|pre_classifier|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_ELECTRA = replace(
    _BERT,
    model_types=("electra",),
    sizes={**_BERT.sizes, "embedding": "embedding_size"},
    tensors={**_BERT.tensors, "embedding_projection": "embeddings_project"},
    heads={
        "ElectraModel": {},
        "ElectraForPreTraining": {
            **linear("discriminator_predictions.dense", "d_model"),
            **linear("discriminator_predictions.dense_prediction", "1"),
        },
        "ElectraForMaskedLM": {
            **linear("generator_predictions.dense", "embedding", role="prediction"),
            **norm("generator_predictions.LayerNorm", "prediction_norm", "embedding"),
            **linear("generator_lm_head", "vocabulary", "embedding", role="unembedding"),
        },
        "ElectraForSequenceClassification": _DENSE_CLASSIFIED,
        "ElectraForTokenClassification": _CLASSIFIED,
        "ElectraForQuestionAnswering": _ANSWERED,
    },
    head_activation="gelu",
    prefixes=("electra.", ""),
    settings={**_BERT.settings, "summary_activation": ("gelu",)},
    silent=(*_BERT.silent, "summary_last_dropout", "summary_type", "summary_use_proj"),
    unused=r"(generator_\w+|discriminator_\w+|classifier|qa_outputs)\..*|.*\.position_ids",
)

FAMILIES = (
    *(LLAMA, _MISTRAL, _QWEN2, _QWEN3, _PHI3, _SMOLLM3, _GEMMA, _GPT2, _GPT_NEO, _GPT_NEOX),
    *(_BERT, _ROBERTA, _DISTILBERT, _ELECTRA),
)
