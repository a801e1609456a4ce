"""Stores a model without some of its heads: cut where its architecture can say so, else masked.

Every way is tried on the disk, opened again and compared; only one whose outputs are those of the
whole model with the heads switched off is kept.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnviz.errors import UnsupportedError
from attnviz.models.cut_tensors import (
    CutPlan,
    HeadShape,
    OutputProjection,
    Removed,
    cut_plans,
    silenced,
)
from attnviz.models.foreign import foreign
from attnviz.models.huggingface import no_bars
from attnviz.models.transformers_model import TransformersModel
from attnviz.prune.records import PrunedModel
from attnviz.prune.smaller_model import Smaller, count_parameters, shell_of, smaller_models
from attnviz.prune.whole_directory import whole_directory
from attnviz.records import ModelInfo

__all__ = ["Difference", "plan_pruned", "write_pruned"]

Difference = Callable[[Any], tuple[float, float]]
"""From an opened model to the largest absolute difference of its outputs from what they should be,
and the largest that is allowed."""

_SCHEMA = "attnviz.pruned/1"
_NO_CONFIG = "the config of {} cannot say that it has fewer heads of that width"


def plan_pruned(
    model: TransformersModel, removed: Removed, projections: Mapping[int, OutputProjection]
) -> PrunedModel:
    """What ``write_pruned`` will most likely make; nothing is written or run."""
    state = _shapes_only(model)  # no tensor is read or copied
    for smaller in smaller_models(model.model, state, removed, projections, _shape(model)):
        return _cut_record(model, smaller, removed)
    return _masked_record(model, removed, projections)


def write_pruned(
    model: TransformersModel,
    removed: Removed,
    projections: Mapping[int, OutputProjection],
    directory: Path,
    difference: Difference,
    stored: torch.dtype | None = None,
) -> PrunedModel:
    """Write what is left of ``model`` as a checkpoint directory, whole or not at all.

    removed: by layer, the query heads that go.
    projections: of every layer with attention.
    difference: holds an opened model against the whole one with these heads switched off.
    stored: what the tensors are stored in; by default the model's own dtype.

    Raises:
        LoadError: the directory cannot be written.
        UnsupportedError: not even zeros in the output projections switch the heads off.
        UsageError: the directory is there and not empty.
    """
    state = silenced(model.model.state_dict(), projections, removed, model.info.heads)
    off = 0.0
    with whole_directory(directory) as draft:
        ways = smaller_models(model.model, state, removed, projections, _shape(model))
        for smaller in ways:
            _fill(draft, model, smaller.shell, smaller.tensors, stored)
            found, allowed = difference(_opened(draft, smaller.shell, model))
            if found <= allowed:  # written so that NaN fails
                record = _cut_record(model, smaller, removed)
                return _finished(draft, directory, record, removed, smaller.plan, found)
            off = found
            _empty(draft)
        shell = shell_of(model.model)
        _fill(draft, model, shell, state, stored)
        found, allowed = difference(_opened(draft, shell, model))
        if not found <= allowed:
            raise UnsupportedError(
                f"{model.info.name!r} cannot be stored without these heads: with zeros in their "
                f"output projections its outputs are off by {found:.1g}; nothing was written"
            )
        record = _masked_record(model, removed, projections)
        if off:
            cut = type(shell).__name__
            why = f"{cut} with fewer heads computes something else (off by {off:.1g})"
            record = replace(record, note=why, shrinks=False)
        return _finished(draft, directory, record, removed, None, found)


def _shape(model: TransformersModel) -> HeadShape:
    info = model.info
    return HeadShape(info.heads, info.kv_heads, info.head_dim)


def _cut_record(model: TransformersModel, smaller: Smaller, removed: Removed) -> PrunedModel:
    plan, architecture = smaller.plan, type(smaller.shell).__name__
    note = ""
    if architecture != model.info.architecture:
        note = (
            f"stored as {architecture}, which has the same tensors: {model.info.architecture} "
            f"cannot have {plan.heads} heads on its width"
        )
    zeroed = tuple(
        (layer, head)
        for layer, heads in sorted(removed.items())
        for head in sorted(heads)
        if head in plan.query[layer]
    )
    return PrunedModel(
        "cut",
        plan.heads,
        plan.kv_heads,
        architecture,
        count_parameters(smaller.shell),
        zeroed,
        note=note,
    )


def _masked_record(
    model: TransformersModel, removed: Removed, projections: Mapping[int, OutputProjection]
) -> PrunedModel:
    info, shrinks = model.info, _shrinks(model, projections)
    zeroed = tuple((layer, head) for layer in sorted(removed) for head in sorted(removed[layer]))
    return PrunedModel(
        "masked",
        info.heads,
        info.kv_heads,
        info.architecture,
        count_parameters(model.model),
        zeroed,
        note=_why_masked(info, removed, tuple(projections))
        if shrinks
        else _NO_CONFIG.format(info.architecture),
        shrinks=shrinks,
    )


def _shrinks(model: TransformersModel, projections: Mapping[int, OutputProjection]) -> bool:
    """Whether the architecture can have fewer heads of the same width at all."""
    shape = _shape(model)
    first = range(max(shape.heads // shape.kv_heads, 1))
    state = _shapes_only(model)
    ways = smaller_models(model.model, state, dict.fromkeys(projections, first), projections, shape)
    return next(ways, None) is not None


def _shapes_only(model: TransformersModel) -> dict[str, Tensor]:
    return {name: tensor.to("meta") for name, tensor in model.model.state_dict().items()}


def _why_masked(info: ModelInfo, removed: Removed, layers: tuple[int, ...]) -> str:
    if cut_plans(removed, layers, info.heads, info.kv_heads):
        return f"the config of {info.architecture} has no room for such a shape"
    whole = [layer for layer in layers if not removed.get(layer)]
    if whole and info.kv_heads == info.heads:
        keeps = "keeps" if len(whole) == 1 else "keep"
        return (
            f"every layer must keep the same number of heads, and {len(whole)} of {len(layers)} "
            f"layers {keeps} all {info.heads}"
        )
    return (
        "every key/value head must serve the same number of heads, and one still serves all of "
        "its own"
    )


def _fill(
    draft: Path,
    model: TransformersModel,
    shell: Any,
    tensors: Mapping[str, Tensor],
    stored: torch.dtype | None,
) -> None:
    """Write config, tensors and tokenizer."""
    with foreign("the pruned model cannot be written"), no_bars():
        if stored is not None:
            shell = shell.to(stored)
        shell.save_pretrained(draft, state_dict=_stored(tensors, stored))
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(draft)


def _stored(tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Contiguous tensors of one dtype; what shared its memory before shares it afterwards."""
    made: dict[tuple[int, torch.Size], Tensor] = {}
    for tensor in tensors.values():
        key = (tensor.data_ptr(), tensor.shape)
        if key not in made:
            narrow = dtype is not None and tensor.is_floating_point()
            made[key] = (tensor.to(dtype) if narrow else tensor).contiguous()
    return {name: made[tensor.data_ptr(), tensor.shape] for name, tensor in tensors.items()}


