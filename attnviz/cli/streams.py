"""The standard streams as they may come: closed, unable to carry a character, or no longer read."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from attnviz.errors import LoadError

__all__ = ["discard_output", "printing", "steady_streams"]


def steady_streams() -> None:
    """Give closed streams a sink, and let both escape the characters that they cannot carry."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, as in ``>&-``
            sink = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(sink, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Drop what standard output still holds, so that the interpreter's last flush succeeds."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)


@contextmanager
def printing() -> Iterator[None]:
    """What is printed inside reaches standard output, or one line says why not.

    Raises LoadError where the system refuses; BrokenPipeError, where the reader is gone, passes.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        raise LoadError(f"cannot write to standard output: {error.strerror}") from error
