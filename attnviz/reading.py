"""Reads files that anyone may have written: bounded in size and depth, each failure one sentence.

A file that a person names may be a pipe or a terminal, as in ``<(…)``; a device without end, one
larger than any honest file, and JSON or TOML that would fill the memory are refused before they do.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar, get_args, get_origin

from attnviz.errors import AttnvizError, LoadError, UsageError

PACKAGED = Path(__file__).resolve().parent / "data"
"""The files that ship with the package: the bundled model and the built-in texts."""

TEXT_BYTES = 2**22
"""4 MiB for one text: a million tokens, each of which takes a tokenizer 500 bytes of memory."""

TEXTS_BYTES = 2**26
"""64 MiB for a list of texts, of pairs or of annotated sentences."""

CORPUS_BYTES = 2**33
"""8 GiB for a file to train on, or for the state of a training run."""

SETTINGS_BYTES = 2**26
"""64 MiB for a config, an index of shards or a baseline; the largest known are below 10 MB."""

TABLES_BYTES = 2**22
"""4 MiB for TOML: a thousand rules of ``check``, each with its own text."""

TOKENIZER_BYTES = 2**27
"""128 MiB for a tokenizer's file; the largest known have 35 MB."""

RESULT_BYTES = 2**28
"""256 MiB for results as JSON: ``patterns`` writes 52 MB for the 16,128 heads of Llama 405B."""

ARRAY_BYTES = 2**31
"""2 GiB for weights, in their file and in memory, and for the results of a resumed run."""

Kind = TypeVar("Kind")
Known = TypeVar("Known")

_PIECE = 2**20
_LINES = 2**20  # the most lines that a list of texts may have

_NO_UTF8 = {
    b"\x1f\x8b": "it is packed by gzip: unpack it first",
    b"PK\x03\x04": "it is a zip archive, as office documents are: save its texts as CSV or lines",
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "convert it first: iconv -f UTF-16 -t UTF-8"),
}
"""What to do with files that are no UTF-8, by how they begin."""

_GROWN = 8
"""Bytes of memory that the values of a JSON file may take per byte that such a file may have.

A file of weights takes four times its size, one of empty lists 22 times, of small objects 29 times.
"""

_MEMORY = {",": 40, '"': 28, "[": 90, "{": 200}
"""The most bytes of memory that a value takes for each of these marks in JSON, as measured."""

_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""Matches half of a surrogate pair, and also whole pairs such as an escaped emoji."""

_KEY = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_KEY}(?:[ \t]*+\.[ \t]*+{_KEY}){{63}}")
"""A TOML key of 64 parts; the parser's time and memory grow with the square of their number."""


def damage() -> tuple[type[Exception], ...]:
    """Return the exceptions that damaged files raise, those of imported libraries included."""
    modules = sys.modules
    named = ((modules.get(module), error) for module, error in _OF_LIBRARIES)
    return (*_BUILT_IN, *(getattr(module, error) for module, error in named if module is not None))


_BUILT_IN = (
    *(ArithmeticError, AttributeError, BufferError, EOFError, LookupError, MemoryError, OSError),
    *(RuntimeError, SyntaxError, TypeError, ValueError),
)
_OF_LIBRARIES = (
    *(("csv", "Error"), ("lzma", "LZMAError"), ("pickle", "UnpicklingError"), ("struct", "error")),
    *(("safetensors", "SafetensorError"), ("tokenize", "TokenError"), ("zipfile", "BadZipFile")),
    *(("re", "error"), ("zlib", "error")),
)


@contextmanager
def damaged(name: str, mend: str = "") -> Iterator[None]:
    """Raise LoadError on data ``name``, with ``mend`` as advice, if the block meets damage."""
    try:
        yield
    except damage() as error:
        advice = f": {mend}" if mend else ""
        raise LoadError(f"{name} is damaged ({reason(error)}){advice}") from error