def _opened(draft: Path, shell: Any, model: TransformersModel) -> Any:
    """What a reader of the directory will get, on the device and in the dtype of ``model``."""
    whole = model.model
    with foreign("the pruned model cannot be opened again"), no_bars():
        opened, report = type(shell).from_pretrained(
            draft,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            dtype=whole.dtype,
        )
        if report["missing_keys"] or report["mismatched_keys"]:
            raise UnsupportedError(f"tensors are missing: {sorted(report['missing_keys'])[:3]}")
        return opened.to(whole.device).eval().requires_grad_(False)


def _finished(
    draft: Path,
    directory: Path,
    record: PrunedModel,
    removed: Removed,
    plan: CutPlan | None,
    difference: float,
) -> PrunedModel:
    """The record of a written model, with ``heads.json`` beside it."""
    facts = {
        "schema": _SCHEMA,
        "form": record.form,
        "heads": record.heads,
        "kv_heads": record.kv_heads,
        "parameters": record.parameters,
        "removed": {str(layer): sorted(heads) for layer, heads in sorted(removed.items()) if heads},
        "zeroed": [{"layer": layer, "head": head} for layer, head in record.zeroed],
    }
    if plan is not None:
        facts["kept"] = {str(layer): list(heads) for layer, heads in sorted(plan.query.items())}
    (draft / "heads.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    for file in draft.iterdir():  # safetensors makes its files private
        shutil.copymode(draft / "heads.json", file)
    return replace(record, path=str(directory), difference=difference)


def _empty(draft: Path) -> None:
    shutil.rmtree(draft)
    draft.mkdir()
