"""Prepares a transformers model for use: drawn anew or moved to its device, then described."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import torch

from attnviz.errors import UsageError
from attnviz.models.attention_interface import PreTrainedModel
from attnviz.models.memory import require_memory
from attnviz.models.model import broken_words
from attnviz.models.placement import drawing, places_of
from attnviz.models.split import is_packed, is_split, least, processes_of
from attnviz.models.third_party import third_party
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.whole import (
    context_length,
    decoder_shape,
    read_shape,
    require_attention,
    require_token_ids,
    require_whole,
    unwrapped,
)
from attnviz.records import Kind, ModelInfo

_WITH_EXTREMES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def prepared(
    name: str, model: Any, tokenizer: Any, device: torch.device | None, **facts: Any
) -> TransformersModel:
    """Return a model on its device (None: where its parts are); facts: those of ``described``."""
    return described(name, moved(name, model, device), tokenizer, **facts)


def moved(name: str, model: Any, device: torch.device | None) -> Any:
    """Return a model on its device, without gradients; None leaves its parts where they are."""
    with third_party(f"{name!r} cannot be moved to {device}"):
        return (model if device is None else model.to(device)).eval().requires_grad_(False)


def handed_over(model: Any, tokenizer: Any, *, reads: bool = True) -> TransformersModel:
    """Return a model that the caller's Python code has loaded, in the form that attnviz uses.

    The model itself is not changed. tokenizer: the one that belongs to it. reads: True if it will
    be given texts. Raises UsageError if it is no transformers model, or has no tokenizer for texts.
    """
    adapters = getattr(model, "active_adapters", None)  # of peft; transformers has a method
    model = unwrapped(model)
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        article = "an" if kind[0].lower() in "aeiou" else "a"
        advice = "hand the attention weights of other models to attnviz.heatmap"
        if isinstance(model, torch.nn.Module):
            advice = "give it its own inputs, as in attnviz.capture(module, x)"
        raise UsageError(
            "expected the name of a model or a loaded transformers model, got "
            f"{article} {kind}: {advice}"
        )
    if tokenizer is None and reads:
        raise UsageError(
            "a loaded model needs its tokenizer to read a text: give tokenizer=, such as "
            "AutoTokenizer.from_pretrained(…)"
        )
    known = str(getattr(model, "name_or_path", "") or "")
    path = Path(known).resolve() if known else None
    name = path.name if path and path.is_dir() else known or type(model).__name__
    revision = getattr(model.config, "_commit_hash", None)
    notes: tuple[str, ...] = ()
    if isinstance(adapters, list):
        names = ", ".join(adapters)
        notes = (f"with the adapter {names}",)
        if any(getattr(part, "disable_adapters", False) is True for part in model.modules()):
            notes = (f"without the adapter {names}, which is switched off",)
    return described(name, model, tokenizer, revision, loaded=True, notes=notes)


def redrawn(model: TransformersModel, seed: int) -> TransformersModel:
    """Return a model with random parameters of a seed; LoadError if the memory is too small."""
    whole = model.model
    name = model.info.name
    size = sum(weight.numel() * weight.element_size() for weight in whole.parameters())
    require_memory(name, size, whole.device)
    with third_party(f"{name!r} cannot be built again"), drawing(whole.dtype, seed):
        twin = type(whole)(copy.deepcopy(whole.config))
    return prepared(name, twin, model.tokenizer, whole.device, seed=seed)


def described(
    name: str,
    model: Any,
    tokenizer: Any,
    revision: str | None = None,
    *,
    loaded: bool = False,
    seed: int | None = None,
    notes: tuple[str, ...] = (),
    **stated: Any,
) -> TransformersModel:
    """Return a model with its facts, which are read from its config and checked.

    loaded: whether the caller's Python code has loaded it. seed: of random parameters; None for
    those of files. notes: sentences that a reader must know. stated: trained_tokens and stored of
    ``TransformersModel``. Raises UnsupportedError if the model reads no token ids, or is a part.
    """
    shape = read_shape(model.config, name)
    require_token_ids(model)
    require_whole(model, name, shape.layers)
    if loaded:
        require_attention(model, name)
    broken = () if seed is not None else _not_finite(model)
    decodes = "decoder_input_ids" in inspect.signature(model.forward).parameters
    kinds: tuple[Kind, ...] = ("self",)
    target = None
    if model.config.is_encoder_decoder and decodes:
        kinds = ("encoder", "decoder", "cross")
        target = context_length(model.config, model, decoder=True)
    devices, parts = places_of(model)
    processes = processes_of(model)
    if processes > 1:
        parts = (*parts, f"its weights are split over {processes} processes")
    info = ModelInfo(
        name=name,
        revision=revision,
        architecture=type(model).__name__,
        dtype=str(model.dtype).removeprefix("torch."),
        **vars(shape),
        weights="loaded" if loaded else "checkpoint" if seed is None else "random",
        seed=seed,
        device=devices or str(model.device),
        processes=processes,
        notes=(*notes, *parts, *broken_words(broken)),
        not_finite=broken,
        decoder_shape=decoder_shape(model.config) if "decoder" in kinds else (),
    )
    context = context_length(model.config, model)
    return TransformersModel(info, model, tokenizer, kinds, context, target, **stated)


def _not_finite(model: Any) -> tuple[str, ...]:
    """Return the parameters with NaN or infinity, found by their extremes: isfinite is slow."""
    here = {
        name: weight.to_local() if is_split(weight) else weight.detach()
        for name, weight in model.named_parameters()
        if weight.dtype in _WITH_EXTREMES and not weight.is_meta
        if not is_packed(weight)
    }
    whole = [
        weight.numel() == 0 or all(bool(extreme.isfinite()) for extreme in torch.aminmax(weight))
        for weight in here.values()
    ]
    # Of a weight that is split, another process may have the part that is broken.
    if processes_of(model) > 1:
        whole = [bool(least(model, int(is_finite))) for is_finite in whole]
    return tuple(name for name, is_finite in zip(here, whole, strict=True) if not is_finite)
