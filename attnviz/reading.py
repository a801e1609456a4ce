"""Reads files that anyone may have written: bounded in size and depth, each failure one sentence.

A file that a person names may be a pipe or a terminal, as in ``<(…)``; a device without end, one
larger than any honest file, and JSON or TOML nested too deep are refused before they fill the
memory.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from attnviz.errors import LoadError, UsageError

PACKAGED = Path(__file__).resolve().parent / "data"
"""The files that ship with the package: the bundled model and the built-in texts."""

TEXT_BYTES = 2**28
"""256 MiB of a text, a list of texts or annotated sentences: some 60 million tokens."""

CORPUS_BYTES = 2**33
"""8 GiB of a file to train on, or of the results of a run that goes on."""

SETTINGS_BYTES = 2**26
"""64 MiB of a config, an index of shards, a recipe; the largest known are below 10 MB."""

Kind = TypeVar("Kind")
Known = TypeVar("Known")

_PIECE = 2**20
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""What a half of a surrogate pair looks like; whole pairs, as of an escaped emoji, do so too."""


def read_bytes(path: Path, *, name: str = "", failure: str = "", most: int = 0) -> bytes:
    """All of a file, a pipe or a terminal.

    name: how a message names it; empty for its path in quotes.
    failure: how a message begins where the system refuses; empty for ``cannot read <name>``.
    most: bytes that it may have; 0 for those of a text.

    Raises:
        LoadError: the system refuses, or there is more.
        UsageError: a device, which has no end.
    """
    shown = name or repr(str(path))
    try:
        with path.open("rb") as stream:
            device = stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
            if device and not stream.isatty():
                raise UsageError(f"{shown} is a device, which has no end: name a text file")
            return read_stream(stream, shown, most)
    except OSError as error:
        why = error.strerror or str(error)
        raise LoadError(f"{failure or f'cannot read {shown}'}: {why}") from error


def read_stream(stream: BinaryIO, name: str, most: int = 0) -> bytes:
    """All of an open stream; LoadError where it has more bytes than ``read_bytes`` takes."""
    pieces, size, most = [], 0, most or TEXT_BYTES
    try:
        while piece := stream.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise LoadError(
                    f"{name} has more than {most:,} bytes, the most that is read here: name a "
                    "smaller file"
                )
            if len(piece) < _PIECE:  # the end: a terminal would wait for a second one
                break
        return b"".join(pieces)
    except MemoryError as error:
        raise LoadError(f"{name} does not fit the free memory: name a smaller file") from error


def parse_json(content: bytes | str, name: str) -> Any:
    """The value that JSON stands for; LoadError, which begins with ``name``, where it is none."""
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        value = json.loads(text)
        if _HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError, MemoryError) as error:
        raise LoadError(f"{name} cannot be read as JSON: {_why(error)}") from error
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; LoadError where it cannot be read or holds something else."""
    name = repr(str(path))
    failure = f"{name} cannot be read as JSON"
    content = parse_json(read_bytes(path, failure=failure, most=SETTINGS_BYTES), name)
    if not isinstance(content, dict):
        raise LoadError(f"{name} should hold a JSON object, not {type(content).__name__}")
    return content


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The table in a TOML file that should be ``what``, such as ``a recipe``.

    Raises LoadError where it cannot be read.
    """
    import tomllib  # many a start reads none

    failure = f"{str(path)!r} cannot be read as {what}"
    content = read_bytes(path, failure=failure, most=SETTINGS_BYTES)
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError, MemoryError) as error:
        raise LoadError(f"{failure}: {_why(error)}") from error


# Values of a file ----------------------------------------------------------------------------


def typed(value: Any, kind: type[Kind]) -> Kind:
    """A value that is of this type; TypeError for another. A truth value is no number."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value


def optional(value: Any, kind: type[Kind]) -> Kind | None:
    """The same, or None for null."""
    return None if value is None else typed(value, kind)


def one_of(value: Any, known: Collection[Known]) -> Known:
    """A value that is known; ValueError for another."""
    for each in known:
        if value == each:
            return each
    raise ValueError(f"{value!r:.40} is none of {', '.join(map(str, known))}")


def finite(value: Any) -> float:
    """A number; ValueError for NaN and infinity, which Python's JSON lets through."""
    if isinstance(value, bool | str) or not math.isfinite(number := float(value)):
        raise ValueError(f"expected a number, got {value!r:.40}")
    return number


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, MemoryError):
        return "it does not fit the free memory"
    if isinstance(error, UnicodeEncodeError):
        return f"it holds half of a surrogate pair ({error.object[error.start]!a})"
    return str(error)
