"""Storing a model without some of its heads: cut if its config can describe that, else masked.

A smaller model is first built without memory, which shows the shapes of its tensors. Then every way
is written to disk, opened again and compared; only one whose outputs are those of the whole model
with the heads switched off is kept.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnviz.draw.files import whole_directory
from attnviz.draw.report import fields_of
from attnviz.engine.linear_map import packed_layers
from attnviz.engine.patchable import ablating, patchable_transformers
from attnviz.engine.projections import find_output_projections
from attnviz.errors import LoadError, UnsupportedError
from attnviz.inspect.prune.report import (
    RELATIVE,
    Head,
    PrunedModel,
    heads_by_layer,
    heads_data,
    pruned_model,
)
from attnviz.models.bundled import Bundled
from attnviz.models.cut_tensors import (
    CutPlan,
    Removed,
    UncutError,
    cut_plans,
    cut_tensors,
    silenced,
)
from attnviz.models.huggingface import load_transformers, no_bars, public_class
from attnviz.models.model import Model
from attnviz.models.split import require_numbers
from attnviz.models.third_party import third_party
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.whole import resized
from attnviz.models.work import LoadOptions
from attnviz.reading import damaged, parse_json
from attnviz.records import Input

Difference = Callable[[Any], tuple[float, float]]
"""A function from a loaded model to the largest absolute error of its outputs, and the largest
error that is allowed."""

_COMPARED = 64  # the most tokens over which outputs are compared
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
_STEPS = 4
"""Rounding steps of half precision by which outputs may differ: shorter sums round differently."""

_FIELDS = {"sliding_window": None}
"""Fields of the relative's config: its attention reaches as far as the model's own."""

_SCHEMA = "attnviz.pruned/1"


@dataclass(frozen=True, eq=False)
class Stored:
    """A model without some heads: its shell, tensors by name, and plan; None for zeros."""

    shell: Any
    plan: CutPlan | None
    tensors: dict[str, Tensor]


class PruneStore:
    """Removes heads from a loaded torch model for good, and writes the pruned model.

    directory: where the result is written; None to plan only.
    ids: the token ids of a text, over which the written model is compared with the whole one.
    parameters: their number in the whole model, tied ones once.
    dtype: in which tensors are stored; None for that of the model.
    Raises UnsupportedError if the model's heads cannot be removed for good.
    """

    def __init__(self, model: Model, directory: Path | None, ids: tuple[int, ...]) -> None:
        self._directory, self._ids = directory, ids
        self.dtype: torch.dtype | None = None
        if isinstance(model, Bundled):
            # Its files are a Llama checkpoint, and the pruned model is one as well.
            checkpoint = model.checkpoint
            self.dtype = getattr(torch, str(next(iter(checkpoint.tensors.values())).dtype))
            model = load_transformers(str(checkpoint.directory), LoadOptions(dtype="float32"))
        assert isinstance(model, TransformersModel)
        self._model = model
        self.projections = find_output_projections(model)
        self.layers = tuple(sorted(self.projections))
        for projection in self.projections.values():
            if not projection.plain:
                raise UnsupportedError(
                    f"{projection.module} multiplies by more than its weight: heads are removed "
                    f"from plain weights alone{packed_layers(model.model)}"
                )
        self.parameters = _count_parameters(model.model)

    def make(self, heads: Collection[Head]) -> PrunedModel:
        """Return the pruned model, planned or written. heads: the removed (layer, head)."""
        removed = heads_by_layer(heads, self.layers)
        if self._directory is None:
            return self.plan(removed)
        difference = difference_from_masked(self._model, heads, self._ids[:_COMPARED])
        return self.write(removed, self._directory, difference)

    def plan(self, removed: Removed) -> PrunedModel:
        """Return the record that ``write`` will most likely make; nothing is written or run."""
        shapes = self._shapes_only()  # no tensor is read or copied
        whole = Stored(self._model.model, None, shapes)
        return self._record(next(self._smaller(shapes, removed), whole), removed)

    def write(self, removed: Removed, directory: Path, difference: Difference) -> PrunedModel:
        """Write the pruned model as a checkpoint directory, whole or not at all.

        difference: compares a loaded model with the whole one with these heads switched off.

        Raises LoadError if the directory cannot be written, UnsupportedError if not even zeros in
        the output projections switch the heads off, UsageError if the directory exists and is not
        empty.
        """
        model = self._model
        require_numbers(model.model)
        state = silenced(model.model.state_dict(), self.projections, removed, model.info.heads)
        with third_party(f"{type(model.model).__name__} cannot be built again"):
            shell = _empty(type(model.model), deepcopy(model.model.config), model.model)
        whole, off = Stored(shell, None, state), 0.0
        with whole_directory(directory) as draft:
            for way in chain(self._smaller(state, removed), [whole]):
                self._fill(draft, way)
                error, allowed = difference(_opened(draft, way.shell, model))
                if error <= allowed:  # written so that NaN fails
                    break
                off = error
                shutil.rmtree(draft)
                draft.mkdir()
            else:
                raise UnsupportedError(
                    f"{model.info.name!r} cannot be stored without these heads: with zeros in "
                    f"their output projections its outputs are off by {error:.1g}; nothing was "
                    "written"
                )
            record = self._record(way, removed)
            if off and way is whole:
                cut = type(way.shell).__name__
                why = f"{cut} with fewer heads computes something else (off by {off:.1g})"
                record = replace(record, note=why, shrinks=False)
            if model.stored is not None:
                keep_pooling(draft, model.stored.directory)
            _list_heads(draft, record, removed, way.plan)
        return replace(record, path=str(directory), max_difference=error)

    def _record(self, way: Stored, removed: Removed) -> PrunedModel:
        info, parameters = self._model.info, _count_parameters(way.shell)
        shrinks = True
        if way.plan is None:  # can the architecture have fewer heads of the same width at all?
            first = dict.fromkeys(self.projections, range(max(info.heads // info.kv_heads, 1)))
            shrinks = next(self._smaller(self._shapes_only(), first), None) is not None
        name = type(way.shell).__name__
        return pruned_model(info, way.plan, removed, parameters, architecture=name, shrinks=shrinks)

    def _shapes_only(self) -> dict[str, Tensor]:
        state = self._model.model.state_dict()
        return {name: tensor.to("meta") for name, tensor in state.items()}

    def _smaller(self, state: Mapping[str, Tensor], removed: Removed) -> Iterator[Stored]:
        """Yield the ways of storing the pruned model with fewer parameters, the smallest first."""
        model, info = self._model.model, self._model.info
        for plan in cut_plans(removed, self.projections, info.heads, info.kv_heads):
            described = _described(model, plan, info.head_dim)
            shell = _tried(lambda own: own and _empty(own[0], own[1], model), described)
            if shell is None or _count_parameters(shell) >= self.parameters:
                continue
            shapes = {name: tensor.shape for name, tensor in shell.state_dict().items()}
            seen: list[dict[str, Tensor]] = []
            for fused in (False, True):
                try:
                    tensors = cut_tensors(state, shapes, plan, info, self.projections, fused=fused)
                except UncutError:
                    continue
                if not any(all(torch.equal(tensors[n], old[n]) for n in tensors) for old in seen):
                    seen.append(tensors)
                    yield Stored(shell, plan, tensors)

    def _fill(self, draft: Path, way: Stored) -> None:
        """Write a checkpoint; tensors that share memory are stored once."""
        kept: dict[tuple[int, torch.Size], Tensor] = {}
        tensors = dict[str, Tensor]()
        for name, tensor in way.tensors.items():
            key = (tensor.data_ptr(), tensor.shape)
            if key not in kept and self.dtype is not None and tensor.is_floating_point():
                tensor = tensor.to(self.dtype)
            tensors[name] = kept.setdefault(key, tensor.contiguous())
        with third_party("the pruned model cannot be written"), no_bars():
            shell = way.shell if self.dtype is None else way.shell.to(self.dtype)
            shell.save_pretrained(draft, state_dict=tensors)
            if self._model.tokenizer is not None:
                self._model.tokenizer.save_pretrained(draft)


def _count_parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())  # tied ones once


def _described(model: Any, plan: CutPlan, head_dim: int) -> tuple[Any, Any] | None:
    def sized(config: Any) -> Any:
        return _tried(lambda own: resized(own, plan.heads, plan.kv_heads, head_dim), config)

    own, (family, other) = type(model), RELATIVE
    if (config := sized(model.config)) is not None:
        return own, config
    if type(model.config).__name__ != f"{family}Config":
        return None
    config_class = public_class(f"{other}Config")
    model_class = public_class(own.__name__.replace(family, other))
    if config_class is None or model_class is None:
        return None
    fields = model.config.to_dict() | _FIELDS
    kept = {name: fields[name] for name in fields if name not in ("model_type", "architectures")}
    config = sized(config_class.from_dict(kept))
    return None if config is None else (model_class, config)


def _tried(make: Callable[[Any], Any], given: Any) -> Any:
    """Return the result of ``make``, a call into transformers; None if it fails."""
    try:
        with third_party("it cannot be made smaller"):
            return make(given)
    except LoadError:
        return None


def _empty(model_class: Any, config: Any, model: Any) -> Any:
    with torch.device("meta"):
        shell = model_class(config).to(model.dtype)
    if getattr(model, "generation_config", None) is not None:
        shell.generation_config = deepcopy(model.generation_config)
    return shell.eval()


@torch.inference_mode()
def difference_from_masked(
    model: TransformersModel, heads: Collection[Head], ids: tuple[int, ...]
) -> Difference:
    """Return a function that compares a model's outputs with those of a masked model.

    heads: (layer, head) of each, of the model's default kind of attention.
    The function gives the largest absolute difference, and the largest that is allowed: 1e-5 in
    float32 and four rounding steps in half precision, times the largest output if above one.
    """
    text = Input.of_ids(ids, ids[: len(ids) // 2 + 1] if len(model.kinds) > 1 else None)
    patchable = patchable_transformers(model.model, model.kinds[0], text)
    inputs = patchable.inputs(text)

    def answer(other: Any) -> Tensor:
        output = other(**inputs)
        logits = getattr(output, "logits", None)
        values: Tensor = logits if logits is not None else output[0]
        return values.double()

    with ablating(patchable, heads):
        expected = answer(model.model)
    dtype = model.model.dtype
    tolerance = _TOLERANCE.get(dtype, _STEPS * torch.finfo(dtype).eps)
    allowed = max(float(expected.abs().max()), 1.0) * tolerance

    @torch.inference_mode()
    def difference(other: Any) -> tuple[float, float]:
        values = answer(other)
        if values.shape != expected.shape:
            return float("inf"), allowed
        return float((values - expected).abs().max()), allowed

    return difference


def _opened(draft: Path, shell: Any, model: TransformersModel) -> Any:
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


def keep_pooling(draft: Path, beside: Path) -> None:
    """Write the pooling files of sentence-transformers to ``draft``. beside: the old weights."""
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


def _list_heads(draft: Path, record: PrunedModel, removed: Removed, plan: CutPlan | None) -> None:
    facts = {
        "schema": _SCHEMA,
        **fields_of(record, ("form", "heads", "kv_heads", "parameters")),
        "removed": {str(layer): sorted(heads) for layer, heads in sorted(removed.items()) if heads},
        "zeroed": heads_data(record.zeroed),
    }
    if plan is not None:
        facts["kept"] = {str(layer): list(heads) for layer, heads in sorted(plan.query.items())}
    (draft / "heads.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    for file in filter(Path.is_file, draft.rglob("*")):  # safetensors makes its files private
        shutil.copymode(draft / "heads.json", file)
