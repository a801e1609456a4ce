"""The text that a command works on: an argument, a file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from attnviz.draw.labels import visible
from attnviz.errors import LoadError, UsageError
from attnviz.reading import read_bytes, read_stream

__all__ = ["as_utf8", "decoded", "read_file", "read_standard_input", "read_text"]


def read_text(argument: str | None, file: Path | None, command: str = "heads") -> str:
    """The text of TEXT, ``--file`` or ``-``, without the line end that a file closes with.

    command: that a message names as an example.

    Raises UsageError where there is no text or two, LoadError where a file cannot be read or is
    not UTF-8.
    """
    if argument is not None and file is not None:
        raise UsageError("expected one text: give TEXT or --file, not both")
    if argument is None and file is None:
        raise UsageError(
            f'expected a text: attnviz {command} "The cat sat on the mat.", --file PATH, or - to '
            "read standard input"
        )
    if file is not None:
        text = decoded(read_file(file), visible(str(file)))
    elif argument == "-":
        text = decoded(read_standard_input(), "standard input")
    else:
        assert argument is not None
        text = as_utf8(argument, "the text")
    text = text.rstrip("\r\n")
    if not text.strip():
        raise UsageError("the text is empty: expected at least one word")
    return text


def as_utf8(argument: str, name: str) -> str:
    """An argument read as UTF-8 whatever the locale made of its bytes; UsageError if it is not."""
    return decoded(argument.encode("utf-8", "surrogateescape"), name, UsageError)


def read_standard_input() -> bytes:
    """All of standard input; UsageError where it is closed."""
    if sys.stdin is None:  # closed by the caller, as in ``<&-``
        raise UsageError("standard input is closed: expected a text there, or give TEXT or --file")
    return read_stream(sys.stdin.buffer, "standard input")


def read_file(path: Path) -> bytes:
    """All of a file; LoadError where the system refuses, UsageError for a device."""
    return read_bytes(path, name=visible(str(path)))


def decoded(
    content: bytes, name: str, failure: type[LoadError] | type[UsageError] = LoadError
) -> str:
    """Bytes as UTF-8 text without its mark; ``failure`` where they are not, ``name`` names them."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise failure(
            f"{name} is not UTF-8: byte {error.start + 1} is 0x{content[error.start]:02x}; "
            "convert it first, for example with iconv -t UTF-8"
        ) from error
