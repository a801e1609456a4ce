"""Fetches a model's files from the hub, config first and weights last, with time limits.

A server must not choose where a file is written: the client makes names in its cache from two
headers without checking them.
"""

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
from typing import Any, TypeVar

from huggingface_hub import (
    HfApi,
    HfFileMetadata,
    close_session,
    constants,
    get_hf_file_metadata,
    get_session,
    hf_hub_download,
    hf_hub_url,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from attnviz.errors import LoadError, OfflineError
from attnviz.models.checkpoint_files import side_files, weight_files
from attnviz.models.shapes import hint
from attnviz.models.third_party import ErrorsAs, one_line, third_party

_PATIENCE = float(os.environ.get("HF_HUB_ETAG_TIMEOUT", "5"))
"""Seconds to wait for the first answer. The client alone would retry for more than half a minute,
and none of its time-outs covers the look-up of a name."""

_SMALL_FILE = 6.0 * constants.HF_HUB_DOWNLOAD_TIMEOUT
_SLOWEST = 100_000
"""The fewest bytes a second for a file other than weights, after the seconds of ``_SMALL_FILE``.
The client's time-out restarts at every byte, so it would wait for a slow server without end."""

_NAMING = ("ETag", "X-Linked-ETag", "X-Repo-Commit")
"""The headers from which the client makes names of files and directories."""

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

Progress = Callable[[str, int, int | None], None]
"""Called as ``progress(file, done, total)`` with bytes; total is None if unknown."""


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


def download(
    name: str, revision: str | None, allow_pickle: bool, with_code: bool, progress: Progress | None
) -> Path:
    """Download the needed files of a model into the local cache; return their directory.

    revision: branch, tag or commit. allow_pickle: True also fetches weights in pickles. with_code:
        True also downloads Python files. progress: called as ``progress(file, done, total)``.
    Raises LoadError if there is no such model, no access to it, or a transfer failed, OfflineError
    if the network does not answer.
    """
    directory = download_config(name, revision, progress)
    commit = directory.name

    def fetch(file: str, weights: bool = False) -> Path:
        here = directory / file
        return here if here.is_file() else _fetch(name, file, commit, progress, weights=weights)

    names = _listed(name, commit) or _found_by_trying(name, commit)
    # Weights come last: if they are in the cache, so are all other files.
    for file in side_files(names, with_code):
        fetch(file)
    for file in weight_files(name, names, fetch, allow_pickle):
        fetch(file, weights=True)
    return directory


def download_config(name: str, revision: str | None, progress: Progress | None = None) -> Path:
    """Download only a model's config.json; return its directory, which is named by the commit.

    name: the hub id. revision: branch, tag or commit; None for the newest.
    Raises LoadError if there is no such model or no access to it, OfflineError if the network does
    not answer.
    """
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
    """Return the local path of one file of a model; download it if it is not cached.

    about: its metadata, if already known. weights: True sets no time limit.
    """

    @_plain_names()
    def get() -> Path:
        bar = progress_bar(file, progress)
        return Path(hf_hub_download(name, file, revision=revision, tqdm_class=bar))

    with ErrorsAs(lambda error: _transfer_error(error, name, file)):
        about = about or _probe(name, file, revision)
        seconds = _SMALL_FILE + (about.size or 0) / _SLOWEST
        # Weights have no time limit, and run in this thread: Ctrl-C deletes what was fetched.
        path, tag = get() if weights else _within(seconds, get), about.etag or ""
    _check_place(name, file, path)
    _check_content(name, file, path, tag)
    return path


def _check_place(name: str, file: str, path: Path) -> None:
    """Raise LoadError if a downloaded file was stored outside the cache.

    The server may have sent the client another name than the first time. path: of the file.
    """
    found, home = path.resolve(), path.parents[file.count("/") + 2]
    places = (Path(constants.HF_HUB_CACHE), home, home / "blobs")
    if not any(found.is_relative_to(place.resolve()) for place in places):
        raise LoadError(
            f"{file} of {name!r} was put outside the cache, at {str(found)!r}: it is not used; "
            f"delete it, and use another HF_ENDPOINT than {constants.ENDPOINT}"
        )


def _check_content(name: str, file: str, path: Path, tag: str) -> None:
    """Raise LoadError, and delete the file, if its SHA-256 is not the hub's.

    tag: the SHA-256 as the hub's answer states it; nothing is checked if it is no SHA-256.
    """
    if _SHA256.fullmatch(tag) is None:
        return
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != tag:
        for damaged in (path.resolve(), path):
            damaged.unlink(missing_ok=True)
        raise LoadError(
            f"{file} of {name!r} arrived damaged: expected the SHA-256 {tag}, got {found}; "
            f"run again to fetch it anew"
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
    return names if all(isinstance(one, str) for one in names) else set()


def _found_by_trying(name: str, commit: str) -> set[str]:
    found: set[str] = set()
    for file in _USUAL_FILES:
        with suppress(EntryNotFoundError):
            with ErrorsAs(partial(_error_of_trying, name, file)):
                _probe(name, file, commit)
            found.add(file)
    return found


def _error_of_trying(name: str, file: str, error: Exception) -> Exception:
    return error if isinstance(error, EntryNotFoundError) else _transfer_error(error, name, file)


@_plain_names()
def _probe(name: str, file: str, revision: str | None) -> HfFileMetadata:
    """Return the metadata of a file on the server, after a single attempt.

    The client itself would retry many times. name: the hub id. file: the file's name.
    """
    url = hf_hub_url(name, file, revision=revision)
    return _within(2 * _PATIENCE, lambda: get_hf_file_metadata(url, timeout=_PATIENCE))


def _within(seconds: float, call: Callable[[], _Answer]) -> _Answer:
    """Return the result of ``call``, or raise TimeoutError after this many seconds.

    The call runs in a daemon thread, which does not keep the process from ending.
    """
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
    """Return a silent replacement of tqdm for the transfer of one file.

    progress: called as ``progress(file, done, total)`` in bytes; None for no reports.
    """
    return type("Bar", (_Bar,), {"report": progress and partial(progress, file)})


class _Bar:
    """A silent replacement of tqdm's progress bar for huggingface_hub.

    report: called with the bytes downloaded and the total; None for no progress reports.
    """

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

    def update_transfer(self, step: int) -> None:
        """Ignore the number of bytes on the wire."""

    def set_postfix_str(self, *_: object, **__: object) -> None:
        """Ignore the text on the download's speed that the hub's client would show."""

    set_transfer_postfix_str = set_postfix_str

    def refresh(self) -> None:
        """Do nothing, since nothing is drawn."""

    def close(self) -> None:
        """Do nothing, since nothing is open."""

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# What went wrong -----------------------------------------------------------------------------

_HttpError: Any = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
"""Base of the HTTP client's own errors: httpx in huggingface_hub 1, httpx2 in 2."""


class _StrangeAnswerError(Exception):
    """Raised if a server's answer would give a file an unsafe name."""


_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


def contact_error(error: Exception, name: str, revision: str | None) -> LoadError:
    """Return the error to raise if the first file of a model could not be downloaded.

    error: its cause. name, revision: of the model.
    """
    match error:
        case HFValidationError():
            return LoadError(f"{name!r} is neither a directory nor a model id{hint(name)}")
        case _StrangeAnswerError():
            return LoadError(
                f"{name!r} cannot be fetched: {constants.ENDPOINT} sends {error}, which is no "
                f"plain name and could place files outside the cache; use another HF_ENDPOINT"
            )
        case GatedRepoError():
            return LoadError(
                f"{name!r} is gated: accept its terms at {constants.ENDPOINT}/{name}, "
                f"then {_LOG_IN}"
            )
        case RepositoryNotFoundError():
            return _not_found(name)
        case RevisionNotFoundError():
            return LoadError(f"{name!r} has no revision {revision!r}: give a branch, tag or commit")
        case LocalEntryNotFoundError() | FileMetadataError():
            return _unreachable(name, error.__cause__ or error)
        case EntryNotFoundError():
            return LoadError(f"{name!r} has no config.json, so it is no transformers checkpoint")
        case HfHubHTTPError():
            return _refusal(error, name)
        case OfflineModeIsEnabled() | TimeoutError() | ConnectionError() | _HttpError():
            return _unreachable(name, error)
    return LoadError(f"{name!r} cannot be fetched: {one_line(error)}")


def _not_found(name: str) -> LoadError:
    return LoadError(
        f"no model {name!r}: it is neither a directory here nor on {constants.ENDPOINT}, "
        f"unless it is private ({_LOG_IN}){hint(name)}"
    )


def _refusal(error: HfHubHTTPError, name: str) -> LoadError:
    status = error.response.status_code
    if status in (401, 404):
        return _not_found(name)
    if status == 403:
        return LoadError(f"{constants.ENDPOINT} refuses access to {name!r} (HTTP 403): {_LOG_IN}")
    if status == 429 or status >= 500:
        return OfflineError(
            f"{name!r} is not whole in the local cache, and {constants.ENDPOINT} answers "
            f"HTTP {status}: try again later{hint(name)}"
        )
    return LoadError(f"{name!r} cannot be fetched: {one_line(error)}")


def _unreachable(name: str, error: BaseException) -> OfflineError:
    return OfflineError(
        f"{name!r} is neither a directory nor whole in the local cache, and {constants.ENDPOINT} "
        f"cannot be reached ({one_line(error)}){hint(name)}"
    )


def _transfer_error(error: Exception, name: str, file: str) -> LoadError:
    """Return the error to raise if a file of a model was not downloaded completely."""
    if isinstance(error, (GatedRepoError, _StrangeAnswerError)):
        return contact_error(error, name, None)
    reason = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
    return LoadError(
        f"the transfer of {file} of {name!r} failed ({one_line(reason or error)}); "
        f"run again to fetch what is missing"
    )
