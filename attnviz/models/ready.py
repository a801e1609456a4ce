"""Moves an opened model to its device and says what it is."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from attnviz.models.architecture import context_length, read_shape
from attnviz.models.foreign import foreign
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Kind, ModelInfo

__all__ = ["made_ready"]


def made_ready(
    name: str,
    model: Any,
    tokenizer: Any,
    device: torch.device,
    *,
    revision: str | None = None,
    seed: int | None = None,
    notes: tuple[str, ...] = (),
) -> TransformersModel:
    """A model moved to its device and described; ``seed`` is given where its weights are random."""
    with foreign(f"{name!r} cannot be moved to {device}"):
        model = model.to(device).eval().requires_grad_(False)
    shape = read_shape(model.config, name)
    kinds = _kinds(model)
    target = context_length(model.config, model, decoder=True) if "decoder" in kinds else None
    info = ModelInfo(
        name=name,
        revision=revision,
        architecture=type(model).__name__,
        dtype=str(model.dtype).removeprefix("torch."),
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        weights="checkpoint" if seed is None else "random",
        seed=seed,
        device=str(device),
        notes=notes,
    )
    context = context_length(model.config, model)
    return TransformersModel(info, model, tokenizer, kinds, context, target)


def _kinds(model: Any) -> tuple[Kind, ...]:
    """Which attention a model has: three kinds where its forward takes a decoder text as well."""
    arguments = inspect.signature(model.forward).parameters
    if model.config.is_encoder_decoder and "decoder_input_ids" in arguments:
        return ("encoder", "decoder", "cross")
    return ("self",)
