"""Keeps two processes from writing the same file, or into the same directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnviz.draw.labels import visible
from attnviz.errors import UsageError

__all__ = ["held", "lock"]


def lock(descriptor: int, name: str) -> None:
    """Keep other runs off an open file while this process has it open, where the system can.

    name: as it is shown. UsageError where another run has it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"another run is writing {name}: wait for it, or name another") from error


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Keep other runs out of a directory that is there; UsageError where one is in it."""
    if os.name == "nt":  # opens no directories
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        lock(descriptor, visible(repr(str(directory))))
        yield
    finally:
        os.close(descriptor)
