"""Low-rank adapters of the library peft, merged into the weights of their base without peft.

LoRA (Hu et al. 2021, https://arxiv.org/abs/2106.09685) adds s·B·A to a matrix W, where s is α/r, or
α/√r (rsLoRA); modules that were saved whole replace those of the base. Whatever else the files of
an adapter say is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.families import NotUnderstoodError
from attnviz.errors import AttnvizError, LoadError, UnsupportedError
from attnviz.models.checkpoint_files import ADAPTER, Shapes, check_weights, file_names
from attnviz.models.stored_tensors import Change, StoredTensors
from attnviz.reading import damaged, finite, read_json

_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_LOW_RANK = re.compile(r"(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?")
_WHOLE = re.compile(r"(?!.*lora_).+\.(weight|bias)")
_WRAPPED = re.compile(r"\.(base_layer|original_module|modules_to_save)(?=\.)")
_PROMPTS = re.compile(r".*(PROMPT|P_TUNING|PREFIX|CPT).*")
# Matches patterns of a stranger's config that could take for ever on a name.
_SLOW = re.compile(r"\)[*+?{]|([*+{].*){4}")

_KNOWN = {
    *("peft_type", "base_model_name_or_path", "revision", "lora_alpha", "alpha_pattern", "r"),
    *("use_rslora", "fan_in_fan_out", "init_lora_weights", "task_type", "auto_mapping", "bias"),
    *("inference_mode", "peft_version", "rank_pattern", "modules_to_save", "target_modules"),
    *("exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout", "loftq_config"),
    *("megatron_core", "eva_config", "runtime_config", "qalora_group_size"),
}
"""Fields of an adapter's config that are read here, or say no more than its tensors do."""

# Ways of drawing the first A and B of a training that leave the base's own weights as they are.
_FIRST_VALUES = (True, False, None, "gaussian", "eva", "orthogonal")


