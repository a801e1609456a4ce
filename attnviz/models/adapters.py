"""Low-rank adapters of the library peft, merged into the weights of their base without peft.

LoRA (Hu et al. 2021, https://arxiv.org/abs/2106.09685) adds s·B·A to a matrix W, where s is α/r, or
α/√r (rsLoRA); modules that were saved whole replace those of the base. Whatever else the files of
an adapter say is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.family import NotUnderstoodError
from attnviz.errors import AttnvizError, LoadError, UnsupportedError
from attnviz.models.checkpoint_files import ADAPTER, Shapes, check_weights, file_names
from attnviz.models.stored_tensors import StoredTensors
from attnviz.reading import damaged, read_json

_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."

_LOW_RANK = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.weight)?")
_WHOLE = re.compile(r"(?!.*lora_).+\.(weight|bias)")
_WRAPPED = re.compile(r"\.(base_layer|original_module|modules_to_save)(?=\.)")
_PROMPTS = re.compile(r".*(PROMPT|P_TUNING|PREFIX|CPT).*")

_SILENT = {
    *("peft_type", "base_model_name_or_path", "revision", "lora_alpha", "alpha_pattern", "r"),
    *("use_rslora", "fan_in_fan_out", "init_lora_weights", "task_type", "auto_mapping", "bias"),
    *("inference_mode", "peft_version", "rank_pattern", "modules_to_save", "target_modules"),
    *(
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "lora_dropout",
        "megatron_config",
    ),
    *("megatron_core", "loftq_config", "eva_config", "runtime_config", "qalora_group_size"),
}
"""Fields of an adapter's config that are read here, or say no more than its tensors do."""

_FIRST_VALUES = (True, False, None, "gaussian", "eva", "orthogonal")
"""Ways of drawing the first A and B of a training that leave the base's own weights as they are."""

_SLOW = re.compile(r"\)[*+?{]|([*+{].*){4}")
"""Matches patterns of a stranger's config that could take for ever on a name."""

Change = Callable[[Any], NDArray[np.float32]]
"""Returns a tensor of the base as the adapter changes it, in float32 and in its own shape."""


@dataclass(frozen=True)
class _Parts:
    """The names of an adapter's tensors for one tensor of its base.

    whole: the one that replaces it. down, up: A (rank, in) and B (out, rank). None without them.
    table: whether A and B change a table of embeddings, stored as (in, out).
    """

    whole: str | None = None
    down: str | None = None
    up: str | None = None
    table: bool = False


