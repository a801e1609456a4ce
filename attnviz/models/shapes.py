"""Named shapes: one TOML file per model under ``configs/``, with the fields of its config."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.errors import LoadError

__all__ = ["Shape", "find_shape", "hint", "read_shape_file", "shape_names"]

_PACKAGE = Path(__file__).resolve().parent.parent
_OTHER_NAMES = ("tiny", "mha")


@dataclass(frozen=True)
class Shape:
    """The shape of a known model.

    name: how it is asked for, also the file's name.
    source: where its numbers come from, the URL of a config or a paper.
    hub: the hub id of a checkpoint of this shape.
    config: the fields of its Hugging Face config, ``model_type`` and ``architectures`` among them.
    """

    name: str
    source: str
    hub: str
    config: dict[str, Any]


def shape_names() -> tuple[str, ...]:
    """The names of all shapes that come with the package, in alphabetical order."""
    return tuple(sorted(path.stem for path in _directory().glob("*.toml")))


def find_shape(name: str) -> Shape:
    """The named shape; LoadError where there is none of this name."""
    if name not in shape_names():
        raise LoadError(f"no shape {name!r} among the named ones: {', '.join(shape_names())}")
    return read_shape_file(_directory() / f"{name}.toml")


def read_shape_file(path: Path) -> Shape:
    """The shape in a TOML file; LoadError where it cannot be read or lacks a field."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{str(path)!r} cannot be read as a shape: {error}") from error
    config = table.get("config")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise LoadError(f"{str(path)!r} is no shape: it has no [config] table with a model_type")
    architectures = config.get("architectures")
    if not (isinstance(architectures, list) and architectures):
        raise LoadError(f"{str(path)!r} is no shape: [config] names no architectures")
    return Shape(
        name=str(table.get("name", path.stem)),
        source=str(table.get("source", "")),
        hub=str(table.get("hub", "")),
        config=config,
    )


def hint(name: str) -> str:
    """What else a person may have meant by a model's name, to end a message with; or nothing."""
    if name in shape_names():
        return f"; `--model configs/{name}` builds its shape with random weights"
    known = (*_OTHER_NAMES, *shape_names())
    close = difflib.get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _directory() -> Path:
    """Inside an installed package, beside the package in a source checkout."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"
