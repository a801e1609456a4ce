"""Finds a checkpoint's files: in a directory, else in the local cache, else on the network."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from huggingface_hub import (
    HfApi,
    HfFileMetadata,
    close_session,
    constants,
    get_hf_file_metadata,
    get_session,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub import errors as failed

from attnviz.errors import LoadError, OfflineError, UsageError
from attnviz.models import checkpoint_files as files
from attnviz.models.shapes import hint
from attnviz.models.third_party import ErrorsAs, one_line, quietly, third_party
from attnviz.models.work import LoadOptions, Progress

if TYPE_CHECKING:  # needs NumPy
    from attnviz.models.adapters import LoraAdapter


class Snapshot(NamedTuple):
    """A checkpoint's directory on this machine, with its commit, or None for a plain directory.

    adapter: a LoRA adapter that changes its weights, in its own directory or in this one.
    """

    directory: Path
    revision: str | None
    adapter: LoraAdapter | None = None


# Valid names of a branch or tag, roughly as in git: the name becomes a path in the cache.
_REVISION = re.compile(r"(?!.*\.\.)[^\s/~^:?*\[\\\x00-\x1f\x7f][^\s~^:?*\[\\\x00-\x1f\x7f]*")
_NOT_CACHED = LoadError("it is not in the local cache")


class _TokenizerError(LoadError):
    """Raised if a cached checkpoint lacks only a tokenizer's vocabulary."""


def find_checkpoint(name: str, options: LoadOptions) -> Snapshot:
    """Return the directory with the files of a checkpoint; download them if not cached.

    name: a directory or a hub id; for an adapter, the result is its base's directory. options: of
    these revision, offline, allow_pickle and progress; trust_remote_code downloads Python files.
    Raises LoadError if there is no such model, no access to it, or a transfer failed; OfflineError
    if it is not in the cache, and the network is not to be used or does not answer; UsageError for
    a revision of a directory, or an invalid one.
    """

    def find(name: str, revision: str | None) -> Snapshot:
        if (directory := files.local_directory(name, revision)) is not None:
            return Snapshot(directory, None)
        cached = _cached(name, revision)
        lack = _reason_unusable(name, cached, options.allow_pickle)
        if cached is not None and lack is None:
            return cached
        if options.offline or constants.HF_HUB_OFFLINE:
            return _cached_without_tokenizer(cached, lack, _forbidden(name, lack))
        try:
            with quietly():
                directory = _download(name, revision, options)
            return Snapshot(directory, directory.name)
        except OfflineError as unreachable:
            return _cached_without_tokenizer(cached, lack, unreachable)

    from attnviz.models.adapters import with_base  # needs NumPy, a config alone does not

    return Snapshot(*with_base(name, options.revision, find))


def find_config(name: str, revision: str | None, offline: bool) -> Snapshot:
    """Return the directory of a hub id's config.json, and what quantises it beside that."""
    cached = _cached(name, revision)
    if cached is not None:
        return cached
    if offline or constants.HF_HUB_OFFLINE:
        raise _forbidden(name, _NOT_CACHED)
    with quietly():
        directory = _download_config(name, revision)
        if b'"quant' not in (directory / "config.json").read_bytes():
            for file in files.QUANTISED.keys() & _listed(name, directory.name):
                _fetch(name, file, directory.name, None)
    return Snapshot(directory, directory.name)


def _cached(name: str, revision: str | None) -> Snapshot | None:
    if revision is not None and _REVISION.fullmatch(revision) is None:
        raise UsageError(f"--revision {revision!r} is not a branch, tag or commit: give one")
    try:
        needed = ("config.json", files.ADAPTER)
        paths = [try_to_load_from_cache(name, file, revision=revision) for file in needed]
    except failed.HFValidationError as error:
        raise contact_error(error, name, revision) from error
    directory = next((Path(path).parent for path in paths if isinstance(path, str)), None)
    return None if directory is None else Snapshot(directory, directory.name)


