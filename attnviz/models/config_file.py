"""The config.json of a checkpoint, without the checkpoint: directory, cache, network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.errors import LoadError
from attnviz.models.checkpoint_files import read_json
from attnviz.models.local import local_directory

__all__ = ["ConfigFile", "find_config_file"]

_FLOATS = ("Infinity", "-Infinity", "NaN")


@dataclass(frozen=True)
class ConfigFile:
    """A config as it was found.

    name: how it was asked for.
    path: where it lies.
    revision: the commit it belongs to, or None for a plain directory.
    fields: what it says.
    """

    name: str
    path: Path
    revision: str | None
    fields: dict[str, Any]


def find_config_file(
    name: str, *, revision: str | None = None, offline: bool = False
) -> ConfigFile:
    """The config of a directory or a hub id; no weights are fetched.

    Raises:
        LoadError: no such model, no access to it, or no config that can be read.
        OfflineError: not in the cache, and the network is not to be used or does not answer.
        UsageError: a revision of a directory.
    """
    directory = local_directory(name, revision)
    commit = None
    if directory is None:
        from attnviz.models.hub import find_config  # its client takes longer than all counting

        snapshot = find_config(name, revision=revision, offline=offline)
        directory, commit = snapshot.directory, snapshot.revision
    path = directory / "config.json"
    if not path.is_file():
        raise LoadError(f"{name!r} is no checkpoint: the directory has no config.json")
    fields = _plain(read_json(path))
    kind, classes = fields.get("model_type", ""), fields.get("architectures") or []
    if not isinstance(kind, str):
        raise LoadError(f"the config of {name!r} has model_type = {kind!r}: expected one name")
    if not (isinstance(classes, list) and all(isinstance(item, str) for item in classes)):
        raise LoadError(
            f"the config of {name!r} has architectures = {classes!r}: expected a list of names"
        )
    return ConfigFile(name, path, commit, fields)


def _plain(value: Any) -> Any:
    """A value in which each float that JSON lacks is one, as transformers writes it."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__float__"} and value["__float__"] in _FLOATS:
        return float(value["__float__"])
    return {key: _plain(item) for key, item in value.items()}
