"""Which files of a checkpoint are needed, and whether they are there and whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from attnviz.errors import LoadError
from attnviz.models.foreign import one_line

__all__ = [
    "PickleError",
    "check_weights",
    "file_names",
    "has_vocabulary",
    "read_json",
    "side_files",
    "stored_metadata",
    "weight_files",
]

_SAFE = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_VOCABULARY = (
    *("tokenizer.json", "*vocab*", "merges.txt", "tekken.json"),
    *("*.model", "*.spm", "*.tiktoken", "*.bpe", "*.codes"),
)
_SIDE = ("generation_config.json", "*token*.json", *_VOCABULARY)
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".ot", ".gguf")


class PickleError(LoadError):
    """The weights are only there as pickles, which were not allowed."""


def file_names(directory: Path) -> set[str]:
    """The names of the files that lie directly in ``directory``."""
    return {entry.name for entry in directory.iterdir() if entry.is_file()}


def has_vocabulary(names: Collection[str]) -> bool:
    """Whether any of the files holds a tokenizer's vocabulary."""
    return any(_matches(name, _VOCABULARY) for name in names)


def side_files(names: Collection[str], with_code: bool) -> list[str]:
    """The small files beside config and weights: the tokenizer's, and code where it is trusted."""
    patterns = (*_SIDE, "*.py") if with_code else _SIDE
    return sorted(name for name in names if _matches(name, patterns))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    if "/" in name or name.endswith(_WEIGHTS):
        return False
    return any(fnmatch(name, pattern) for pattern in patterns)


def weight_files(
    name: str, names: Collection[str], fetch: Callable[[str], Path], allow_pickle: bool
) -> list[str]:
    """The weight files to read: safetensors, or pickles where only they exist and are allowed.

    ``fetch`` gives the local path of a file of the checkpoint, such as the index of the shards.

    Raises:
        PickleError: there are only pickles, and they are not allowed.
        LoadError: there are no weights, or the index cannot be read.
    """
    for whole, index in (_SAFE, _PICKLED) if allow_pickle else (_SAFE,):
        if whole in names:
            return [whole]
        if index in names:
            return _shards(name, fetch(index))
    if not allow_pickle and any(pickle in names for pickle in _PICKLED):
        raise PickleError(
            f"{name!r} has its weights only as pickles, which can run any code when they are read; "
            f"convert them to safetensors, or pass --allow-pickle if you trust their author"
        )
    others = sorted(other for other in names if other.endswith(_WEIGHTS))
    found = f"only {', '.join(others[:3])}, which cannot be read here" if others else "none"
    raise LoadError(f"{name!r} has no weights: expected {_SAFE[0]}, found {found}")


def _shards(name: str, index: Path) -> list[str]:
    table = read_json(index).get("weight_map")
    shards = list(table.values()) if isinstance(table, dict) else []
    if not shards or not all(isinstance(shard, str) for shard in shards):
        raise LoadError(f"{name!r} is damaged: {index.name} has no 'weight_map' of file names")
    return sorted(set(shards))


def check_weights(name: str, directory: Path, weights: list[str]) -> None:
    """Refuse absent weight files, and safetensors that are cut off or otherwise damaged."""
    absent = [file for file in weights if not (directory / file).is_file()]
    if absent:
        raise LoadError(
            f"{name!r} is incomplete: {absent[0]} is missing"
            + (
                f", and {len(absent) - 1} more of its {len(weights)} weight files"
                * (len(absent) > 1)
            )
        )
    for file in weights:
        if file.endswith(".safetensors"):
            _check_safetensors(name, directory / file)


def stored_metadata(directory: Path, weights: list[str]) -> dict[str, str]:
    """What the one safetensors file of a checkpoint says beside its tensors; empty for others."""
    if len(weights) != 1 or not weights[0].endswith(".safetensors"):
        return {}
    with safe_open(directory / weights[0], framework="numpy") as file:
        return dict(file.metadata() or {})


def _check_safetensors(name: str, path: Path) -> None:
    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError, ValueError) as error:
        raise LoadError(
            f"{name!r} is damaged: {path.name} is no whole safetensors file ({one_line(error)}); "
            f"delete {str(path.resolve())!r} and get it again"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{str(path)!r} cannot be read as JSON: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise LoadError(f"{str(path)!r} should hold a JSON object, not {type(content).__name__}")
    return content
