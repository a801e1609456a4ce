"""Counts a model of a class that ``families.toml`` lacks by building it without memory.

This module imports transformers, which takes seconds: import it only if it is needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers import DynamicCache

from attnviz.count.params.cache import CacheKind, LayerCache
from attnviz.count.params.cost import MadeModel
from attnviz.count.params.quantised import MatrixKind, WeightMatrix
from attnviz.count.params.specs import MOST
from attnviz.errors import LoadError
from attnviz.models.attention_interface import without_choices
from attnviz.models.checkpoint_files import check_layers
from attnviz.models.third_party import third_party
from attnviz.models.whole import text_config

_NOT_COUNTED = ("model_type", "quantization_config")
"""Fields that are passed separately, or change no parameter but need libraries that may be missing.
"""

_NEEDED = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")

_CACHES = "transformers.cache_utils"
_ROUTERS = (".gate.weight", ".router.weight")
_READ = 2  # the number of tokens that are run to see what the layers keep


def count_on_meta(
    config: Mapping[str, Any], *, name: str = "", architecture: str | None = None, run: bool = False
) -> MadeModel:
    """Build the model of a config without memory for its parameters, and count these.

    name: of the model, for messages.
    architecture: the class to build; None for the config's own, or the bare one.
    run: True passes two tokens through it, to see what its layers cache.

    Raises LoadError for a model that this version of transformers lacks, and for impossible sizes.
    """
    version = transformers.__version__
    if config.get("model_type") not in transformers.CONFIG_MAPPING:
        raise LoadError(
            f"{name!r} has the model_type {config.get('model_type')!r}, which neither the "
            f"arithmetic nor transformers {version} knows: a newer one may"
        )
    check_layers(name, config)
    _check_sizes(config, name)
    with third_party(f"{name!r} is not a model that transformers {version} can build"):
        fields = {key: value for key, value in config.items() if key not in _NOT_COUNTED}
        made = transformers.AutoConfig.for_model(str(config.get("model_type")), **fields)
        without_choices(made)
        build = _class(made, name, architecture)
        _check_needed(made, name)
        with torch.device("meta"):
            model = build(made)
    kept, text = _kept(model) if run else None, text_config(made)
    without = sum(not layer for layer in kept or ())
    towers = [name for name in ("vision", "audio") if hasattr(made, f"{name}_config")]
    notes = [f"the activations of the {name} tower are not counted" for name in towers]
    notes += [f"nothing was seen that {without} layers keep of earlier tokens"] if without else []
    limit, stored = getattr(text, "max_position_embeddings", None), model.state_dict().keys()
    return MadeModel(
        architecture=type(model).__name__,
        total=sum(weight.numel() for weight in model.parameters()),
        buffers=sum(number.numel() for name, number in model.named_buffers() if name in stored),
        parts=_parts(model),
        kept=None if kept is None else tuple(cache for layer in kept for cache in layer),
        matrices=tuple(_matrices(model)),
        limit=limit if isinstance(limit, int) and limit > 0 else None,
        notes=tuple(notes),
    )


def _check_sizes(config: Mapping[str, Any], name: str) -> None:
    """Raise LoadError for sizes in a config that would give negative counts."""
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
        except RuntimeError:  # transformers' answer if a field differs between the layers
            continue
        if isinstance(value, int) and not 1 <= value <= MOST:
            raise LoadError(
                f"the config of {name!r} has {key} = {value}: expected a whole number of 1 or "
                f"more, {MOST:,} at most"
            )


def _class(config: Any, name: str, architecture: str | None) -> Any:
    wanted = architecture or (getattr(config, "architectures", None) or [None])[0]
    named = getattr(transformers, str(wanted), None)
    # A config may name any attribute of the library, even a function.
    if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
        return named
    if wanted is None:
        return transformers.AutoModel.from_config
    raise LoadError(
        f"{name!r} is a {wanted}, which neither the arithmetic nor transformers "
        f"{transformers.__version__} knows: a newer one may"
    )


def _parts(model: nn.Module) -> tuple[tuple[str, int], ...]:
    seen: set[int] = set()
    parts = []
    for name, child in model.named_children():
        own = {id(weight): weight.numel() for weight in child.parameters()}
        if own:  # a dropout has none
            parts.append((name, sum(count for key, count in own.items() if key not in seen)))
        seen |= own.keys()
    return tuple(parts)


def _matrices(model: nn.Module) -> Iterator[WeightMatrix]:
    """Yield each matrix of a model that formats may quantise, one that is shared only once."""
    modules = list(model.modules())
    tables = {id(module.weight) for module in modules if isinstance(module, nn.Embedding)}
    linear = {id(module.weight) for module in modules if isinstance(module, nn.Linear)}
    for name, weight in model.named_parameters():
        kind: MatrixKind = "linear"
        *copies, outputs, inputs = (1, 1, *weight.shape)[-max(weight.ndim, 2) :]
        if weight.ndim == 3 and "experts" in name:
            kind = "experts"
        elif weight.ndim != 2 or (
            id(weight) not in tables | linear and not name.endswith(_ROUTERS)
        ):
            continue
        elif id(weight) in tables:
            kind = "embedding"
        elif name.endswith(("lm_head.weight", *_ROUTERS)):
            kind = "head" if name.endswith("lm_head.weight") else "router"
        yield WeightMatrix((name.removesuffix(".weight"),), kind, inputs, outputs, *copies)


def _kept(model: Any) -> tuple[tuple[LayerCache, ...], ...] | None:
    """Return what each layer of a model caches, taken from the cache that a forward pass returns.

    Layers with attention cache K·(D + D) numbers for each token: keys and values. Layers with a
    state cache it at any length: a short convolution channels × kernel numbers, Mamba heads × D ×
    state numbers (Mamba 1: channels × state), often in float32 whatever the model's dtype is. The
    layers are those of ``transformers/cache_utils.py``. None for a model without a cache or with
    one of another form, and for a pass that needs the values of its parameters. Nothing is
    computed: tensors on the meta device have no values. A model that reads images too, and does not
    run without them, caches what its decoder does.
    """
    try:
        with third_party("no pass without weights"), torch.no_grad(), torch.device("meta"):
            # The dtype shows whether a state has the model's dtype or one of its own.
            model.eval().to(torch.bfloat16)
            read = torch.ones(1, _READ, dtype=torch.long)
            output = model(input_ids=read, use_cache=True, return_dict=True)
            caches = [value for value in output.values() if type(value) is DynamicCache]
    except LoadError:
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
        alone = decoder in (None, model) or model.config.is_encoder_decoder
        return None if alone else _kept(decoder)
    if len(caches) != 1 or any(type(i).__module__ != _CACHES for i in caches[0].layers):
        return None
    return tuple(tuple(_of_layer(layer)) for layer in caches[0].layers)


def _of_layer(layer: Any) -> Iterator[LayerCache]:
    grown = [getattr(layer, name, None) for name in ("keys", "values", "indexer_keys")]
    held = [tensor for tensor in grown if tensor is not None and tensor.shape[-2]]
    per_token = sum(tensor.numel() // tensor.shape[-2] for tensor in held)
    if per_token:
        window = getattr(layer, "sliding_window", None)
        yield LayerCache("full" if window is None else "sliding", per_token, window)
    states: tuple[tuple[CacheKind, str], ...] = (
        ("convolution", "conv_states"),
        ("linear", "recurrent_states"),
    )
    for kind, name in states:
        for state in getattr(layer, name, {}).values():
            if state is not None:
                own = str(state.dtype).removeprefix("torch.")
                yield LayerCache(kind, state.numel(), dtype="" if own == "bfloat16" else own)
