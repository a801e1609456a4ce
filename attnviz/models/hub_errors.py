"""What the hub's client can raise, said in one line to the person who asked for the model."""

from __future__ import annotations

from typing import Any

from huggingface_hub import constants
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
from attnviz.models.foreign import one_line
from attnviz.models.shapes import hint

__all__ = ["StrangeAnswerError", "contact_error", "transfer_error"]

_HttpError: Any = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
"""Base of the HTTP client's own errors: httpx in huggingface_hub 1, httpx2 in 2."""


class StrangeAnswerError(Exception):
    """A server's answer names a file as no plain name does."""


_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


def contact_error(error: Exception, name: str, revision: str | None) -> LoadError:
    """Why the hub did not hand over the first file of model ``name``."""
    match error:
        case HFValidationError():
            return LoadError(f"{name!r} is neither a directory nor a model id{hint(name)}")
        case StrangeAnswerError():
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


def transfer_error(error: Exception, name: str, file: str) -> LoadError:
    """Why a file of a model did not arrive whole; what arrived of it was thrown away."""
    if isinstance(error, (GatedRepoError, StrangeAnswerError)):
        return contact_error(error, name, None)
    reason = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
    return LoadError(
        f"the transfer of {file} of {name!r} failed ({one_line(reason or error)}); "
        f"run again to fetch what is missing"
    )