def _reason_unusable(name: str, cached: Snapshot | None, allow_pickle: bool) -> LoadError | None:
    """Return the error that makes a cached checkpoint unusable, or None if it can be used."""
    if cached is None:
        return _NOT_CACHED
    names = files.file_names(cached.directory)
    if "config.json" not in names:
        return None  # an adapter, whose base is looked for then
    try:
        weights = files.weight_files(name, names, cached.directory.joinpath, allow_pickle)
        files.check_weights(name, cached.directory, weights)
    except LoadError as error:
        return error
    # A library that loads only the model leaves a snapshot without a tokenizer.
    return None if files.has_vocabulary(names) else _TokenizerError("it has no tokenizer")


def _cached_without_tokenizer(
    cached: Snapshot | None, lack: LoadError | None, unreachable: OfflineError
) -> Snapshot:
    """Return a cached checkpoint that lacks only a tokenizer; raise an error for any other."""
    if isinstance(lack, files.PickleError):
        raise lack
    if cached is not None and isinstance(lack, _TokenizerError):
        return cached  # some tokenizers need no file
    raise unreachable


def _forbidden(name: str, lack: LoadError | None) -> OfflineError:
    return OfflineError(
        f"{name!r} cannot be used offline: {lack}; run once without --offline, or unset "
        f"HF_HUB_OFFLINE{hint(name)}"
    )


# Downloading ------------------------------------------------------------------------------------

_PATIENCE = float(os.environ.get("HF_HUB_ETAG_TIMEOUT", "5"))
"""Seconds to wait for the first answer. The client alone would retry for more than half a minute,
and none of its time-outs covers the look-up of a name."""

_SMALL_FILE = 6.0 * constants.HF_HUB_DOWNLOAD_TIMEOUT
_SLOWEST = 100_000
"""The fewest bytes a second for a file other than weights, after the seconds of ``_SMALL_FILE``.
The client's time-out restarts at every byte, so it would wait for a slow server without end."""

# The headers from which the client makes names of files and directories.
_NAMING = ("ETag", "X-Linked-ETag", "X-Repo-Commit")
_PLAIN = re.compile(r'(?:W/)?"?[0-9A-Za-z_-](?:[0-9A-Za-z_-]|\.(?!\.)){0,127}"?')
_SHA256 = re.compile(r"[0-9a-f]{64}")

_USUAL_FILES = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt"),
    *("spiece.model", "sentencepiece.bpe.model", "chat_template.jinja"),
)
"""The files to try if a server does not list its files, as plain mirrors do not."""

_Answer = TypeVar("_Answer")


@contextmanager
def _plain_names() -> Iterator[None]:
    """Refuse answers of a server, inside this context, that would give a file an unsafe name."""

    session = get_session()
    before = session.event_hooks
    session.event_hooks = {**before, "response": [*before["response"], _refuse_paths]}
    try:
        yield
    finally:
        session.event_hooks = before


def _refuse_paths(answer: Any) -> None:
    for header in _NAMING if answer.request.method == "HEAD" else ():
        text = answer.headers.get(header)
        if text is not None and _PLAIN.fullmatch(text) is None:
            raise _StrangeAnswerError(f"the {header} {text[:80]!r}")


def _download(name: str, revision: str | None, options: LoadOptions) -> Path:
    """Download what a model needs; return the directory. Errors as ``find_checkpoint``."""
    progress = options.progress
    directory = _download_config(name, revision, progress)
    commit = directory.name

    def fetch(file: str, weights: bool = False) -> Path:
        here = directory / file
        return here if here.is_file() else _fetch(name, file, commit, progress, weights=weights)

    names = _listed(name, commit) or _tried(name, commit)
    # Weights come last: if they are in the cache, so are all other files.
    for file in files.side_files(names, with_code=options.trust_remote_code):
        fetch(file)
    for file in files.weight_files(name, names, fetch, options.allow_pickle):
        fetch(file, weights=True)
    return directory


def _download_config(name: str, revision: str | None, progress: Progress | None = None) -> Path:
    """Download a config.json alone; return its directory, of the commit."""
    with ErrorsAs(lambda error: contact_error(error, name, revision)):
        first = _probe(name, "config.json", revision)
    if first.commit_hash is None:
        raise contact_error(TimeoutError("the answer is not a model hub's"), name, revision)
    # The cache stores it under the name of its branch.
    return _fetch(name, "config.json", revision, progress, about=first).parent