class Adapter:
    """A LoRA adapter in a directory, as peft saves it.

    name: of the model as the user gave it. base: the name of its base model, and revision, that of
    the base on the hub; None for the model in the same directory. tensors: those of its file.

    Raises UnsupportedError if it does more than LoRA, LoadError if its files are damaged.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self.directory = name, directory
        with damaged(f"the {ADAPTER} of {name!r}"):
            fields = dict(read_json(directory / ADAPTER))
            alphas = dict(fields.get("alpha_pattern") or {})
            self._alphas = {re.compile(one).pattern: float(alpha) for one, alpha in alphas.items()}
            self._alpha, self._stable = float(fields.get("lora_alpha", 8)), fields.get("use_rslora")
        beside = (directory / "config.json").is_file()
        given = fields.get("base_model_name_or_path")
        self.base = None if beside or not given else str(given)
        self.revision = None if self.base is None else fields.get("revision")
        self._check(fields, beside)
        if _WEIGHTS not in file_names(directory):
            raise LoadError(
                f"{name!r} has an {ADAPTER} and no {_WEIGHTS}: save the adapter again with peft"
            )
        shapes = check_weights(name, directory, [_WEIGHTS])
        self.tensors = StoredTensors([directory / _WEIGHTS], fields)
        try:
            self.tensors.types(list(shapes))
        except NotUnderstoodError as error:
            raise LoadError(f"the adapter of {name!r} cannot be read: its {error}") from error
        self._parts = self._read_parts(shapes)

    @property
    def note(self) -> str:
        """Return the sentence for the reader that says what is shown."""
        where = "beside it" if self.base is None else repr(self.base)
        return (
            f"its LoRA adapter is merged into the model {where}: {len(self._parts)} changed tensors"
        )

    def _check(self, fields: Mapping[str, Any], beside: bool) -> None:
        kind, base = str(fields.get("peft_type")), self.base
        if not beside and base is None:
            raise LoadError(f"{self.name!r} is an adapter whose {ADAPTER} names no base model")
        if kind != "LORA":
            raise self._refused(f"is of the type {kind}", prompts=bool(_PROMPTS.fullmatch(kind)))
        first = fields.get("init_lora_weights")
        if first not in _FIRST_VALUES:
            raise self._refused(f"says init_lora_weights = {first!r}, which changes its base too")
        for field in sorted(fields.keys() - _SILENT):
            if fields[field]:
                raise self._refused(f"says {field} = {fields[field]!r}")

    def _refused(self, why: str, prompts: bool = False) -> UnsupportedError:
        base = self.base or str(self.directory)
        mend = (
            "it learns tokens that no text has; open its base alone"
            if prompts
            else "merge it into its base with peft (merge_and_unload), save that and open it"
        )
        return UnsupportedError(
            f"the adapter {self.name!r} of {base!r} {why}, and only plain LoRA is computed here: "
            f"{mend}"
        )

    def _read_parts(self, shapes: Shapes) -> dict[str, _Parts]:
        """Return the parts by the name of the base's tensor. shapes: of the stored tensors."""
        found: dict[str, dict[str, Any]] = {}
        for stored in shapes:
            path = _WRAPPED.sub("", stored.removeprefix(_PREFIX))
            if not stored.startswith(_PREFIX):
                raise self._refused(f"has the tensor {stored}")
            if low := _LOW_RANK.fullmatch(path):
                parts = found.setdefault(f"{low[1]}.weight", {})
                parts["down" if low[3] == "A" else "up"] = stored
                parts["table"] = bool(low[2])
            elif _WHOLE.fullmatch(path):
                found.setdefault(path, {})["whole"] = stored
            else:
                raise self._refused(f"has the tensor {stored}")
        for path, parts in found.items():
            pair = [shapes[parts[side]] for side in ("up", "down") if side in parts]
            if pair and ([*map(len, pair)] != [2, 2] or pair[0][1] != pair[1][0]):
                raise LoadError(
                    f"the adapter {self.name!r} is damaged: B and A of {path} should be (out, "
                    f"rank) and (rank, in), got {' and '.join(map(str, pair))}"
                )
        return {path: _Parts(**parts) for path, parts in found.items()}

    def on(self, names: Collection[str], turned: Collection[str]) -> dict[str, Change]:
        """Return the changes by the name of the tensor that they change.

        names: of the base's tensors, which may have a prefix more or less than in the adapter.
        turned: those that are stored as (in, out).
        Raises LoadError if a change has no tensor, or more than one.
        """
        found: dict[str, Change] = {}
        for path, parts in self._parts.items():
            fitting = [path] if path in names else _alike(path, names)
            if len(fitting) != 1:
                raise LoadError(
                    f"the adapter {self.name!r} changes {path}, which its base model does not "
                    "have: it belongs to another model"
                )
            (name,) = fitting
            found[name] = partial(self._changed, path, parts, name in turned)
        return found

    def _scale(self, path: str, down: str) -> float:
        """Return α/r of a matrix, or α/√r. path: its name. down: the name of A."""
        alpha, rank = self._alpha, self.tensors.shapes[down][0]
        for pattern, other in self._alphas.items():
            if _SLOW.search(pattern):
                raise self._refused(f"says alpha_pattern = {pattern!r}")
            if re.match(rf"(.*\.)?({pattern})$", path.removesuffix(".weight")):
                alpha = other
                break
        return alpha / (sqrt(rank) if self._stable else rank)

    def _changed(self, path: str, parts: _Parts, turned: bool, tensor: Any) -> NDArray[np.float32]:
        found: NDArray[np.float32] = tensor.astype(np.float32)
        if parts.whole is not None:
            own, found = found.shape, self.tensors[parts.whole].astype(np.float32)
            self._check_shape(path, found.shape, own)
        if parts.down is None or parts.up is None:
            return found
        down, up = (self.tensors[one].astype(np.float32) for one in (parts.down, parts.up))
        if parts.table or turned:
            down, up = up.T, down.T
        self._check_shape(path, (len(up), down.shape[1]), found.shape)
        return found + np.float32(self._scale(path, parts.down)) * (up @ down)

    def _check_shape(self, path: str, shape: tuple[int, ...], own: tuple[int, ...]) -> None:
        if shape != own:
            raise LoadError(
                f"the adapter {self.name!r} does not fit its base model: {path} is {own} there, "
                f"and the adapter changes {shape}"
            )


def _alike(path: str, names: Iterable[str]) -> list[str]:
    return [one for one in names if one.endswith(f".{path}") or path.endswith(f".{one}")]


def with_base(
    name: str, directory: Path, find: Callable[[str, str | None], Path]
) -> tuple[Path, Adapter | None]:
    """Return the directory of a model's weights, and the adapter that changes them, if any.

    directory: of the model, or of an adapter alone. find: returns the directory of the base, given
        its name and its revision on the hub. Raises errors of ``find`` with what was asked for.
    """
    if not (directory / ADAPTER).is_file():
        return directory, None
    adapter = Adapter(name, directory)
    if adapter.base is None:
        return directory, adapter
    try:
        base = find(adapter.base, adapter.revision)
    except AttnvizError as error:
        raise type(error)(
            f"{name!r} is a LoRA adapter of {adapter.base!r}, which is needed too: {error}; if it is "
            f"somewhere else, say where in the base_model_name_or_path of its {ADAPTER}"
        ) from error
    if (base / ADAPTER).is_file():
        raise UnsupportedError(
            f"{name!r} is an adapter of {adapter.base!r}, which is one of its own: merge that into "
            "its base with peft (merge_and_unload), save it, and name it as the base"
        )
    return base, adapter
