"""The model families that ``NumpyStack`` can run: one description for each, no code.

A description names the fields of ``config.json`` that hold the sizes, the settings that are
supported, the settings that do not affect the forward pass, and the stored tensor of each role; see
``Family``. A checkpoint is not understood if its config has any other field or value, or if it has
a tensor that no role names.

To add a family: copy the nearest one, change what differs, and add a small config of it to
``tests/attention/test_families.py``, which compares its weights with transformers'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from attnviz.attention.functional import Activation
from attnviz.attention.numpy_stack import Norm, Order


class NotUnderstoodError(Exception):
    """Raised if a checkpoint has something, named in the message, that no description covers."""


ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Activation functions by the names that transformers gives them."""

SILENT = {
    *("architectures", "model_type", "_name_or_path", "name_or_path", "transformers_version"),
    *("torch_dtype", "dtype", "use_cache", "initializer_range", "gradient_checkpointing"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id"),
    *("decoder_start_token_id", "task_specific_params", "finetuning_task", "problem_type"),
    *("id2label", "label2id", "return_dict", "output_attentions", "output_hidden_states"),
    *("tie_word_embeddings", "attention_dropout", "pretraining_tp", "_commit_hash"),
    *("tokenizer_class", "num_labels", "_num_labels", "output_past"),
    # settings of text generation, in the configs of older versions
    *("do_sample", "early_stopping", "max_length", "min_length", "num_beams", "num_beam_groups"),
    *("temperature", "top_k", "top_p", "typical_p", "num_return_sequences", "length_penalty"),
    *("repetition_penalty", "diversity_penalty", "no_repeat_ngram_size", "bad_words_ids"),
    *("encoder_no_repeat_ngram_size", "forced_bos_token_id", "forced_eos_token_id"),
    *("suppress_tokens", "begin_suppress_tokens", "exponential_decay_length_penalty"),
    *("output_scores", "return_dict_in_generate", "remove_invalid_values", "prefix"),
}
"""Config fields of every family that do not affect the forward pass."""

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
"""Config fields of every family, and the only values of them that ``NumpyStack`` supports."""


@dataclass(frozen=True)
class Family:
    """The description of a model family: how a checkpoint of one architecture is read.

    model_types: the values of ``model_type`` in ``config.json``. sizes: our names, such as
        ``layers``, and the config's fields. After ``=`` stands the default if the field is missing
        (after ``?=`` also if it is null): a number, or sizes as in ``d_model/heads``.
    tensors: role and stored name, with ``N`` for the layer. Roles that share a name are stacked in
        one tensor, one below the other, in this order.
    prefixes: the prefixes that all names may have.
    heads: for each model class the tensors of its head by name. The value is the tensor's shape in
        our sizes, after its role if the head predicts tokens. ``?`` marks a tensor that may be
        missing; an unembedding may also be missing if it is tied to the embedding.
    tied: whether the unembedding is tied to the embedding if the config does not say so.
    norm, order, causal: see ``StackShape``. norm_eps: its field in the config.
    activation: the field of the feed-forward's activation; activations: values with a meaning that
        only this family gives them. head_activation: see ``StackShape``; None for ``activation``.
    biases: roles, and whether they have a bias: True, or the field that decides it.
    rotary: whether all dimensions of query and key have rotary positions, or the part given in the
        config; theta, share: the fields of the wavelengths' base and of that part, and their
        defaults. stretches: the supported ways to stretch wavelengths, None for any.
    turned: the field that lists for each layer whether it has rotary positions, None for all.
    windows: which layers have a sliding window: none, every one if a width is set, or those that
        the config lists. window: the field of its width.
    scaled: whether products of query and key are divided by √head_dim.
    embedding_scale: the size whose square root is ``StackShape.embedding_scale``, None for 1.
    required: further fields that must be present, else transformers would use its own default.
    padding: see ``StackShape``.
    transposed: whether linear maps are stored (in, out), as by GPT-2's ``Conv1D``.
    by_head: whether stacked queries, keys and values alternate head by head.
    settings: further fields and their supported values; a missing field has the first of them.
    silent: further fields that do not affect the attention.
    unused: a regular expression for names of other stored tensors: other heads, old buffers.
    cut: whether the config can say that there are fewer heads of the same width; None if that
        depends on more than their number.
    """

    model_types: tuple[str, ...]
    sizes: Mapping[str, str]
    tensors: Mapping[str, str]
    prefixes: tuple[str, ...]
    norm: Norm
    order: Order
    norm_eps: str
    activation: str
    causal: bool
    biases: Mapping[str, bool | str]
    heads: Mapping[str, Mapping[str, str]]
    unused: str
    tied: bool = False
    activations: Mapping[str, Activation] = field(default_factory=dict)
    head_activation: Activation | None = None
    rotary: Literal["whole", "part"] | None = None
    theta: str = "rope_theta=10000"
    share: str = "partial_rotary_factor=1"
    stretches: tuple[str, ...] | None = None
    turned: str | None = None
    windows: Literal["none", "every", "listed"] = "none"
    window: str = "sliding_window"
    scaled: bool = True
    embedding_scale: str | None = None
    required: tuple[str, ...] = ()
    padding: int | None = None
    transposed: bool = False
    by_head: bool = False
    settings: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    cut: bool | None = False


LINEAR = ("query", "key", "value", "output", "gate", "up", "down")

SIZES = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "vocabulary": "vocab_size",
    "context": "max_position_embeddings",
}
"""The config fields that hold the sizes in most families."""

