"""Counts a model by building it without memory, for classes that the arithmetic does not claim.

This module imports transformers, which takes seconds: import it when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from attnviz.errors import LoadError
from attnviz.models.attention_interface import without_choices
from attnviz.models.foreign import foreign

__all__ = ["MetaCount", "count_on_meta"]

_MOST_LAYERS = 10_000
"""More would keep the building of empty modules busy for minutes, or for ever."""

_NOT_COUNTED = ("model_type", "quantization_config")
"""Fields that are given apart, or change no parameter but ask for libraries that may be missing."""


@dataclass(frozen=True)
class MetaCount:
    """The parameters of a model that was built on torch's meta device.

    architecture: its class.
    total: its parameters, tied ones once.
    buffers: what it stores beside them, apart from the total.
    parts: each direct child of the model that has parameters, with their number, in order; those
        that two children share count in the first.
    """

    architecture: str
    total: int
    buffers: int
    parts: tuple[tuple[str, int], ...]


def count_on_meta(
    config: Mapping[str, Any], *, name: str = "", architecture: str | None = None
) -> MetaCount:
    """Build the model of a config without weights and count it.

    architecture: the class to build; None for the config's own, or the bare one.

    Raises:
        LoadError: no model that this version of transformers knows.
    """
    version = transformers.__version__
    if config.get("model_type") not in transformers.CONFIG_MAPPING:
        raise LoadError(
            f"{name!r} has the model_type {config.get('model_type')!r}, which neither the "
            f"arithmetic nor transformers {version} knows: a newer one may"
        )
    for key, value in config.items():
        if "layer" in key and isinstance(value, int) and value > _MOST_LAYERS:
            raise LoadError(f"{name!r} has {key} = {value:,}: too many to build them one by one")
    with foreign(f"{name!r} is no model that transformers {version} can build"):
        fields = {key: value for key, value in config.items() if key not in _NOT_COUNTED}
        made = transformers.AutoConfig.for_model(str(config.get("model_type")), **fields)
        without_choices(made)
        build = _class(made, name, architecture)
        with torch.device("meta"):
            model = build(made)
    return MetaCount(
        architecture=type(model).__name__,
        total=sum(weight.numel() for weight in model.parameters()),
        buffers=_stored_buffers(model),
        parts=_parts(model),
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