def _fetch(
    name: str,
    file: str,
    revision: str | None,
    progress: Progress | None,
    *,
    about: HfFileMetadata | None = None,
    weights: bool = False,
) -> Path:
    """Return the local path of a file; download it if it is not cached. weights: no time limit."""

    @_plain_names()
    def get() -> Path:
        bar = progress_bar(file, progress)
        return Path(hf_hub_download(name, file, revision=revision, tqdm_class=bar))

    with ErrorsAs(lambda error: _transfer_error(error, name, file)):
        about = about or _probe(name, file, revision)
        seconds = _SMALL_FILE + (about.size or 0) / _SLOWEST
        # Weights have no time limit, and run in this thread: Ctrl-C deletes what was fetched.
        path, tag = get() if weights else _within(seconds, get), about.etag or ""
    _check_stored(name, file, path, tag)
    return path


def _check_stored(name: str, file: str, path: Path, tag: str) -> None:
    """Raise LoadError for a file outside the cache, or damaged; a damaged one is deleted."""
    stored, home = path.resolve(), path.parents[file.count("/") + 2]
    folders = (Path(constants.HF_HUB_CACHE), home, home / "blobs")
    if not any(stored.is_relative_to(folder.resolve()) for folder in folders):
        raise LoadError(
            f"{file} of {name!r} was put outside the cache, at {str(stored)!r}: it is not used; "
            f"delete it, and use another HF_ENDPOINT than {constants.ENDPOINT}"
        )
    if _SHA256.fullmatch(tag) is None:
        return
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != tag:
        for damaged in (stored, path):
            damaged.unlink(missing_ok=True)
        raise LoadError(
            f"{file} of {name!r} arrived damaged: expected the SHA-256 {tag}, got {digest}; "
            f"run again to fetch it again"
        )


def _listed(name: str, commit: str) -> set[str]:
    try:
        with third_party(f"the list of the files of {name!r} cannot be read"):
            info = _within(
                2 * _PATIENCE, lambda: HfApi().model_info(name, revision=commit, timeout=_PATIENCE)
            )
    except LoadError:
        return set()  # no readable list: the files are tried one by one
    names = {sibling.rfilename for sibling in info.siblings or ()}
    return names if all(isinstance(name, str) for name in names) else set()


def _tried(name: str, commit: str) -> set[str]:
    """Return the usual files that a server has: each is asked for."""

    def is_there(file: str) -> bool:
        def translated(error: Exception) -> Exception:
            missing = isinstance(error, failed.EntryNotFoundError)
            return error if missing else _transfer_error(error, name, file)

        with suppress(failed.EntryNotFoundError), ErrorsAs(translated):
            _probe(name, file, commit)
            return True
        return False

    return set(filter(is_there, _USUAL_FILES))


@_plain_names()
def _probe(name: str, file: str, revision: str | None) -> HfFileMetadata:
    """Return the metadata of a file on the server after one attempt; the client would retry."""
    url = hf_hub_url(name, file, revision=revision)
    return _within(2 * _PATIENCE, lambda: get_hf_file_metadata(url, timeout=_PATIENCE))


def _within(seconds: float, call: Callable[[], _Answer]) -> _Answer:
    """Return the result of ``call`` in a daemon thread; TimeoutError after so many seconds."""
    answer: Future[_Answer] = Future()

    def run() -> None:
        with ErrorsAs(answer.set_exception):  # raised again in the waiting thread
            answer.set_result(call())

    threading.Thread(target=run, daemon=True).start()
    if not wait([answer], timeout=seconds).done:
        close_session()  # this ends a transfer, which then deletes what it fetched
        wait([answer], timeout=1)
        raise TimeoutError(f"no answer in {seconds:g} s")
    return answer.result()


# Progress ------------------------------------------------------------------------------------

_RESTARTS = 2


def progress_bar(file: str, progress: Progress | None) -> Any:
    """Return a silent replacement of tqdm for the transfer of one file."""
    return type("Bar", (_Bar,), {"report": progress and partial(progress, file)})


