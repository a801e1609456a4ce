"""Reads a model's shape and its longest text from a Hugging Face config, in any spelling.

transformers maps most spellings to one name through ``attribute_map``; the others here are those of
configs that come with their own code.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from torch import nn

from attnviz.errors import LoadError, UnsupportedError
from attnviz.records import OTHER_LAYERS

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
_WIDTH = ("true_hidden_size", "hidden_size", "d_model", "n_embd", "dim")
_HEAD_DIM = ("qk_head_dim", "head_dim", "d_kv", "d_head", "kv_channels", "attention_head_dim")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_ENCODER_CONTEXT = ("max_encoder_position_embeddings", "max_source_positions")
_DECODER_CONTEXT = ("max_decoder_position_embeddings", "max_target_positions")
_CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
)


@dataclass(frozen=True)
class HeadCounts:
    """The numbers of layers and heads of a model, and the width of a head.

    layers, heads, kv_heads: the numbers of layers, query heads and key/value heads.
    head_dim: the width of a head's query. layer_types: as in ``ModelInfo``.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    layer_types: tuple[str, ...] = ()


def text_config(config: Any, decoder: bool = False) -> Any:
    """Return the config of the part of a model, or of its decoder, that processes text."""
    side = getattr(config, "decoder" if decoder else "encoder", None)
    if config.is_encoder_decoder and hasattr(side, "model_type"):
        return side
    try:
        return config.get_text_config()
    except ValueError:  # several text parts: only the whole config is unambiguous
        return config


def read_shape(config: Any, name: str) -> HeadCounts:
    """Return the numbers of layers and heads of a config's text stack.

    Raises LoadError if a number of layers or heads, or their width, is not positive,
    UnsupportedError if the model has no attention heads, or not the same in every layer.
    """
    text = text_config(config)
    layers, heads, width = (_first(text, names) for names in (_LAYERS, _HEADS, _WIDTH))
    if layers is None or heads is None:
        raise UnsupportedError(
            f"{name!r} is a {config.model_type} model, whose config names no attention heads that "
            f"are the same in every layer: nothing can be shown"
        )
    rotary, plain = (_first(text, (f"qk_{part}_head_dim",)) for part in ("rope", "nope"))
    head_dim = _first(text, _HEAD_DIM)
    if rotary is not None and plain is not None:  # latent attention: head_dim may mean one part
        head_dim = rotary + plain
    if head_dim is None:
        if width is None:
            raise UnsupportedError(f"the config of {name!r} does not tell how wide a head is")
        head_dim = width // max(heads, 1)
    types = getattr(text, "layer_types", None) or ()
    mixed = len(types) == layers and any(str(each) in OTHER_LAYERS for each in types)
    found = HeadCounts(
        layers, heads, _kv_heads(text) or heads, head_dim, tuple(map(str, types)) if mixed else ()
    )
    if min(layers, heads, found.kv_heads, head_dim) < 1:
        raise LoadError(
            f"the config of {name!r} has {layers} layers of {heads} heads, {found.kv_heads} for "
            f"keys and values, each {head_dim} wide: expected 1 or more of each"
        )
    return found


def resized(config: Any, heads: int, kv_heads: int, head_dim: int) -> Any:
    """Return a copy of a config with other numbers of heads, each as wide as before.

    Whether the architecture obeys the width shows only in the model built from it. Errors of the
    config's own validation are not caught.
    """
    changed = copy.deepcopy(config)
    text = text_config(changed)
    setattr(text, _spelling(text, _HEADS) or _HEADS[0], heads)
    key_heads = _spelling(text, _KV_HEADS)
    if key_heads is not None:
        setattr(text, key_heads, kv_heads)
    if _spelling(text, _HEAD_DIM) is None:
        text.head_dim = head_dim
    return type(config).from_dict(changed.to_dict())


def _kv_heads(text: Any) -> int | None:
    # Falcon and GPTBigCode name their single key/value head by a switch.
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        return 1
    nested = getattr(text, "attn_config", None)  # MPT
    return _first(text, _KV_HEADS) or _first(nested, ("kv_n_heads",))


def context_length(config: Any, model: nn.Module, decoder: bool = False) -> int | None:
    """Return the most tokens that a stack takes; None for relative positions without a limit.

    If positions are counted from after the padding index, as in RoBERTa, the position table of the
    model has more rows than the longest text has tokens.
    """
    text = text_config(config, decoder)
    own = _DECODER_CONTEXT if decoder else _ENCODER_CONTEXT
    limit = _first(text, own) or _first(text, ("max_position_embeddings",))
    # Configs of T5 carry an n_positions that nothing obeys.
    if limit is None and not hasattr(text, "relative_attention_num_buckets"):
        limit = _first(text, _CONTEXT)
    # Falcon may use ALiBi (Press et al. 2022) instead, which has no limit.
    if limit is None or limit < 1 or getattr(text, "alibi", False):
        return None
    return limit - _padding_offset(model, limit)


def _padding_offset(model: nn.Module, rows: int) -> int:
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.Embedding)
            and "position" in name
            and module.padding_idx is not None
        ):
            return module.padding_idx + 1 if module.num_embeddings == rows else 0
    return 0


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    name = _spelling(config, names)
    return None if name is None else int(getattr(config, name))


def _spelling(config: Any, names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            field = getattr(config, name, None)
        except RuntimeError:  # transformers raises it if a field differs between layers
            continue
        if isinstance(field, int) and not isinstance(field, bool):
            return name
    return None
