"""A run on disk: all that it needs to go on to the very same weights, never half written."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attnviz.draw.whole_file import whole_file
from attnviz.errors import LoadError, UsageError
from attnviz.reading import CORPUS_BYTES, read_bytes
from attnviz.train.records import CurvePoint

__all__ = ["STATE_FILE", "read_state", "write_state"]

STATE_FILE = "training.pt"
"""The file beside the model's; it may be deleted when a run is finished."""


_FORM = 1
"""Of what is stored; to be raised when ``Trainer.state`` changes."""

_DAMAGE = (
    RuntimeError,
    OSError,
    ValueError,
    LookupError,
    EOFError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)
"""What reading a file raises that is no state, or no longer one."""


def write_state(
    directory: Path, run: Mapping[str, Any], state: Mapping[str, Any], points: list[CurvePoint]
) -> None:
    """Write the state of a run, in place of the one before.

    run: what the run is, as JSON values; ``read_state`` refuses another one.
    state: tensors, numbers, texts and containers of them.
    Raises LoadError where the disk is full or refuses; the old file stays.
    """
    buffer = io.BytesIO()
    stored = {"form": _FORM, "run": run, "state": dict(state), "points": [*map(asdict, points)]}
    torch.save(stored, buffer)
    with whole_file(directory / STATE_FILE) as stream:
        stream.write(buffer.getbuffer())


def read_state(directory: Path, run: Mapping[str, Any]) -> tuple[dict[str, Any], list[CurvePoint]]:
    """The state that ``write_state`` wrote last.

    Raises LoadError where there is none or it is damaged, UsageError where it is of another run;
    the file stays as it is.
    """
    path = directory / STATE_FILE
    if not path.exists():
        raise LoadError(
            f"nothing to resume: {str(path)!r} was not found; leave out --resume to begin"
        )
    content = read_bytes(path, most=CORPUS_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as parts:
            if parts.testzip() is not None:  # torch itself compares no checksums
                raise zipfile.BadZipFile
        stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except _DAMAGE as error:
        raise LoadError(f"{str(path)!r} is no state of a training run, or is damaged") from error
    if not isinstance(stored, dict) or {"form", "run", "state", "points"} - stored.keys():
        raise LoadError(f"{str(path)!r} is no state of a training run")
    if stored["form"] != _FORM:
        raise LoadError(
            f"{str(path)!r} was written by another version of attnviz: go on with that one, or "
            "begin again in another --out"
        )
    if other := next(_differences(stored["run"], dict(run)), None):
        raise UsageError(
            f"{str(path)!r} is of another run: its {other}; name what it began with, or another "
            "--out"
        )
    return stored["state"], [CurvePoint(**point) for point in stored["points"]]


def _differences(found: object, wanted: object, name: str = "") -> Iterator[str]:
    """``optimiser clip is 1.0, asked for is 2.0`` for each value that is not the same."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys([*wanted, *found]):
            yield from _differences(found.get(key), wanted.get(key), f"{name} {key}".lstrip())
    elif (
        isinstance(found, list)
        and isinstance(wanted, list)
        and len(found) == len(wanted)
        and all(isinstance(one, dict) for one in (*found, *wanted))
    ):
        for number, (one, other) in enumerate(zip(found, wanted, strict=True), 1):
            yield from _differences(one, other, f"{name} {number}")
    elif found != wanted:
        yield f"{name} is {_short(found)}, asked for is {_short(wanted)}"


def _short(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
