"""Fetches a model's files from the hub, config first and weights last, and never waits for long."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TypeVar

from huggingface_hub import (
    HfApi,
    HfFileMetadata,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
)
from huggingface_hub.errors import EntryNotFoundError

from attnviz.models.checkpoint_files import side_files, weight_files
from attnviz.models.hub_errors import HttpError, contact_error, transfer_error
from attnviz.models.transfer import Progress, progress_bar

__all__ = ["download", "download_config"]

_PATIENCE = float(os.environ.get("HF_HUB_ETAG_TIMEOUT", "5"))
"""Seconds for the first answer. The client alone would retry for half a minute and more, and no
time-out of its own covers the look-up of a name."""

_USUAL_FILES = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt"),
    *("spiece.model", "sentencepiece.bpe.model"),
)
"""What is tried where a server offers files but no list of them, as plain mirrors do."""

_Answer = TypeVar("_Answer")


def download(
    name: str,
    revision: str | None,
    allow_pickle: bool,
    with_code: bool,
    progress: Progress | None,
) -> Path:
    """Fetch what is needed of a model into the local cache; the directory of its files.

    Raises:
        LoadError: no such model, no access to it, or a transfer that failed.
        OfflineError: the network does not answer.
    """
    directory = download_config(name, revision, progress)
    commit = directory.name

    def fetch(file: str) -> Path:
        return _fetch(name, file, commit, progress)

    names = _listed(name, commit) or _tried(name, commit)
    # Weights come last: where they are in the cache, the rest is too.
    for file in side_files(names, with_code):
        fetch(file)
    for file in weight_files(name, names, fetch, allow_pickle):
        fetch(file)
    return directory


def download_config(name: str, revision: str | None, progress: Progress | None = None) -> Path:
    """Fetch a model's config.json alone into the local cache; its directory, named by the commit.

    Raises:
        LoadError, OfflineError: as ``download``.
    """
    try:
        first = _probe(name, "config.json", revision)
    except Exception as error:
        raise contact_error(error, name, revision) from error
    if first.commit_hash is None:
        raise contact_error(TimeoutError("the answer is not a model hub's"), name, revision)
    # By its branch, which the cache notes down; it was asked for just now.
    return _fetch(name, "config.json", revision, progress, asked=True).parent


def _fetch(
    name: str, file: str, revision: str | None, progress: Progress | None, *, asked: bool = False
) -> Path:
    try:
        if not asked:
            _probe(name, file, revision)
        return Path(
            hf_hub_download(name, file, revision=revision, tqdm_class=progress_bar(file, progress))
        )
    except Exception as error:
        raise transfer_error(error, name, file) from error


def _listed(name: str, commit: str) -> set[str]:
    try:
        info = _within(
            2 * _PATIENCE,
            lambda: HfApi().model_info(name, revision=commit, timeout=_PATIENCE),
        )
    except (HttpError, OSError, ValueError, KeyError, TypeError):
        return set()  # no list, or none that can be read: the files are tried one by one
    return {sibling.rfilename for sibling in info.siblings or ()}


def _tried(name: str, commit: str) -> set[str]:
    found: set[str] = set()
    for file in _USUAL_FILES:
        try:
            _probe(name, file, commit)
        except EntryNotFoundError:
            continue
        except Exception as error:
            raise transfer_error(error, name, file) from error
        found.add(file)
    return found


def _probe(name: str, file: str, revision: str | None) -> HfFileMetadata:
    """Ask for a file's metadata once, before the client would ask again and again."""
    url = hf_hub_url(name, file, revision=revision)
    return _within(2 * _PATIENCE, lambda: get_hf_file_metadata(url, timeout=_PATIENCE))


def _within(seconds: float, call: Callable[[], _Answer]) -> _Answer:
    """The result of ``call``, or TimeoutError; a call that hangs keeps no process from ending."""
    answer: Future[_Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([answer], timeout=seconds).done:
        raise TimeoutError(f"no answer in {seconds:g} s")
    return answer.result()
