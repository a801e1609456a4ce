"""A model of the same architecture whose weights are as before training: what shape alone does."""

from __future__ import annotations

from attnviz.errors import UnsupportedError
from attnviz.models.bundled import Bundled
from attnviz.models.model import Model
from attnviz.models.own import OwnAttention

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
    # Torch and transformers only where they are needed.
    from attnviz.models.transformers_model import TransformersModel

    if isinstance(model, TransformersModel):
        from attnviz.models.random_transformers import redrawn

        return redrawn(model, seed)
    raise UnsupportedError(f"{model.info.name!r} cannot be built anew with random weights")
