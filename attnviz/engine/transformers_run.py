"""Run a loaded transformers model over tokens, for an observer."""

from __future__ import annotations

import torch

from attnviz.engine.observer import Observer
from attnviz.engine.transformers_interface import observe_transformers
from attnviz.errors import UnsupportedError
from attnviz.models.model import Model
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Tokens

__all__ = ["run_transformers"]


def run_transformers(
    model: Model, observer: Observer, tokens: Tokens, target: Tokens | None
) -> None:
    """One forward pass over one text; ``target`` is the decoder's text of an encoder–decoder."""
    if not isinstance(model, TransformersModel):
        raise UnsupportedError(f"no way to observe a {type(model).__name__}")
    device = model.model.device
    observe_transformers(
        model.model,
        observer,
        torch.tensor([tokens.ids], device=device),
        decoder_input_ids=None if target is None else torch.tensor([target.ids], device=device),
    )
