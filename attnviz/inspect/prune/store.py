"""Storing a model without some of its heads: cut if its config can describe that, else masked.

Every way is written to disk, opened again and compared; only one whose outputs are those of the
whole model with the heads switched off is kept.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnviz.draw.whole_file import whole_directory
from attnviz.engine.ablation import ablating
from attnviz.engine.linear_map import packed_layers
from attnviz.engine.patchable import patchable_transformers
from attnviz.engine.projections import find_output_projections
from attnviz.errors import UnsupportedError
from attnviz.inspect.prune.plan import cut_record, heads_by_layer, masked_record
from attnviz.inspect.prune.report import Head, PrunedModel, heads_data
from attnviz.inspect.prune.smaller_model import Smaller, count_parameters, shell_of, smaller_models
from attnviz.models.bundled import Bundled
from attnviz.models.cut_tensors import OutputProjection, silenced
from attnviz.models.head_plan import CutPlan, Removed
from attnviz.models.huggingface import load_transformers, no_bars
from attnviz.models.model import Model
from attnviz.models.split import require_numbers
from attnviz.models.third_party import third_party
from attnviz.models.transformers_model import TransformersModel
from attnviz.reading import damaged, parse_json
from attnviz.records import Input

Difference = Callable[[Any], tuple[float, float]]
"""A function from a loaded model to the largest absolute error of its outputs, and the largest
error that is allowed."""

_COMPARED = 64
"""The most tokens over which outputs are compared."""

_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
_STEPS = 4
"""Rounding steps of half precision by which outputs may differ: shorter sums round differently."""

_SCHEMA = "attnviz.pruned/1"


class PruneStore:
    """Removes heads from a loaded torch model for good, and writes the pruned model.

    directory: where the result is written; None to plan only.
    ids: a text, over which the written model is compared.
    layers: those that have heads. parameters: of the whole model, tied tensors once.
    Raises UnsupportedError if its heads cannot be removed for good.
    """

    def __init__(self, model: Model, directory: Path | None, ids: tuple[int, ...]) -> None:
        self._directory, self._ids = directory, ids
        self._stored: torch.dtype | None = None
        if isinstance(model, Bundled):
            # Its files are a Llama checkpoint, and the pruned model is one as well.
            checkpoint = model.checkpoint
            stored = next(iter(checkpoint.tensors.values())).dtype
            self._stored = getattr(torch, str(stored))
            self._model = load_transformers(str(checkpoint.directory), dtype="float32")
        else:
            assert isinstance(model, TransformersModel)
            self._model = model
        self._projections = find_output_projections(self._model)
        self.layers = tuple(sorted(self._projections))
        for projection in self._projections.values():
            if not projection.plain:
                raise UnsupportedError(
                    f"{projection.module} multiplies by more than its weight: heads are removed "
                    f"from plain weights alone{packed_layers(self._model.model)}"
                )
        self.parameters = count_parameters(self._model.model)

    def make(self, heads: Collection[Head]) -> PrunedModel:
        """Return the pruned model, planned or written. heads: the removed (layer, head)."""
        model, projections = self._model, self._projections
        removed = heads_by_layer(heads, self.layers)
        if self._directory is None:
            return plan_pruned(model, removed, projections)
        difference = difference_from_masked(model, heads, self._ids[:_COMPARED])
        return write_pruned(model, removed, projections, self._directory, difference, self._stored)


@torch.inference_mode()
def difference_from_masked(
    model: TransformersModel, heads: Collection[Head], ids: tuple[int, ...]
) -> Difference:
    """Return a function that compares a model's outputs with those of a masked model.

    model: the whole model, in which the heads are switched off. ids: the tokens of the text that
        both run on. heads: (layer, head) of each, of the model's default kind of attention.
    The function gives the largest absolute difference, and the largest that is allowed: 1e-5 in
    float32 and four rounding steps in half precision, times the largest output if above one.
    """
    text = Input.of_ids(ids, ids[: len(ids) // 2 + 1] if len(model.kinds) > 1 else None)
    patchable = patchable_transformers(model.model, model.kinds[0], text)
    inputs = patchable.inputs(text)
    with ablating(patchable, heads):
        expected = _answer(model.model(**inputs))
    scale = max(float(expected.abs().max()), 1.0)
    dtype = model.model.dtype
    allowed = scale * _TOLERANCE.get(dtype, _STEPS * torch.finfo(dtype).eps)

    @torch.inference_mode()
    def difference(other: Any) -> tuple[float, float]:
        found = _answer(other(**inputs))
        if found.shape != expected.shape:
            return float("inf"), allowed
        return float((found - expected).abs().max()), allowed

    return difference


def _answer(output: Any) -> Tensor:
    logits = getattr(output, "logits", None)
    answer: Tensor = logits if logits is not None else output[0]
    return answer.double()


def plan_pruned(
    model: TransformersModel, removed: Removed, projections: Mapping[int, OutputProjection]
) -> PrunedModel:
    """Return the record that ``write_pruned`` will most likely make; nothing is written or run.

    removed: by layer, the query heads to remove. projections: of every layer with attention.
    """
    state = _shapes_only(model)  # no tensor is read or copied
    ways = smaller_models(model.model, state, removed, projections, model.info)
    way = next(ways, Smaller(model.model, None, state))
    return _record(model, way, removed, projections)


def write_pruned(
    model: TransformersModel,
    removed: Removed,
    projections: Mapping[int, OutputProjection],
    directory: Path,
    difference: Difference,
    stored: torch.dtype | None = None,
) -> PrunedModel:
    """Write the pruned model as a checkpoint directory, whole or not at all.

    removed: by layer, the query heads to remove. projections: of every layer with attention.
    difference: compares a loaded model with the whole one with these heads switched off.
    stored: the dtype in which tensors are stored; by default the model's own.

    Raises LoadError if the directory cannot be written, UnsupportedError if not even zeros in the
    output projections switch the heads off, UsageError if the directory exists and is not empty.
    """
    require_numbers(model.model)
    state = silenced(model.model.state_dict(), projections, removed, model.info.heads)
    ways = smaller_models(model.model, state, removed, projections, model.info)
    whole = Smaller(shell_of(model.model), None, state)
    off = 0.0
    with whole_directory(directory) as draft:
        for way in chain(ways, [whole]):
            _fill(draft, model, way.shell, way.tensors, stored)
            found, allowed = difference(_opened(draft, way.shell, model))
            if found <= allowed:  # written so that NaN fails
                break
            off = found
            shutil.rmtree(draft)
            draft.mkdir()
        else:
            raise UnsupportedError(
                f"{model.info.name!r} cannot be stored without these heads: with zeros in their "
                f"output projections its outputs are off by {found:.1g}; nothing was written"
            )
        record = _record(model, way, removed, projections)
        if off and way is whole:
            cut = type(way.shell).__name__
            why = f"{cut} with fewer heads computes something else (off by {off:.1g})"
            record = replace(record, note=why, shrinks=False)
        if model.stored is not None:
            keep_pooling(draft, model.stored.directory)
        return _finished(draft, directory, record, removed, way.plan, found)


def _record(
    model: TransformersModel,
    way: Smaller,
    removed: Removed,
    projections: Mapping[int, OutputProjection],
) -> PrunedModel:
    parameters, info = count_parameters(way.shell), model.info
    if way.plan is not None:
        return cut_record(info, type(way.shell).__name__, way.plan, removed, parameters)
    shrinks = _shrinks(model, projections)
    return masked_record(info, removed, tuple(projections), parameters, shrinks)


def _shrinks(model: TransformersModel, projections: Mapping[int, OutputProjection]) -> bool:
    """Return whether the architecture can have fewer heads of the same width at all."""
    info = model.info
    first = range(max(info.heads // info.kv_heads, 1))
    state = _shapes_only(model)
    ways = smaller_models(model.model, state, dict.fromkeys(projections, first), projections, info)
    return next(ways, None) is not None


def _shapes_only(model: TransformersModel) -> dict[str, Tensor]:
    return {name: tensor.to("meta") for name, tensor in model.model.state_dict().items()}


def _fill(
    draft: Path,
    model: TransformersModel,
    shell: Any,
    tensors: Mapping[str, Tensor],
    stored: torch.dtype | None,
) -> None:
    with third_party("the pruned model cannot be written"), no_bars():
        if stored is not None:
            shell = shell.to(stored)
        shell.save_pretrained(draft, state_dict=_stored(tensors, stored))
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(draft)


def keep_pooling(draft: Path, beside: Path) -> None:
    """Write how sentence-transformers makes one vector of a text. beside: where weights were."""
    root = beside.parent if beside.name.startswith("0_") else beside
    if not (root / "modules.json").is_file():
        return
    with damaged(f"modules.json in {str(root)!r}"):
        modules = parse_json((root / "modules.json").read_bytes(), "modules.json")
        for module in modules:
            module["path"] = "" if module["path"].startswith("0_") else module["path"]
    for file in (*beside.glob("*sentence*.json"), *root.glob("*sentence*.json")):
        shutil.copyfile(file, draft / file.name)
    for file in filter(Path.is_file, root.glob("[1-9]_*/*")):
        (draft / file.parent.name).mkdir(exist_ok=True)
        shutil.copyfile(file, draft / file.parent.name / file.name)
    (draft / "modules.json").write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")


def _stored(tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Return contiguous tensors of one dtype; those that shared memory before still do so."""
    made: dict[tuple[int, torch.Size], Tensor] = {}
    for tensor in tensors.values():
        key = (tensor.data_ptr(), tensor.shape)
        if key not in made:
            narrow = dtype is not None and tensor.is_floating_point()
            made[key] = (tensor.to(dtype) if narrow else tensor).contiguous()
    return {name: made[tensor.data_ptr(), tensor.shape] for name, tensor in tensors.items()}


def _opened(draft: Path, shell: Any, model: TransformersModel) -> Any:
    """Return the model that was written, loaded on the device and in the dtype of ``model``."""
    whole = model.model
    with third_party("the pruned model cannot be opened again"), no_bars():
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
    facts = {
        "schema": _SCHEMA,
        **record.facts,
        "removed": {str(layer): sorted(heads) for layer, heads in sorted(removed.items()) if heads},
        "zeroed": heads_data(record.zeroed),
    }
    if plan is not None:
        facts["kept"] = {str(layer): list(heads) for layer, heads in sorted(plan.query.items())}
    (draft / "heads.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    for file in filter(Path.is_file, draft.rglob("*")):  # safetensors makes its files private
        shutil.copymode(draft / "heads.json", file)
    return replace(record, path=str(directory), difference=difference)
