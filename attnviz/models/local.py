"""Whether a model's name is a directory of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from attnviz.errors import LoadError, UsageError

__all__ = ["local_directory"]


def local_directory(name: str, revision: str | None) -> Path | None:
    """The directory that ``name`` is, or None.

    Raises:
        LoadError: it may not be read.
        UsageError: a revision of a directory.
    """
    path = os.path.expanduser(name)
    if not os.path.isdir(path):
        return None
    if revision is not None:
        raise UsageError(f"{name!r} is a directory and has no revision {revision!r}")
    if not os.access(path, os.R_OK | os.X_OK):
        raise LoadError(f"the directory {name!r} may not be read")
    return Path(path)
