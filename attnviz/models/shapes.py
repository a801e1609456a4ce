"""Built-in model configurations: one TOML file per model under ``configs/``.

A file has a ``[config]`` with the fields of a Hugging Face config, which can be counted and built.
If Hugging Face has no config for it, it has a ``[shape]`` or a list of ``[[stack]]`` with the
options of ``attnviz params``, which can only be counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.errors import LoadError
from attnviz.reading import read_toml

_PACKAGE = Path(__file__).resolve().parent.parent
_OTHER_NAMES = ("tiny", "mha")
_KEYS = ("name", "source", "hub", "counts", "notes", "config", "shape", "stack", "table", "matrix")
_FORMS = ("config", "shape", "stack")

ABOUT_SCHEME = ("quantization_config", "compression_config", "quantization")
"""The fields of a config that may say how weights are quantised."""


@dataclass(frozen=True)
class Shape:
    """A built-in configuration of a known model, read from a TOML file.

    name: its name in the command, also the file's name.
    source: where its numbers come from, the URL of a config or a paper.
    hub: the hub id of a checkpoint with this configuration. config: the fields of its Hugging Face
        config, ``model_type`` and ``architectures`` among them; empty if it has none.
    counts: the model class whose parameters the published number counts, if that is not the first
        of ``architectures``. stacks: without a config, the options of each stack.
    tables, matrices: without a config, the parameters outside the stacks.
    notes: sentences to show next to the numbers.
    """

    name: str
    source: str
    hub: str
    config: dict[str, Any]
    counts: str = ""
    stacks: tuple[dict[str, Any], ...] = ()
    tables: tuple[dict[str, Any], ...] = ()
    matrices: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


def shape_names() -> tuple[str, ...]:
    """Return the names of all built-in model configurations, in alphabetical order."""
    stems = {path.stem for path in configs_directory().glob("*.toml")}
    return tuple(sorted(stems.difference(_OTHER_NAMES)))  # tiny.toml says how tiny is trained


def find_shape(name: str) -> Shape:
    """Return the built-in model configuration of this name; raise LoadError if there is none."""
    if name not in shape_names():
        raise LoadError(f"no shape {name!r} among the named ones: {', '.join(shape_names())}")
    return read_shape_file(configs_directory() / f"{name}.toml")


def read_shape_file(path: Path) -> Shape:
    """Return the model configuration in a TOML file; LoadError if it is unreadable."""
    table = read_toml(path, "a shape")
    for key in table:
        if key not in _KEYS:
            raise LoadError(f"{str(path)!r} has an unknown key {key!r}{nearest(key, _KEYS)}")
    forms = [form for form in _FORMS if form in table]
    if len(forms) > 1:
        raise LoadError(f"{str(path)!r} has both [{forms[0]}] and [{forms[1]}]: keep one of them")
    stacks = _tables(path, table, "shape") or _tables(path, table, "stack")
    config = {} if stacks else _config(path, table.get("config"))
    tables, matrices = (_tables(path, table, key) for key in ("table", "matrix"))
    notes = table.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise LoadError(f"{str(path)!r} is not a shape: notes must be a list of sentences")
    return Shape(
        name=str(table.get("name", path.stem)),
        **{key: str(table.get(key, "")) for key in ("source", "hub", "counts")},
        config=config,
        stacks=stacks,
        tables=tables,
        matrices=matrices,
        notes=tuple(notes),
    )


def _config(path: Path, config: object) -> dict[str, Any]:
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise LoadError(
            f"{str(path)!r} is not a shape: it has no [config] table with a model_type, and no "
            "[shape]"
        )
    architectures = config.get("architectures")
    if not (isinstance(architectures, list) and architectures):
        raise LoadError(f"{str(path)!r} is not a shape: [config] names no architectures")
    return config


def _tables(path: Path, table: dict[str, Any], key: str) -> tuple[dict[str, Any], ...]:
    tables = table.get(key, [])
    listed = tables if isinstance(tables, list) else [tables]
    if not all(isinstance(item, dict) for item in listed):
        raise LoadError(f"{str(path)!r} is not a shape: {key} must be a table")
    return tuple(listed)


def hint(name: str) -> str:
    """Return the end of an error message on an unknown model name: a hint, or an empty string."""
    if name in shape_names():
        if find_shape(name).config:
            return f"; `--model configs/{name}` builds its shape with random weights"
        return f"; `attnviz params {name}` counts its shape"
    if re.fullmatch(r"L\d+H\d+", name):
        return f"; {name} is a head: attnviz head {name} shows its card"
    import difflib  # needed only for mistyped names

    close = difflib.get_close_matches(name.lower(), (*_OTHER_NAMES, *shape_names()), n=1)
    remark = "" if {*close} & {*_OTHER_NAMES} else " (a preset: as a model it has random weights)"
    return f"; did you mean {close[0]!r}?{remark}" if close else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as ``"; did you mean 'heads'?"``, or an empty string."""
    import difflib  # needed only for mistyped names

    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def configs_directory() -> Path:
    """Return the folder of model configurations, in the package or beside it in a checkout."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"
