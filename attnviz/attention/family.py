"""What a description of a family says: how ``NumpyStack`` reads the checkpoints of an architecture.

The descriptions themselves are in ``families``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attnviz.attention.activations import Activation
from attnviz.attention.stack_shape import Norm, Order


class NotUnderstoodError(Exception):
    """What of a checkpoint no description covers, in words."""


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
    *("tokenizer_class", "num_labels", "_num_labels", "output_past"),
    # how text is generated, in the configs of older versions
    *("do_sample", "early_stopping", "max_length", "min_length", "num_beams", "num_beam_groups"),
    *("temperature", "top_k", "top_p", "typical_p", "num_return_sequences", "length_penalty"),
    *("repetition_penalty", "diversity_penalty", "no_repeat_ngram_size", "bad_words_ids"),
    *("encoder_no_repeat_ngram_size", "forced_bos_token_id", "forced_eos_token_id"),
    *("suppress_tokens", "begin_suppress_tokens", "exponential_decay_length_penalty"),
    *("output_scores", "return_dict_in_generate", "remove_invalid_values", "prefix"),
}
"""Fields of every family that say nothing about the forward pass."""

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
        the field is missing, or null if it has a ``?``: a number, or sizes as ``d_model/heads``.
    tensors: role and stored name, with ``N`` for the layer. Roles that share a name are stacked in
        one tensor, one below the other, in the order in which they stand here.
    prefixes: what may stand before all of the names.
    heads: the classes of models, and of each the tensors that its head has, by name: their shapes
        in our sizes, behind the role that they have where they predict tokens. ``?`` stands before
        one that may be missing; so may an unembedding that is the embedding.
    tied: whether it is where the config does not say.
    norm, order, causal: see ``StackShape``. norm_eps: the field of it.
    activation: the field of that of the feed-forward; activations: what its values mean here and
        nowhere else. head_activation: see ``StackShape``; None for that of the feed-forward.
    biases: roles, and whether they have one: always, or where a field says so.
    rotary: whether query and key are turned by position, whole or a part that the config says;
        theta, share: the fields of the base of the wavelengths and of that part, and what holds
        where they are missing. stretches: how wavelengths may be stretched, None for any way.
    turned: the field that lists of each layer whether it has rotary positions, None for all.
    windows: whether no layer sees a window alone, every one where there is a window, or those that
        the config lists. window: the field of its width.
    scaled: whether products of query and key are divided by √head_dim.
    embedding_scale: see ``StackShape``; the size whose square root it is, None for 1.
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


LINEAR = ("query", "key", "value", "output", "gate", "up", "down")

SIZES = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "vocabulary": "vocab_size",
    "context": "max_position_embeddings",
}
"""As most configs call them."""

UNEMBEDDING = "unembedding.weight: vocabulary d_model"


def linear(name: str, out: str, width: str = "d_model", role: str = "") -> dict[str, str]:
    """Return a linear map of a head with its bias, as ``heads`` says them."""
    weight, bias = (f"{role}.{kind}: " if role else "" for kind in ("weight", "bias"))
    return {f"{name}.weight": f"{weight}{out} {width}", f"{name}.bias": f"{bias}{out}"}


def norm(name: str, role: str, width: str = "d_model") -> dict[str, str]:
    """Return a LayerNorm of a head."""
    return {f"{name}.{kind}": f"{role}.{kind}: {width}" for kind in ("weight", "bias")}


def in_layer(block: str, norms: str, attention: str, feed_forward: str) -> dict[str, str]:
    """Return the roles of a layer, as ``tensors`` says them; stored names within ``block``, by
    blanks.

    norms: of attention and feed-forward. attention: query, key, value, output. feed_forward: gate
    where there is one, up, down.
    """
    first, second = norms.split()
    feed = feed_forward.split()
    roles = ("attention_norm", *LINEAR[:4], "feed_norm", *LINEAR[-len(feed) :])
    named = zip(roles, (first, *attention.split(), second, *feed), strict=True)
    return {f"layers.N.{role}": f"{block}.{name}" for role, name in named}


Head = dict[str, str]
"""The tensors of a class's head by name, as ``heads`` says them."""

_BY_TOKEN, _BY_TEXT = linear("classifier", "labels"), {"score.weight": "labels d_model"}
_ANSWERED = linear("qa_outputs", "2")


def llama_heads(name: str) -> dict[str, Head]:
    """Return the classes of the Llama line."""
    return {
        f"{name}Model": {},
        f"{name}ForCausalLM": {"lm_head.weight": UNEMBEDDING},
        f"{name}ForSequenceClassification": _BY_TEXT,
        f"{name}ForTokenClassification": linear("score", "labels"),
    }


def gpt_heads(
    name: str, predicting: str = "ForCausalLM", unembedding: str = "lm_head"
) -> dict[str, Head]:
    """Return the classes of the GPT line."""
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
    """Return the classes of the BERT line, the less usual ones by what follows the name."""
    return {
        f"{name}Model": model,
        f"{name}ForMaskedLM": predictions,
        f"{name}ForSequenceClassification": by_text,
        f"{name}ForTokenClassification": _BY_TOKEN,
        f"{name}ForQuestionAnswering": _ANSWERED,
        **{name + other: head for other, head in others.items()},
    }
