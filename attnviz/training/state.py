"""A run on disk: all that it needs to go on to the very same weights, never half written."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attnviz.errors import LoadError, UsageError
from attnviz.learning import CurvePoint
from attnviz.render.export.whole_file import whole_file

__all__ = ["STATE_FILE", "read_state", "write_state"]

STATE_FILE = "training.pt"
"""The file beside the model's; it may be deleted when a run is finished."""


def write_state(
    directory: Path, run: Mapping[str, Any], state: Mapping[str, Any], points: list[CurvePoint]
) -> None:
    """Write the state of a run, in place of the one before.

    run: what the run is, as JSON values; ``read_state`` refuses another one.
    state: tensors, numbers, texts and containers of them.
    Raises LoadError where the disk is full or refuses; the old file stays.
    """
    buffer = io.BytesIO()
    torch.save({"run": run, "state": dict(state), "points": list(map(asdict, points))}, buffer)
    with whole_file(directory / STATE_FILE) as stream:
        stream.write(buffer.getbuffer())


def read_state(directory: Path, run: Mapping[str, Any]) -> tuple[dict[str, Any], list[CurvePoint]]:
    """The state that ``write_state`` wrote last.

    Raises LoadError where there is none or it is damaged, UsageError where it is of another run;
    the file stays as it is.
    """
    path = directory / STATE_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise LoadError(
            f"nothing to resume: {str(path)!r} was not found; leave out --resume to begin"
        ) from error
    except OSError as error:
        raise LoadError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    try:
        stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise LoadError(f"{str(path)!r} is no state of a training run, or is damaged") from error
    if not isinstance(stored, dict) or {"run", "state", "points"} - stored.keys():
        raise LoadError(f"{str(path)!r} is no state of a training run")
    for name, wanted in run.items():
        if (found := stored["run"].get(name)) != wanted:
            raise UsageError(
                f"{str(path)!r} is of another run: its {name} is {_short(found)}, asked for is "
                f"{_short(wanted)}; name what it began with, or another --out"
            )
    return stored["state"], [CurvePoint(**point) for point in stored["points"]]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