def read_bytes(path: Path, *, name: str = "", failure: str = "", most: int = 0) -> bytes:
    """Return all bytes of a file, a pipe or a terminal.

    name: how a message names it; empty for its path in quotes.
    failure: how a message begins if the system refuses; empty for ``cannot read <name>``.
    most: the most bytes allowed; 0 for the limit of texts.

    Raises LoadError if the system refuses or there are more bytes, UsageError for a device, which
    has no end.
    """
    shown, most = name or repr(str(path)), most or TEXT_BYTES
    try:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if stat.S_ISCHR(status.st_mode) and not stream.isatty():
                raise UsageError(f"{shown} is a device, which has no end: name a text file")
            if stat.S_ISREG(status.st_mode) and status.st_size > most:
                raise _too_large(shown, most)
            return read_stream(stream, shown, most)
    except OSError as error:
        why = error.strerror or str(error)
        raise LoadError(f"{failure or f'cannot read {shown}'}: {why}") from error


def open_regular(path: Path) -> BinaryIO:
    """Open a path that the user did not give; OSError for a link, a pipe, a device, a directory."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    stream = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(f"{str(path)!r} is not a regular file")
    return stream


def read_stream(stream: BinaryIO, name: str, most: int = 0) -> bytes:
    """Return all bytes of a stream; LoadError for more than ``most``, or the limit of texts."""
    pieces, size, most = [], 0, most or TEXT_BYTES
    try:
        while piece := stream.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise _too_large(name, most)
            if len(piece) < _PIECE:  # the end: a terminal would wait for a second one
                break
        return b"".join(pieces)
    except MemoryError as error:
        raise LoadError(f"{name} does not fit the free memory: name a smaller file") from error


def check_size(path: Path, most: int) -> None:
    """Raise LoadError if a file has more bytes than ``most``, before a library reads it."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise LoadError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    if size > most:
        raise _too_large(repr(str(path)), most)


def _too_large(name: str, most: int) -> LoadError:
    return LoadError(
        f"{name} has more than {most:,} bytes, the most that is read here: name a smaller file"
    )


def text_lines(content: bytes, name: str) -> Iterator[str]:
    """Yield the lines of a text file without their ends; LoadError for too many, or no UTF-8."""
    for number, line in enumerate(io.BytesIO(content), start=1):
        if number > _LINES:
            raise LoadError(
                f"{name} has more than {_LINES:,} lines, the most that are read here: name a "
                "smaller file"
            )
        yield utf8(line.removesuffix(b"\n").removesuffix(b"\r"), f"{name} line {number}")


def utf8(content: bytes, name: str, failure: type[AttnvizError] = LoadError) -> str:
    """Return UTF-8 bytes as a string without its BOM; raise ``failure`` on ``name`` for others."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        begun = [advice for start, advice in _NO_UTF8.items() if content.startswith(start)]
        raise failure(
            f"{name} is not UTF-8: byte {error.start + 1} is 0x{error.object[error.start]:02x}; "
            f"{(begun or ['convert it first, for example with iconv -t UTF-8'])[0]}"
        ) from error


def parse_json(content: bytes | str, name: str, most: int = RESULT_BYTES) -> Any:
    """Return the value of JSON; LoadError on ``name`` if it is damaged, or beyond ``most``."""
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        check_memory(text, name, most)
        value = json.loads(text)
        if _HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except damage() as error:
        raise LoadError(f"{name} cannot be read as JSON: {reason(error)}") from error
    return value


def check_memory(text: str, name: str, most: int) -> None:
    """Raise LoadError for JSON whose values would take too much memory."""
    width = 1 if text.isascii() else 4  # bytes in which Python stores a character
    needed = width * len(text) + sum(text.count(mark) * size for mark, size in _MEMORY.items())
    if needed > _GROWN * most:
        raise LoadError(
            f"{name} would take more than {_GROWN * most / 1e9:.1f} GB of memory as JSON: name a "
            "smaller file"
        )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; LoadError if it cannot be read or is no object."""
    name = repr(str(path))
    written = read_bytes(path, failure=f"{name} cannot be read as JSON", most=SETTINGS_BYTES)
    content = parse_json(written, name, SETTINGS_BYTES)
    if not isinstance(content, dict):
        raise LoadError(f"{name} should hold a JSON object, not {type(content).__name__}")
    return content


