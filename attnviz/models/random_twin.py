"""A model of the same architecture whose weights are as before training: what shape alone does."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from attnviz.errors import UnsupportedError
from attnviz.models.bundled import Bundled
from attnviz.models.model import Model
from attnviz.models.own import OwnAttention

if TYPE_CHECKING:  # torch and transformers only where they are needed
    from attnviz.models.transformers_model import TransformersModel

__all__ = ["random_twin"]


def random_twin(model: Model, seed: int) -> Model:
    """The randomly initialised twin of ``model``, with the same tokenizer, dtype and device.

    Raises UnsupportedError for a model that cannot be built anew, LoadError where the memory does
    not hold a second one.
    """
    if isinstance(model, Bundled):
        return Bundled(model.info.dtype, seed=seed)
    if isinstance(model, OwnAttention):
        return model.redrawn(seed)
    from attnviz.models.transformers_model import TransformersModel

    if isinstance(model, TransformersModel):
        return _redrawn(model, seed)
    raise UnsupportedError(f"{model.info.name!r} cannot be built anew with random weights")


def _redrawn(model: TransformersModel, seed: int) -> TransformersModel:
    """The same class and config with weights drawn from ``seed``, on the same device."""
    from attnviz.models.foreign import foreign
    from attnviz.models.memory import require_memory
    from attnviz.models.ready import made_ready
    from attnviz.models.seeded import drawing

    whole = model.model
    name = model.info.name
    size = sum(weight.numel() * weight.element_size() for weight in whole.parameters())
    require_memory(name, size, whole.device)
    with foreign(f"{name!r} cannot be built anew"), drawing(whole.dtype, seed):
        twin = type(whole)(copy.deepcopy(whole.config))
    return made_ready(name, twin, model.tokenizer, whole.device, seed=seed)
