"""Finds a checkpoint's files: in a directory, else in the local cache, else on the network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from attnviz.errors import LoadError, OfflineError, UsageError
from attnviz.models.checkpoint_files import (
    ADAPTER,
    PickleError,
    check_weights,
    file_names,
    has_vocabulary,
    local_directory,
    weight_files,
)
from attnviz.models.download import Progress, contact_error, download, download_config
from attnviz.models.shapes import hint
from attnviz.models.third_party import quietly

if TYPE_CHECKING:  # needs NumPy
    from attnviz.models.adapters import LoraAdapter


class Snapshot(NamedTuple):
    """A checkpoint's directory on this machine, with its commit.

    directory: where its files are.
    revision: the commit they belong to, or None for a plain directory.
    adapter: a LoRA adapter that changes its weights, in its own directory or in this one.
    """

    directory: Path
    revision: str | None
    adapter: LoraAdapter | None = None


_REVISION = re.compile(r"(?!.*\.\.)[^\s/~^:?*\[\\\x00-\x1f\x7f][^\s~^:?*\[\\\x00-\x1f\x7f]*")
"""Valid names of a branch or tag, roughly as in git: the name becomes a path in the cache."""

_NOT_CACHED = LoadError("it is not in the local cache")


class _TokenizerError(LoadError):
    """Raised if a cached checkpoint lacks only a tokenizer's vocabulary."""


def find_checkpoint(
    name: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    allow_pickle: bool = False,
    with_code: bool = False,
    progress: Progress | None = None,
) -> Snapshot:
    """Return the directory with the files of a checkpoint; download them if not cached.

    name: a directory or a hub id; of an adapter's, the directory is that of its base.
    revision: branch, tag or commit of a hub id. offline: True uses the cache only.
    allow_pickle: True accepts parameters in pickles. with_code: True downloads Python files too.
    progress: called as ``progress(file, done, total)`` in bytes during a download.
    Raises LoadError if there is no such model, no access to it, or a transfer failed; OfflineError
    if it is not in the cache, and the network is not to be used or does not answer; UsageError for
    a revision of a directory, or an invalid one.
    """

    def find(name: str, revision: str | None) -> Snapshot:
        if (directory := local_directory(name, revision)) is not None:
            return Snapshot(directory, None)
        cached = _cached(name, revision)
        lack = _reason_unusable(name, cached, allow_pickle)
        if cached is not None and lack is None:
            return cached
        if offline or constants.HF_HUB_OFFLINE:
            return _cached_without_tokenizer(cached, lack, _forbidden(name, lack))
        try:
            with quietly():
                directory = download(name, revision, allow_pickle, with_code, progress)
            return Snapshot(directory, directory.name)
        except OfflineError as unreachable:
            return _cached_without_tokenizer(cached, lack, unreachable)

    from attnviz.models.adapters import with_base  # needs NumPy, a config alone does not

    return Snapshot(*with_base(name, revision, find))


def find_config(name: str, *, revision: str | None = None, offline: bool = False) -> Snapshot:
    """Return the directory with the config.json of a hub id; download no other file.

    Raises LoadError if there is no such model, no access to it, or a transfer failed; OfflineError
    if it is not in the cache, and the network is not to be used or does not answer; UsageError for
    an invalid revision.
    """
    cached = _cached(name, revision)
    if cached is not None:
        return cached
    if offline or constants.HF_HUB_OFFLINE:
        raise _forbidden(name, _NOT_CACHED)
    with quietly():
        directory = download_config(name, revision)
    return Snapshot(directory, directory.name)


def _cached(name: str, revision: str | None) -> Snapshot | None:
    if revision is not None and _REVISION.fullmatch(revision) is None:
        raise UsageError(f"--revision {revision!r} is no branch, tag or commit: give one")
    try:
        files = ("config.json", ADAPTER)
        each = [try_to_load_from_cache(name, file, revision=revision) for file in files]
    except HFValidationError as error:
        raise contact_error(error, name, revision) from error
    directory = next((Path(file).parent for file in each if isinstance(file, str)), None)
    return None if directory is None else Snapshot(directory, directory.name)


def _reason_unusable(name: str, cached: Snapshot | None, allow_pickle: bool) -> LoadError | None:
    """Return the error that makes a cached checkpoint unusable, or None if it can be used.

    cached: None if there is none. allow_pickle: True accepts parameters in pickles.
    """
    if cached is None:
        return _NOT_CACHED
    names = file_names(cached.directory)
    if "config.json" not in names:
        return None  # an adapter, whose base is looked for then
    try:
        weights = weight_files(name, names, cached.directory.joinpath, allow_pickle)
        check_weights(name, cached.directory, weights)
    except LoadError as error:
        return error
    # A library that loads only the model leaves a snapshot without a tokenizer.
    return None if has_vocabulary(names) else _TokenizerError("it has no tokenizer")


def _cached_without_tokenizer(
    cached: Snapshot | None, lack: LoadError | None, unreachable: OfflineError
) -> Snapshot:
    """Return a cached checkpoint that lacks only a tokenizer; raise an error for any other.

    lack: why it cannot be used, raised if pickles were not allowed. unreachable: raised otherwise.
    """
    if isinstance(lack, PickleError):
        raise lack
    if cached is not None and isinstance(lack, _TokenizerError):
        return cached  # some tokenizers need no file
    raise unreachable


def _forbidden(name: str, lack: LoadError | None) -> OfflineError:
    return OfflineError(
        f"{name!r} cannot be used offline: {lack}; run once without --offline, or unset "
        f"HF_HUB_OFFLINE{hint(name)}"
    )
