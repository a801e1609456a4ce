"""Tells a model that has the weights of its first day, which predicts no better than at random."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attnviz.engine.capture import Choice, asked
from attnviz.engine.text_pass import TextReader, token_losses
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.model import Model
from attnviz.models.numpy_checkpoint import NumpyCheckpoint

_TEXT = "The cat sat on the mat because it was tired, and the dog went home."
_CLOSE = 0.5
"""The nats by which a loss must be below that of uniform predictions to be better."""


def judged(model: Model) -> Model:
    """Return the model, whose facts say so if it predicts no better than uniform chance.

    Training moves the gains of norms. So only a model that has a norm, and the first gain of which
    is still one number throughout, is run over a short text. A model of pictures or sounds is not
    run, nor is one that translates, whose decoder has no text to predict.
    """
    info = model.info
    if info.weights not in ("checkpoint", "loaded") or next(_gains_moved(model), True):
        return model
    if not getattr(model, "reads_text", True) or "cross" in model.kinds:
        return _described(model, "untrained? the gains of its norms are all equal")
    try:
        wanted = asked(model, _TEXT, Choice())
        logits = TextReader(model).read(wanted).logits
    except (UnsupportedError, UsageError):
        return model  # what is asked of the model says why it cannot be run
    if logits is None or len(wanted.given.text) < 2 or len(logits) != len(wanted.given.text):
        return model
    loss = float(token_losses(logits, wanted.given.text.ids).mean())
    uniform = math.log(logits.shape[-1])
    if not loss > uniform - _CLOSE:
        return model
    return _described(model, f"untrained? loss {loss:.2f}, uniform {uniform:.2f}")


def _described(model: Model, untrained: str) -> Model:
    """Return the model with the reason why it seems untrained among its facts."""
    info = replace(model.info, untrained=untrained)
    if isinstance(model, NumpyCheckpoint):
        model.describe(info)
        return model
    changed: Any = model
    return replace(changed, info=info)


def _gains_moved(model: Model) -> Iterator[bool]:
    """Yield for each norm of a model whether its gain has more than one number."""
    if isinstance(model, NumpyCheckpoint):
        stored = model.stack.tensors.stored
        for name in stored:
            if "norm" in name and name.endswith(".weight"):
                yield bool(np.ptp(np.asarray(stored[name], np.float32)) > 0)
        return
    torch_model: Any = model
    for name, weight in torch_model.model.named_parameters():
        if weight.ndim == 1 and name.endswith(".weight") and weight.device.type != "meta":
            yield bool((weight != weight[0]).any())
