"""The config.json of a checkpoint, without the checkpoint: directory, cache, network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.models.checkpoint_files import local_directory, read_config

__all__ = ["ConfigFile", "find_config_file"]


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
    fields = read_config(name, directory)
    return ConfigFile(name, directory / "config.json", commit, fields)