def read_toml(path: Path, purpose: str) -> dict[str, Any]:
    """Return the table in a TOML file; LoadError, with its purpose, if it cannot be read."""
    failure = f"{str(path)!r} cannot be read as {purpose}"
    return parse_toml(read_bytes(path, failure=failure, most=TABLES_BYTES), failure)


def parse_toml(
    content: bytes, failure: str, kind: type[AttnvizError] = LoadError
) -> dict[str, Any]:
    """Return the table that a TOML file's bytes describe."""
    import tomllib  # many runs read none

    try:
        text = content.decode("utf-8-sig")
        if _LONG_KEY.search(text):
            raise ValueError("a key has 64 parts or more")
        return tomllib.loads(text)
    except damage() as error:
        raise kind(f"{failure}: {reason(error)}") from error


# Values of a file ----------------------------------------------------------------------------


def typed(value: Any, kind: type[Kind]) -> Kind:
    """Return the value if it is of exactly this type, else raise TypeError: a bool is no int."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value


def optional(value: Any, kind: type[Kind]) -> Kind | None:
    """Return the value if it is None or of exactly this type, else raise TypeError."""
    return None if value is None else typed(value, kind)


def one_of(value: Any, known: Collection[Known]) -> Known:
    """Return the value of ``known`` that equals ``value``; raise ValueError if there is none."""
    for own in known:
        if value == own:
            return own
    raise ValueError(f"{value!r:.40} is none of {', '.join(map(str, known))}")


def finite(value: Any) -> float:
    """Return the value as a float; raise ValueError for NaN and infinity, which JSON may have."""
    if isinstance(value, bool | str) or not math.isfinite(number := float(value)):
        raise ValueError(f"expected a number, got {value!r:.40}")
    return number


WHOLE = Annotated[int, range(2**53)]
"""The kind of whole numbers from 0 that a float holds exactly, for ``fits``."""


def fits(value: Any, kind: Any) -> bool:
    """Return True if a JSON value has the type that ``kind`` describes.

    kind: a class, a union, a ``Literal``, ``list[…]``, ``tuple[…]`` for a list of fixed length, a
        class ``Annotated`` with what contains its values, or kinds of an object's values by name.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, dict):
        return type(value) is dict and all(n in value and fits(value[n], kind[n]) for n in kind)
    if origin is list and inner[0] in (int, str):
        return type(value) is list and {*map(type, value)} <= {*inner}
    if origin is list:
        return type(value) is list and all(fits(own, inner[0]) for own in value)
    if origin is tuple:
        return type(value) is list and len(value) == len(inner) and all(map(fits, value, inner))
    if origin is Literal:
        return any(type(value) is type(own) and value == own for own in inner)
    if origin is Annotated:
        return fits(value, inner[0]) and value in inner[1]
    return any(fits(value, own) for own in inner) if inner else type(value) is kind


def repeated(folded: Any, most: int) -> list[Any]:
    """Return the names in ``[[[name, …], times], …]``, each inner list ``times`` times in a row.

    Raises TypeError for another structure, ValueError for more than ``most`` names.
    """
    unfolded: list[Any] = []
    for names, times in folded:
        if len(names) * typed(times, int) > most - len(unfolded):
            raise ValueError(f"more than {most:,} names")
        unfolded += [*names] * times
    return unfolded


def reason(error: BaseException) -> str:
    """Return the reason that a file could not be read, as part of a sentence safe to print."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, MemoryError):
        return "it does not fit the free memory"
    if isinstance(error, UnicodeEncodeError):
        return f"it holds half of a surrogate pair ({error.object[error.start]!a})"
    message = " ".join(str(error).split())[:120]
    words = "".join(letter if letter.isprintable() else "\ufffd" for letter in message)
    if isinstance(error, KeyError):
        return f"{words} is missing"
    return words if isinstance(error, ValueError) and words else f"{type(error).__name__}: {words}"
