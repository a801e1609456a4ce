"""Counts a model by building it without memory, for classes that the arithmetic does not claim.

This module imports transformers, which takes seconds: import it when it is needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn
from transformers import DynamicCache

from attnviz.count.params.counting.cache import CacheKind, Kept
from attnviz.count.params.specs import MOST
from attnviz.errors import LoadError
from attnviz.models.architecture import text_config
from attnviz.models.attention_interface import without_choices
from attnviz.models.checkpoint_files import check_layers
from attnviz.models.third_party import third_party

_NOT_COUNTED = ("model_type", "quantization_config")
"""Fields that are given apart, or change no parameter but ask for libraries that may be missing."""

_NEEDED = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")

_CACHES = "transformers.cache_utils"
_READ = 2
"""Tokens of the pass that shows what is kept."""


class MetaCount(NamedTuple):
    """The parameters of a model that was built on torch's meta device.

    architecture: its class.
    total: its parameters, tied ones once.
    buffers: what it stores next to them, apart from the total.
    parts: each direct child of the model that has parameters, with their number, in order; those
        that two children share count in the first.
    kept: what each layer that keeps something keeps of a sequence; None where it cannot be told.
    """

    architecture: str
    total: int
    buffers: int
    parts: tuple[tuple[str, int], ...]
    kept: tuple[Kept, ...] | None = None


def count_on_meta(
    config: Mapping[str, Any],
    *,
    name: str = "",
    architecture: str | None = None,
    run: bool = False,
) -> MetaCount:
    """Build the model of a config without weights and count it.

    architecture: the class to build; None for the config's own, or the bare one.
    run: also pass two tokens through it, to see what its layers keep.

    Raises:
        LoadError: no model that this version of transformers knows, or sizes that none can have.
    """
    version = transformers.__version__
    if config.get("model_type") not in transformers.CONFIG_MAPPING:
        raise LoadError(
            f"{name!r} has the model_type {config.get('model_type')!r}, which neither the "
            f"arithmetic nor transformers {version} knows: a newer one may"
        )
    check_layers(name, config)
    _check_sizes(config, name)
    with third_party(f"{name!r} is no model that transformers {version} can build"):
        fields = {key: value for key, value in config.items() if key not in _NOT_COUNTED}
        made = transformers.AutoConfig.for_model(str(config.get("model_type")), **fields)
        without_choices(made)
        build = _class(made, name, architecture)
        _check_needed(made, name)
        with torch.device("meta"):
            model = build(made)
    return MetaCount(
        architecture=type(model).__name__,
        total=sum(weight.numel() for weight in model.parameters()),
        buffers=_stored_buffers(model),
        parts=_parts(model),
        kept=_kept(model) if run else None,
    )


def _check_sizes(config: Mapping[str, Any], name: str) -> None:
    """Refuse what would be counted as less than nothing."""
    kind, known = str(config.get("model_type")), transformers.CONFIG_MAPPING
    usual = inspect.signature(known[kind].__init__).parameters if kind in known else {}
    for key, value in config.items():
        if isinstance(value, dict):
            _check_sizes(value, name)
        if not isinstance(value, int):
            continue
        default = usual[key].default if key in usual else None
        positive = isinstance(default, int) and default > 0
        if positive and value < 0 and not key.endswith(("_id", "_index")):
            raise LoadError(
                f"the config of {name!r} has {key} = {value}: expected a whole number of 0 or more"
            )


def _check_needed(config: Any, name: str) -> None:
    text = text_config(config)
    for key in _NEEDED:
        try:
            value = getattr(text, key, None)
        except RuntimeError:  # transformers' answer where a field differs between the layers
            continue
        if isinstance(value, int) and not 1 <= value <= MOST:
            raise LoadError(
                f"the config of {name!r} has {key} = {value}: expected a whole number of 1 or "
                f"more, {MOST:,} at most"
            )


def _class(config: Any, name: str, architecture: str | None) -> Any:
    wanted = architecture or (getattr(config, "architectures", None) or [None])[0]
    named = getattr(transformers, str(wanted), None)
    # A config may name any attribute of the library, a function among them.
    if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
        return named
    if wanted is None:
        return transformers.AutoModel.from_config
    raise LoadError(
        f"{name!r} is a {wanted}, which neither the arithmetic nor transformers "
        f"{transformers.__version__} knows: a newer one may"
    )


def _stored_buffers(model: nn.Module) -> int:
    stored = model.state_dict().keys()
    return sum(buffer.numel() for name, buffer in model.named_buffers() if name in stored)


def _parts(model: nn.Module) -> tuple[tuple[str, int], ...]:
    seen: set[int] = set()
    parts = []
    for name, child in model.named_children():
        own = {id(weight): weight.numel() for weight in child.parameters()}
        if own:  # a dropout has none
            parts.append((name, sum(count for key, count in own.items() if key not in seen)))
        seen |= own.keys()
    return tuple(parts)


def _kept(model: nn.Module) -> tuple[Kept, ...] | None:
    """Return what the layers of a model keep after a pass, read off the cache that it hands out.

    Layers with attention keep K·(D + D) numbers a token: keys and values. Layers with a state keep
    it at any length: of a short convolution channels × kernel numbers, of Mamba heads × D × state
    numbers (Mamba 1: channels × state), often in float32 whatever the model's own dtype is. The
    layers are those of ``transformers/cache_utils.py``; None for a model with a cache of its own,
    with none, or whose pass asks for the values of its weights. Nothing is computed: no tensor on
    the meta device has any.
    """
    try:
        with third_party("no pass without weights"), torch.no_grad(), torch.device("meta"):
            # The dtype tells a state that follows the model's from one that has its own.
            model.eval().to(torch.bfloat16)
            read = torch.ones(1, _READ, dtype=torch.long)
            output = model(input_ids=read, use_cache=True, return_dict=True)
            caches = [value for value in output.values() if type(value) is DynamicCache]
    except LoadError:
        return None
    if len(caches) != 1 or any(type(i).__module__ != _CACHES for i in caches[0].layers):
        return None
    return tuple(kept for layer in caches[0].layers for kept in _of_layer(layer))


def _of_layer(layer: Any) -> Iterator[Kept]:
    grown = [getattr(layer, name, None) for name in ("keys", "values", "indexer_keys")]
    held = [tensor for tensor in grown if tensor is not None and tensor.shape[-2]]
    per_token = sum(tensor.numel() // tensor.shape[-2] for tensor in held)
    if per_token:
        window = getattr(layer, "sliding_window", None)
        yield Kept("full" if window is None else "sliding", per_token, window)
    states: tuple[tuple[CacheKind, str], ...] = (
        ("convolution", "conv_states"),
        ("linear", "recurrent_states"),
    )
    for kind, name in states:
        for state in getattr(layer, name, {}).values():
            if state is not None:
                own = str(state.dtype).removeprefix("torch.")
                yield Kept(kind, state.numel(), dtype="" if own == "bfloat16" else own)
