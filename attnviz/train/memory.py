"""How much memory a run needs, so that what cannot fit is refused before it is trained."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from attnviz.attention.decoder_config import DecoderConfig
from attnviz.errors import LoadError
from attnviz.models.memory import byte_text, free_memory
from attnviz.train.recipe import Phase, Recipe

__all__ = ["needed_memory", "require_training_memory"]

_PER_PARAMETER = 16
"""Bytes: weight, gradient and AdamW's two means, each in float32."""

_PER_LOGIT = 12
"""Bytes: the score, its float32 copy and their gradient."""


def needed_memory(config: DecoderConfig, recipe: Recipe) -> int:
    """Bytes that training takes at least, at the phase whose batches are the largest.

    Counted are weights, gradients, AdamW's means and what the backward pass keeps; temporaries
    come on top.
    """
    one, two = (_parameters(replace(config, layers=layers)) for layers in (1, 2))
    parameters = one + (config.layers - 1) * (two - one)  # of any number of layers, at once
    batches = max(
        _batch_bytes(recipe.shape(index).decoder(config.vocabulary, 0), phase)
        for index, phase in enumerate(recipe.phases)
    )
    return _PER_PARAMETER * parameters + batches


def _parameters(config: DecoderConfig) -> int:
    return sum(map(math.prod, config.tensor_shapes().values()))


def require_training_memory(config: DecoderConfig, recipe: Recipe, device: torch.device) -> None:
    """Refuse a run that needs more than is free on ``device``: LoadError."""
    needed, free = needed_memory(config, recipe), free_memory(device)
    if free is not None and needed > free:
        raise LoadError(
            f"training this model needs at least {byte_text(needed)}, and {byte_text(free)} are "
            f"free on {device}: make the model, its vocabulary, the batch or the length in the "
            "config smaller, or choose another --device"
        )


def _batch_bytes(config: DecoderConfig, phase: Phase) -> int:
    """What one batch leaves for the backward pass, at two bytes a number."""
    tokens = phase.batch * phase.length
    attended = config.heads * config.head_dim + 2 * config.kv_heads * config.head_dim
    layer = 4 * config.d_model + 2 * attended + 4 * config.d_ff
    return tokens * (_PER_LOGIT * config.vocabulary + 2 * config.layers * layer)
