"""Reads a model's shape from its config in any spelling; refuses what is only a part of a model.

Under pipeline parallelism a process has some of the layers, and under full sharding a piece of each
weight. Each looks like a smaller model, whose heads have other numbers. Tensor parallelism, where a
process has some of the heads, is no such case: ``engine.split_heads`` puts the heads together.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attnviz.errors import LoadError, UnsupportedError
from attnviz.models.split import mesh_of, require_even
from attnviz.models.third_party import ErrorsAs
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
    """A model's numbers of layers and heads, the width of a head's query, the types of layers."""

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
    mixed = len(types) == layers and any(str(kind) in OTHER_LAYERS for kind in types)
    counts = HeadCounts(
        layers, heads, _kv_heads(text) or heads, head_dim, tuple(map(str, types)) if mixed else ()
    )
    if min(layers, heads, counts.kv_heads, head_dim) < 1:
        raise LoadError(
            f"the config of {name!r} has {layers} layers of {heads} heads, {counts.kv_heads} for "
            f"keys and values, each {head_dim} wide: expected 1 or more of each"
        )
    return counts


def decoder_shape(config: Any) -> tuple[int, ...]:
    """Return the layers, heads and key/value heads of a decoder; empty if they are not stated."""
    text = text_config(config, decoder=True)
    layers = _first(text, ("num_decoder_layers", "decoder_layers", *_LAYERS))
    heads = _first(text, ("decoder_attention_heads", *_HEADS))
    return () if not (layers and heads) else (layers, heads, _kv_heads(text) or heads)


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
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(module, nn.Embedding) and "position" in name and padding is not None:
            return limit - (padding + 1 if module.num_embeddings == limit else 0)
    return limit


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


_WRAPPERS = ("DataParallel", "DistributedDataParallel", "OptimizedModule")  # wrap a whole model

_SPLITS = {
    ("PipelineIdentity",): "it has some of the layers (pipeline parallelism)",
    ("FullySharded", "FSDP"): "its weights are split over processes (fully sharded)",
}
"""How the classes begin of a model that is split over processes, and what that means."""


def unwrapped(model: Any) -> Any:
    """Return the model inside wrappers; UnsupportedError if peft changed more than layers."""
    while type(model).__name__ in _WRAPPERS:
        model = getattr(model, "_orig_mod", None) or model.module
    if not hasattr(model, "get_base_model"):
        return model
    for chosen in model.active_adapters if hasattr(model, "peft_config") else ():
        config = model.peft_config[chosen]
        if config.is_prompt_learning or getattr(config, "alora_invocation_tokens", None):
            raise UnsupportedError(
                f"the adapter {chosen!r} of this {type(model).__name__} has a "
                f"{type(config).__name__}: it changes what is read, not layers alone; hand its "
                "base model over"
            )
    return model.get_base_model()


def table_rows(table: nn.Module, config: Any) -> int:
    """Return the rows of a table of token embeddings; the config's, if the table does not tell."""
    known = (getattr(part, "num_embeddings", None) for part in table.modules())
    rows = (number for number in known if isinstance(number, int))
    weight = getattr(table, "weight", None)
    stored = len(weight) if isinstance(weight, torch.Tensor) else None
    return next(rows, stored) or int(config.get_text_config().vocab_size)


def require_token_ids(model: Any) -> None:
    """Raise UnsupportedError for a model that takes images or sound instead of text."""
    if model.main_input_name != "input_ids":
        raise UnsupportedError(
            f"{type(model).__name__} reads {model.main_input_name}, not text: "
            "choose a model that reads token ids."
        )


def embedding_rows(model: Any) -> int:
    """Return how many ids a model embeds; UnsupportedError if transformers names no table."""
    table = None
    with suppress(NotImplementedError, AttributeError):
        table = model.get_input_embeddings()
    if isinstance(table, nn.Module):
        return table_rows(table, model.config)
    text = text_config(model.config)
    part = "" if text is model.config else f"; save its {text.model_type} alone and open that"
    raise UnsupportedError(
        f"{type(model).__name__} is not opened: transformers names no table of token embeddings "
        f"of this class{part}"
    )


