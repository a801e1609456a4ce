"""The form of a description from which ``NumpyStack`` reads the checkpoints of an architecture.

The descriptions themselves are in ``families``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attnviz.attention.activations import Activation
from attnviz.attention.stack_shape import Norm, Order


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

    name: the module's name in files. out, width: the sizes of its output and input.
    role: the role of its tensors if the head predicts tokens; else empty.
    """
    weight, bias = (f"{role}.{kind}: " if role else "" for kind in ("weight", "bias"))
    return {f"{name}.weight": f"{weight}{out} {width}", f"{name}.bias": f"{bias}{out}"}


def norm(name: str, role: str, width: str = "d_model") -> dict[str, str]:
    """Return the entries for a head's LayerNorm in ``Family.heads``: its weight and bias.

    name: the module's name in files. role: of its tensors. width: the size of its input.
    """
    return {f"{name}.{kind}": f"{role}.{kind}: {width}" for kind in ("weight", "bias")}


def in_layer(block: str, norms: str, attention: str, feed_forward: str) -> dict[str, str]:
    """Return the entries for one layer in ``Family.tensors``: roles and stored names.

    Each argument after ``block`` is a list of names within it, separated by blanks. norms: of
    attention and feed-forward. attention: query, key, value, output. feed_forward: gate (if there
    is one), up, down.
    """
    first, second = norms.split()
    feed = feed_forward.split()
    roles = ("attention_norm", *LINEAR[:4], "feed_norm", *LINEAR[-len(feed) :])
    named = zip(roles, (first, *attention.split(), second, *feed), strict=True)
    return {f"layers.N.{role}": f"{block}.{name}" for role, name in named}


Head = dict[str, str]
"""The tensors of a class's head by name, in the form of ``Family.heads``."""

_BY_TOKEN, _BY_TEXT = linear("classifier", "labels"), {"score.weight": "labels d_model"}
_ANSWERED = linear("qa_outputs", "2")


def llama_heads(name: str) -> dict[str, Head]:
    """Return the heads of Llama and its relatives by model class, for ``Family.heads``.

    name: the start of class names.
    """
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
        tokens. unembedding: the name of its unembedding in files.
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
    """Return the heads of BERT and its relatives by model class, for ``Family.heads``.

    name: the start of class names. model, predictions, by_text: the heads of the bare model, of the
        masked language model and of the classifier of texts.
    others: heads of less usual classes, under the class name without ``name``.
    """
    return {
        f"{name}Model": model,
        f"{name}ForMaskedLM": predictions,
        f"{name}ForSequenceClassification": by_text,
        f"{name}ForTokenClassification": _BY_TOKEN,
        f"{name}ForQuestionAnswering": _ANSWERED,
        **{name + other: head for other, head in others.items()},
    }
