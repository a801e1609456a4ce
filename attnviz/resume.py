"""``--resume FILE``: stores results text by text, so that a killed run can be continued.

Each line is a JSON object: the first describes the run, every other is a result of one text.
Numbers are restored exactly. A line is appended whole and flushed to the disk; only the last can
have been cut short by a kill, and it is written anew.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.files import check_writable, lock, whole_file
from attnviz.draw.labels import visible
from attnviz.errors import LoadError, UsageError
from attnviz.reading import ARRAY_BYTES, finite, parse_json, read_bytes

_LONGEST_VALUE = 40
_DIGITS = 12


@dataclass(frozen=True)
class Piece:
    """The result of a finished part of a run, as a line of the resume file."""

    part: str
    text: int
    result: Any


class ResumeFile:
    """The partial results of one run; a context manager that locks the file against other runs.

    schema: of the command whose results it stores, such as ``attnviz.ablate-resume/1``.
    run: all that the results depend on, as JSON values by name; a file whose run differs in any
        of them is refused and left as it is.
    done: the results that the file had when it was opened, in order.
    """

    def __init__(self, path: Path, schema: str, run: Mapping[str, Any]) -> None:
        self._path, self._shown = path, visible(str(path))
        self._schema = schema
        self._run = json.loads(json.dumps(dict(run), allow_nan=False))
        self._stream: int | None = None
        self.done: list[Piece] = []

    def __enter__(self) -> ResumeFile:
        """Open or create the file; UsageError for another run's or an open one, else LoadError."""
        check_writable(self._path, named=True)
        try:
            if not self._path.exists() or self._path.stat().st_size == 0:
                with whole_file(self._path, named=True) as stream:
                    stream.write(_line({"schema": self._schema, "run": self._run}))
            flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._stream = os.open(self._path, flags)
            lock(self._stream, self._shown)
            self.done = self._read()
        except (OSError, LoadError, UsageError) as error:
            self.__exit__()
            if isinstance(error, OSError):
                raise LoadError(f"cannot resume from {self._shown}: {error.strerror}") from error
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        if self._stream is not None:
            os.close(self._stream)
            self._stream = None

    def append(self, piece: Piece) -> None:
        """Append a result to the file and flush it to the disk; LoadError if the system refuses."""
        assert self._stream is not None
        line = _line({"part": piece.part, "text": piece.text, "result": piece.result})
        try:
            while line:
                line = line[os.write(self._stream, line) :]
            os.fsync(self._stream)
        except OSError as error:
            raise LoadError(f"cannot write {self._shown}: {error.strerror}") from error

    def _read(self) -> list[Piece]:
        """Return the finished results in the file; cut off an incomplete last line."""
        content = read_bytes(self._path, name=self._shown, most=ARRAY_BYTES)
        lines = enumerate(io.BytesIO(content), start=1)
        _, first = next(lines, (1, b""))
        header = _entry(first if first.endswith(b"\n") else b"")
        known = header.get("run")
        if header.get("schema") != self._schema or not isinstance(known, dict):
            command = self._schema.partition("-")[0].replace(".", " ")
            raise UsageError(
                f"{self._shown} is not a resume file of {command}: it is left as it is; name "
                "another file"
            )
        refuse_other_run(self._shown, known, self._run, "it is left as it is, name another file")
        done = []
        for number, line in lines:
            if not line.endswith(b"\n"):
                assert self._stream is not None
                os.ftruncate(self._stream, len(content) - len(line))
                break
            match _entry(line):
                case {"part": str(part), "text": int(text), "result": result} if type(text) is int:
                    done.append(Piece(part, text, result))
                case _:
                    raise LoadError(
                        f"{self._shown} line {number} is damaged: remove the line, and what it "
                        "held is measured again"
                    )
        return done


def refuse_other_run(
    named: str, there: Mapping[str, Any], here: Mapping[str, Any], advice: str
) -> None:
    """Raise UsageError if a stored run differs from this one in any of its facts."""
    for name in [*here, *(name for name in there if name not in here)]:
        if there.get(name) != here.get(name):
            its, it = ("are", "they are") if name.endswith("s") else ("is", "it is")
            raise UsageError(
                f"{named} is of another run: its {name.replace('_', ' ')} {its} "
                f"{_short(there.get(name))}, here {it} {_short(here.get(name))}; {advice}"
            )


def _line(entry: object) -> bytes:
    return json.dumps(entry, allow_nan=False).encode("ascii") + b"\n"


def _entry(line: bytes) -> dict[str, Any]:
    try:
        entry = parse_json(line, "a line")
    except LoadError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _short(value: object) -> str:
    text = visible(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def stored(values: Iterable[float]) -> list[float | None]:
    """Return numbers as JSON values; None for those that are not finite."""
    return [number if math.isfinite(number) else None for number in map(float, values)]


def restored(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Return the numbers of ``stored``, NaN for None; TypeError or ValueError for anything else."""
    return np.array([math.nan if value is None else finite(value) for value in values])


def digest(value: object) -> str:
    """Return a short hash of any JSON value."""
    content = json.dumps(value, sort_keys=True).encode("ascii")
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