def require_whole(model: Any, name: str, layers: int) -> None:
    """Raise UnsupportedError if a model is only a part of what its config describes."""
    classes = [type(module).__name__ for module in model.modules()]
    for beginnings, way in _SPLITS.items():
        if any(name.startswith(beginnings) for name in classes):
            raise UnsupportedError(
                f"{name!r} is a part of a model: {way}; load it whole, in one process"
            )
    if (mesh := mesh_of(model)) is not None:
        plan = getattr(model, "tp_plan", None) or {}
        require_even(name, text_config(model.config), plan, mesh.size())
    text, expected = model, [layers]
    if getattr(model.config, "is_encoder_decoder", False):
        decoder = text_config(model.config, decoder=True)
        expected.append(getattr(decoder, "num_decoder_layers", None) or layers)
    elif hasattr(model, "get_decoder"):  # there may also be a stack for images
        text = model.get_decoder() or model
    fields = {**vars(model.config), **vars(text_config(model.config))}
    shared = {  # numbers of layers, or of groups of layers that share their parameters
        number
        for field, number in fields.items()
        if ("layers" in field or "groups" in field) and type(number) is int
    }
    stacks = sorted(_stack_lengths(text), reverse=True)
    for stack, count in zip(stacks, sorted(expected, reverse=True), strict=False):
        if stack < count and stack not in shared:
            raise UnsupportedError(
                f"{name!r} is a part of a model: it has {stack} layers, and its config names "
                f"{count}; load it whole, or correct the config"
            )


def require_attention(model: Any, name: str) -> None:
    """Raise UnsupportedError if a loaded model has less attention than its config describes.

    The number of its attention modules and the sizes of their projections are compared with those
    of a model of its class that is built without memory, if its class can be built so.
    """
    twin: nn.Module | None = None
    another = ErrorsAs(lambda _: None)  # its class may read weights while it is built
    with another, torch.device("meta"), torch.random.fork_rng(devices=()):
        twin = type(model)(copy.deepcopy(model.config))
    if twin is None:
        return
    modules = dict(model.named_modules(remove_duplicate=False))
    present, expected = _attention_modules(model), _attention_modules(twin)
    if len(present) < len(expected):
        raise UnsupportedError(
            f"{name!r} is a part of a model: {len(present)} of its modules have attention, and its "
            f"config names {len(expected)}; load it whole, or correct the config"
        )
    for path, module in expected.items():
        for part, projection in module.named_modules(prefix=path):
            size = linear_size(projection)
            has = linear_size(modules.get(part))
            if size and has and has != size:
                raise UnsupportedError(
                    f"{name!r} is a part of a model: {part} is {has[0]} × {has[1]}, and its config "
                    f"names {size[0]} × {size[1]}; load it whole, or correct the config"
                )


def _attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return by name the outermost modules whose class name contains "attention"."""
    outermost: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in outermost)
        if not inside and "attention" in type(module).__name__.lower():
            outermost[path] = module
    return outermost


def linear_size(projection: Any) -> tuple[int, int] | None:
    """Return the numbers of inputs and outputs of a linear layer; None for anything else."""
    for names in (("in_features", "out_features"), ("nx", "nf"), ("infeatures", "outfeatures")):
        inputs, outputs = (getattr(projection, name, None) for name in names)
        if isinstance(inputs, int) and isinstance(outputs, int):
            return inputs, outputs
    return None


def _stack_lengths(module: nn.Module) -> Iterator[int]:
    """Yield the number of layers of each stack; parts inside a layer do not count."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential) and len(child):
            yield len(child)
        else:
            yield from _stack_lengths(child)
