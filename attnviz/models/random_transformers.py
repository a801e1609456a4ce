"""Builds a transformers model anew from its own config, with the weights it would begin with."""

from __future__ import annotations

import copy

from attnviz.models.foreign import foreign
from attnviz.models.memory import require_memory
from attnviz.models.ready import made_ready
from attnviz.models.seeded import drawing
from attnviz.models.transformers_model import TransformersModel

__all__ = ["redrawn"]


def redrawn(model: TransformersModel, seed: int) -> TransformersModel:
    """The same class and config with weights drawn from ``seed``, on the same device.

    Raises LoadError where the memory does not hold it.
    """
    whole = model.model
    name = model.info.name
    size = sum(weight.numel() * weight.element_size() for weight in whole.parameters())
    require_memory(name, size, whole.device)
    with foreign(f"{name!r} cannot be built anew"), drawing(whole.dtype, seed):
        twin = type(whole)(copy.deepcopy(whole.config))
    return made_ready(name, twin, model.tokenizer, whole.device, seed=seed)