class _Bar:
    """A silent replacement of tqdm's bar; ``report``, if any, gets the bytes done and the total."""

    report: Any = None

    def __init__(self, *, total: int | None = None, initial: int = 0, **_: object) -> None:
        self.total = total
        self.n = initial
        self._restarts = 0
        self._report()

    def _report(self) -> None:
        if self.report is not None:
            self.report(self.n, self.total)

    def update(self, step: float | None = 1) -> None:
        """Count ``step`` bytes; raise ConnectionAbortedError if the transfer restarts too often.

        The client resets its count of attempts at every byte, so that a server that breaks off and
        cannot resume would keep it busy for ever.
        """
        step = int(step or 0)
        if step < 0 or (self.total is not None and self.n + step > self.total):
            self._restarts += 1
            if self._restarts > _RESTARTS:
                raise ConnectionAbortedError("it broke off again and again")
        self.n = self.n + step if step < 0 else min(self.n + step, self.total or self.n + step)
        self._report()

    def _ignore(self, *_: object, **__: object) -> None:
        """Do nothing, since nothing is drawn."""

    update_transfer = set_postfix_str = set_transfer_postfix_str = refresh = close = _ignore

    def __enter__(self) -> _Bar:
        return self

    __exit__ = _ignore


# What went wrong -----------------------------------------------------------------------------

_HttpError: Any = next(
    base for base in failed.HfHubHTTPError.__mro__ if base.__name__ == "HTTPError"
)
"""Base of the HTTP client's own errors: httpx in huggingface_hub 1, httpx2 in 2."""


class _StrangeAnswerError(Exception):
    """Raised if a server's answer would give a file an unsafe name."""


_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


def contact_error(error: Exception, name: str, revision: str | None) -> LoadError:
    """Return the error to raise if the first file of a model could not be downloaded."""
    match error:
        case failed.HFValidationError():
            return LoadError(f"{name!r} is neither a directory nor a model id{hint(name)}")
        case _StrangeAnswerError():
            return LoadError(
                f"{name!r} cannot be fetched: {constants.ENDPOINT} sends {error}, which is no "
                f"plain name and could place files outside the cache; use another HF_ENDPOINT"
            )
        case failed.GatedRepoError():
            return LoadError(
                f"{name!r} is gated: accept its terms at {constants.ENDPOINT}/{name}, "
                f"then {_LOG_IN}"
            )
        case failed.RepositoryNotFoundError():
            return _not_found(name)
        case failed.RevisionNotFoundError():
            return LoadError(f"{name!r} has no revision {revision!r}: give a branch, tag or commit")
        case failed.LocalEntryNotFoundError() | failed.FileMetadataError():
            return _unreachable(name, error.__cause__ or error)
        case failed.EntryNotFoundError():
            return LoadError(f"{name!r} has no config.json, so it is not a transformers checkpoint")
        case failed.HfHubHTTPError():
            status = error.response.status_code
            if status in (401, 404):
                return _not_found(name)
            if status == 403:
                return LoadError(
                    f"{constants.ENDPOINT} refuses access to {name!r} (HTTP 403): {_LOG_IN}"
                )
            if status == 429 or status >= 500:
                return OfflineError(
                    f"{name!r} is not whole in the local cache, and {constants.ENDPOINT} answers "
                    f"HTTP {status}: try again later{hint(name)}"
                )
        case failed.OfflineModeIsEnabled() | TimeoutError() | ConnectionError() | _HttpError():
            return _unreachable(name, error)
    return LoadError(f"{name!r} cannot be fetched: {one_line(error)}")


def _not_found(name: str) -> LoadError:
    return LoadError(
        f"no model {name!r}: it is neither a directory here nor on {constants.ENDPOINT}, "
        f"unless it is private ({_LOG_IN}){hint(name)}"
    )


def _unreachable(name: str, error: BaseException) -> OfflineError:
    return OfflineError(
        f"{name!r} is neither a directory nor whole in the local cache, and {constants.ENDPOINT} "
        f"cannot be reached ({one_line(error)}){hint(name)}"
    )


def _transfer_error(error: Exception, name: str, file: str) -> LoadError:
    """Return the error to raise if a file of a model was not downloaded completely."""
    if isinstance(error, (failed.GatedRepoError, _StrangeAnswerError)):
        return contact_error(error, name, None)
    reason = error.__cause__ if isinstance(error, failed.LocalEntryNotFoundError) else None
    return LoadError(
        f"the transfer of {file} of {name!r} failed ({one_line(reason or error)}); "
        f"run again to fetch what is missing"
    )
