"""The directory of a run: what may begin there, what may go on, what is swept away."""

from __future__ import annotations

import os
from pathlib import Path

from attnviz.errors import LoadError, UsageError
from attnviz.train.state import STATE_FILE

__all__ = ["CARD_FILE", "LOG_FILE", "check_place", "sweep"]

CARD_FILE = "README.md"
"""The model card; written last, so that a directory with one holds a finished model."""

LOG_FILE = "log.csv"
"""The curve of a run."""

_PARTS = (".attnviz-*.part", ".*.tmp")
"""Names of what a killed process may leave half written."""


def check_place(directory: Path, resume: bool) -> None:
    """Raise one line if a run cannot begin in ``directory``, or go on there; nothing is created.

    UsageError where something is there that would be lost, or where a run is finished; LoadError
    where there is nothing to resume, or no right to write.
    """
    shown = repr(str(directory))
    try:
        if directory.exists() and not directory.is_dir():
            raise UsageError(f"{shown} is there and no directory: name another --out")
        if directory.is_symlink() and not directory.exists():
            raise UsageError(f"{shown} is a link to nothing: name another --out")
        directory.resolve()
        found = list(directory.iterdir()) if directory.is_dir() else []
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads back to itself
        why = getattr(error, "strerror", None) or error
        raise LoadError(f"cannot read {shown}: {why}") from error
    there = {path.name for path in found if not any(map(path.match, _PARTS))}
    if resume:
        _check_resumed(shown, there)
    elif STATE_FILE in there:
        raise UsageError(
            f"{shown} holds a run that is not finished: --resume goes on with it, another --out "
            "begins a new one"
        )
    elif there:
        what = "a trained model" if LOG_FILE in there else "files"
        raise UsageError(f"{shown} holds {what} already: name a new --out, nothing is overwritten")
    _check_writable(directory)


def sweep(directory: Path) -> None:
    """Remove what a killed process left half written."""
    for pattern in _PARTS:
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)


def _check_resumed(shown: str, there: set[str]) -> None:
    if STATE_FILE in there:
        return
    if LOG_FILE in there and CARD_FILE in there:
        raise UsageError(
            f"the run in {shown} is finished, nothing is left to resume: attnviz heads --model "
            f"{shown} shows the model, another --out trains a new one"
        )
    raise LoadError(
        f"nothing to resume: {shown} holds no {STATE_FILE}; leave out --resume to begin"
    )


def _check_writable(directory: Path) -> None:
    """The nearest directory that exists must take new files."""
    nearest = directory.resolve()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise LoadError(
            f"cannot write {str(directory)!r}: {str(nearest)!r} is no directory that takes files"
        )
