"""Opens a model to have its logits taken apart, by NumPy where it can, else by torch."""

from __future__ import annotations

from attnviz.engine.attribution import Attributor
from attnviz.engine.attribution_numpy import NumpyAttributor
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.model import Model
from attnviz.models.own import OwnAttention
from attnviz.models.stack_model import StackModel
from attnviz.records import Input


def open_attributor(model: Model, given: Input) -> Attributor:
    """Ready ``model`` for texts like ``given``, on which it is tried.

    Raises UsageError where it predicts no tokens, UnsupportedError where its heads cannot be found.
    """
    if isinstance(model, OwnAttention):
        raise UsageError(
            f"{model.info.name!r} predicts no tokens: there is no logit to take apart, choose a "
            "model with a vocabulary"
        )
    if (numpy := NumpyAttributor.of(model)) is not None:
        return numpy
    if isinstance(model, StackModel):
        raise UnsupportedError(
            f"{model.info.name!r} is no sum that NumPy takes apart: leave out --backend numpy"
        )
    from attnviz.engine.attribution_torch import TorchAttributor  # torch only where needed

    return TorchAttributor.of(model, given)
