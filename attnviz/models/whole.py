"""Refuses models that do not read text, and models that are only a part of what their config names.

Under pipeline parallelism a process has some of the layers, and under full sharding a piece of each
weight. Each looks like a smaller model, whose heads have other numbers. Tensor parallelism, where a
process has some of the heads, is no such case: ``engine.split_heads`` puts the heads together.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from attnviz.errors import UnsupportedError
from attnviz.models.architecture import text_config
from attnviz.models.split import mesh_of, require_even
from attnviz.models.third_party import ErrorsAs

_WRAPPERS = ("DataParallel", "DistributedDataParallel", "OptimizedModule")
"""Classes that wrap a whole model."""

_SPLITS = {
    ("PipelineIdentity",): "it has some of the layers (pipeline parallelism)",
    ("FullySharded", "FSDP"): "its weights are split over processes (fully sharded)",
}
"""How the classes begin of a model that is split over processes, and what that means."""

_DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")


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
    rows = (one for one in known if isinstance(one, int))
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
        if any(one.startswith(beginnings) for one in classes):
            raise UnsupportedError(
                f"{name!r} is a part of a model: {way}; load it whole, in one process"
            )
    if (mesh := mesh_of(model)) is not None:
        plan = getattr(model, "tp_plan", None) or {}
        require_even(name, text_config(model.config), plan, mesh.size())
    text, expected = model, [layers]
    if getattr(model.config, "is_encoder_decoder", False):
        decoder = text_config(model.config, decoder=True)
        expected += [getattr(decoder, field, None) or layers for field in _DECODER_LAYERS][:1]
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
    found, expected = _attention_modules(model), _attention_modules(twin)
    if len(found) < len(expected):
        raise UnsupportedError(
            f"{name!r} is a part of a model: {len(found)} of its modules have attention, and its "
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
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if not inside and "attention" in type(module).__name__.lower():
            found[path] = module
    return found


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
