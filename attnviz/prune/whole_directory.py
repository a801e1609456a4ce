"""A directory is written whole or not at all: under its name stands nothing until it is done."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnviz.errors import LoadError, UsageError

__all__ = ["check_new_directory", "whole_directory"]


def check_new_directory(path: Path) -> None:
    """Raise one line if ``path`` cannot become a new directory; nothing is created.

    UsageError where something is there, an empty directory aside; LoadError where the directory
    around it or the right to write there is missing.
    """
    shown = repr(str(path))
    try:
        if path.is_dir():
            if any(path.iterdir()):
                raise UsageError(f"{shown} is not empty: name a new directory, or empty it first")
        elif path.exists() or path.is_symlink():
            raise UsageError(f"{shown} is there and no directory: name a new one")
        parent = path.resolve().parent
        if not parent.is_dir():
            raise LoadError(f"cannot write {shown}: there is no directory {str(parent)!r}")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise LoadError(f"cannot write {shown}: the directory {str(parent)!r} is not writable")
    except (OSError, RuntimeError) as error:  # a name too long, a loop of links, no access
        raise _failure(path, error) from error


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A draft directory that becomes ``path`` when the block ends without an exception.

    Raises what ``check_new_directory`` raises, and LoadError where the system refuses on the way.
    """
    check_new_directory(path)
    final = path.resolve()
    draft = final.with_name(f".attnviz-{secrets.token_hex(8)}.part")
    try:
        draft.mkdir()  # not tempfile: its directories are private, this gets any new one's rights
        yield draft
        if final.is_dir():
            final.rmdir()
        os.replace(draft, final)
    except OSError as error:
        raise _failure(path, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _failure(path: Path, error: OSError | RuntimeError) -> LoadError:
    return LoadError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}")