class LoraAdapter:
    """A LoRA adapter in a directory, as peft saves it.

    name: the model as the user named it. base, revision: the name of its base model, and that
    model's revision on the hub; None if the base is in the same directory. tensors: of its file.
    Raises UnsupportedError if it does more than LoRA, LoadError if its files are damaged.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self.directory = name, directory
        with damaged(f"the {ADAPTER} of {name!r}"):
            fields = dict(read_json(directory / ADAPTER))
            alphas = dict(fields.get("alpha_pattern") or {})
            self._alphas = {re.compile(end).pattern: finite(alphas[end]) for end in alphas}
            self._alpha = finite(fields.get("lora_alpha", 8))
        self._stable = fields.get("use_rslora")
        beside = (directory / "config.json").is_file()
        self.base = None if beside else str(fields.get("base_model_name_or_path") or "")
        self.revision = None if beside else fields.get("revision")
        if self.base == "" or _WEIGHTS not in file_names(directory):
            lack = f"{_WEIGHTS} beside it" if self.base != "" else "base_model_name_or_path"
            raise LoadError(f"the {ADAPTER} of {name!r} has no {lack}: save it again with peft")
        kind, first = str(fields.get("peft_type")), fields.get("init_lora_weights")
        if kind != "LORA":
            raise self._refused(f"is of the type {kind}", prompts=bool(_PROMPTS.fullmatch(kind)))
        if first not in _FIRST_VALUES:
            raise self._refused(f"says init_lora_weights = {first!r}, which changes its base too")
        for pattern in filter(_SLOW.search, self._alphas):
            raise self._refused(f"says alpha_pattern = {pattern!r}")
        for field in filter(fields.get, sorted(fields.keys() - _KNOWN)):
            raise self._refused(f"says {field} = {fields[field]!r}")
        shapes = check_weights(name, directory, [_WEIGHTS])
        self.tensors = StoredTensors([directory / _WEIGHTS], fields)
        try:
            self.tensors.types(list(shapes))
        except NotUnderstoodError as error:
            raise LoadError(f"the adapter of {name!r} cannot be read: its {error}") from error
        self._parts = self._read_parts(shapes)

    @property
    def note(self) -> str:
        """Return a note that this adapter is merged into the weights of its base model."""
        where = "beside it" if self.base is None else repr(self.base)
        return f"its LoRA adapter is merged into the model {where} (tensors: {len(self._parts)})"

    def _refused(self, why: str, prompts: bool = False) -> UnsupportedError:
        mend = "merge it into its base with peft (merge_and_unload), save that and open it"
        if prompts:
            mend = "it learns tokens that no text has; open its base alone"
        return UnsupportedError(
            f"the adapter {self.name!r} of {self.base or str(self.directory)!r} {why}, and only "
            f"plain LoRA is computed here: {mend}"
        )

    def _read_parts(self, shapes: Shapes) -> dict[str, dict[str, str]]:
        """Return the stored tensors A, B and the whole one by the name of the base's tensor."""
        by_path: dict[str, dict[str, str]] = {}
        for stored in shapes:
            path = _WRAPPED.sub("", stored.removeprefix(_PREFIX))
            low = _LOW_RANK.fullmatch(path)
            if stored == path or not (low or _WHOLE.fullmatch(path)):
                raise self._refused(f"has the tensor {stored}")
            name, part = (f"{low[1]}.weight", low[2]) if low else (path, "whole")
            by_path.setdefault(name, {})[part] = stored
        for path, parts in by_path.items():
            pair = [shapes[parts[side]] for side in "BA" if side in parts]
            if pair and ([*map(len, pair)] != [2, 2] or pair[0][1] != pair[1][0]):
                raise LoadError(
                    f"the adapter {self.name!r} is damaged: B and A of {path} should be (out, "
                    f"rank) and (rank, in), got {' and '.join(map(str, pair))}"
                )
        return by_path

    def on(self, names: Collection[str], turned: Collection[str]) -> dict[str, Change]:
        """Return the changes that the adapter makes to the base, by the changed tensor's name.

        names: of the base's tensors, which may have a prefix more or less than in the adapter.
        turned: those that are stored as (in, out). Raises LoadError if the base lacks a tensor.
        """
        changes: dict[str, Change] = {}
        for path, parts in self._parts.items():
            alike = (own for own in names if own.endswith(f".{path}") or path.endswith(f".{own}"))
            name = path if path in names else next(alike, None)
            if name is None:
                raise LoadError(
                    f"the adapter {self.name!r} changes {path}, which its base model does not "
                    "have: it belongs to another model"
                )
            changes[name] = partial(self._changed, path, parts, name in turned)
        return changes

    def _changed(
        self, path: str, parts: Mapping[str, str], turned: bool, tensor: Any
    ) -> NDArray[np.float32]:
        base: NDArray[np.float32] = tensor.astype(np.float32)
        read = {part: self.tensors[stored].astype(np.float32) for part, stored in parts.items()}
        changed, shapes = read.get("whole", base), [read.get("whole", base).shape]
        if "A" in parts:
            left, right = read["B"], read["A"]
            if turned or "lora_embedding_A" in parts["A"]:
                left, right = right.T, left.T
            shapes.append((len(left), right.shape[1]))
        for shape in shapes:
            if shape != base.shape:
                raise LoadError(
                    f"the adapter {self.name!r} does not fit its base model: {path} is "
                    f"{base.shape} there, and {shape} in the adapter"
                )
        if "A" in parts:
            changed = changed + self._scale(path, len(read["A"])) * (left @ right)
        return changed

    def _scale(self, path: str, rank: int) -> np.float32:
        """Return α/r of a matrix, or α/√r. path: its name."""
        name, alphas = path.removesuffix(".weight"), self._alphas.items()
        fitting = (alpha for end, alpha in alphas if re.match(rf"(.*\.)?({end})$", name))
        return np.float32(next(fitting, self._alpha) / (sqrt(rank) if self._stable else rank))


def with_base(
    name: str, revision: str | None, find: Callable[[str, str | None], tuple[Any, ...]]
) -> tuple[Path, str | None, LoraAdapter | None]:
    """Return the directory of a model's weights, their commit, and the adapter that changes them.

    find: returns first the directory and the commit of a name and its revision on the hub; it is
        called again for the base of an adapter, and its errors then say what that is for.
    """
    directory, commit = find(name, revision)[:2]
    if not (directory / ADAPTER).is_file():
        return directory, commit, None
    adapter = LoraAdapter(name, directory)
    if adapter.base is None:
        return directory, commit, adapter
    try:
        base, commit = find(adapter.base, adapter.revision)[:2]
    except AttnvizError as error:
        raise type(error)(
            f"{name!r} is a LoRA adapter of {adapter.base!r}, which is needed too: {error}; if it "
            f"is somewhere else, say where in the base_model_name_or_path of its {ADAPTER}"
        ) from error
    if (base / ADAPTER).is_file():
        raise UnsupportedError(
            f"{name!r} is an adapter of {adapter.base!r}, which is one of its own: merge that into "
            "its base with peft (merge_and_unload), save it, and name it as the base"
        )
    return base, commit, adapter