UNEMBEDDING = "unembedding.weight: vocabulary d_model"


def linear(name: str, out: str, width: str = "d_model", role: str = "") -> dict[str, str]:
    """Return the entries for a head's linear map in ``Family.heads``: its weight and bias.

    out, width: the sizes of its output and input. role: of its tensors if the head predicts tokens.
    """
    weight, bias = (f"{role}.{kind}: " if role else "" for kind in ("weight", "bias"))
    return {f"{name}.weight": f"{weight}{out} {width}", f"{name}.bias": f"{bias}{out}"}


def norm(name: str, role: str, width: str = "d_model") -> dict[str, str]:
    """Return the entries for a head's LayerNorm in ``Family.heads``: its weight and bias."""
    return {f"{name}.{kind}": f"{role}.{kind}: {width}" for kind in ("weight", "bias")}


def in_layer(block: str, norms: str, attention: str, feed_forward: str) -> dict[str, str]:
    """Return the entries for one layer in ``Family.tensors``: roles and stored names.

    Each argument after ``block`` is a list of names within it, separated by blanks. feed_forward:
    gate (if there is one), up, down.
    """
    first, second = norms.split()
    feed = feed_forward.split()
    roles = ("attention_norm", *LINEAR[:4], "feed_norm", *LINEAR[-len(feed) :])
    named = zip(roles, (first, *attention.split(), second, *feed), strict=True)
    return {f"layers.N.{role}": f"{block}.{name}" for role, name in named}


Head = dict[str, str]  # the tensors of a class's head by name, in the form of ``Family.heads``
_BY_TOKEN, _BY_TEXT = linear("classifier", "labels"), {"score.weight": "labels d_model"}
_ANSWERED = linear("qa_outputs", "2")


def llama_heads(name: str) -> dict[str, Head]:
    """Return Llama's output heads by model class. name: with which the class names begin."""
    return {
        f"{name}Model": {},
        f"{name}ForCausalLM": {"lm_head.weight": UNEMBEDDING},
        f"{name}ForSequenceClassification": _BY_TEXT,
        f"{name}ForTokenClassification": linear("score", "labels"),
    }


def gpt_heads(
    name: str, predicting: str = "ForCausalLM", unembedding: str = "lm_head"
) -> dict[str, Head]:
    """Return the output heads (not attention heads) of GPT's model classes, for ``Family.heads``.

    name: the start of class names. predicting: the end of the name of the class that predicts
    tokens. unembedding: the tensor with which it does so.
    """
    return {
        f"{name}Model": {},
        f"{name}{predicting}": {f"{unembedding}.weight": UNEMBEDDING},
        f"{name}ForSequenceClassification": _BY_TEXT,
        f"{name}ForTokenClassification": _BY_TOKEN,
        f"{name}ForQuestionAnswering": _ANSWERED,
    }


def encoder_heads(
    name: str, model: Head, predictions: Head, by_text: Head, **others: Head
) -> dict[str, Head]:
    """Return the output heads of BERT and its relatives by model class, for ``Family.heads``.

    name: the start of class names. model, predictions, by_text: the heads of the bare model, of the
    masked language model and of the classifier of texts. others: of less usual classes.
    """
    return {
        f"{name}Model": model,
        f"{name}ForMaskedLM": predictions,
        f"{name}ForSequenceClassification": by_text,
        f"{name}ForTokenClassification": _BY_TOKEN,
        f"{name}ForQuestionAnswering": _ANSWERED,
        **{name + other: head for other, head in others.items()},
    }


# The descriptions -----------------------------------------------------------------------------

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
_MAYBE_POOLED = {name: f"?{shape}" for name, shape in _POOLER.items()}
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
