"""The directory of a training run: checks before it begins, its curve, and its state."""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from attnviz.draw.whole_file import whole_file
from attnviz.errors import LoadError, UsageError
from attnviz.learn.train.report import CurvePoint
from attnviz.reading import CORPUS_BYTES, damage, damaged, read_bytes

CARD_FILE = "README.md"
"""The model card, which is written last: a directory with a card holds a finished model."""

LOG_FILE = "log.csv"
"""The learning curve of a run."""

_PARTS = (".attnviz-*.part", ".*.tmp")
"""Names of unfinished files that a killed process may leave."""

STATE_FILE = "training.pt"
"""The state of a run, next to the model's files; it may be deleted once the run is finished."""


_FORM = 1
"""Version of the stored state; to be raised when ``Trainer.state`` changes."""


def check_directory(directory: Path, resume: bool) -> None:
    """Raise an error if a training cannot begin or continue in ``directory``; create nothing.

    resume: whether the run continues an interrupted one. Raises UsageError if files would be lost
    or the run is finished, LoadError if there is nothing to resume or no permission to write.
    """
    shown = repr(str(directory))
    try:
        if directory.exists() and not directory.is_dir():
            raise UsageError(f"{shown} is there and no directory: name another --out")
        if directory.is_symlink() and not directory.exists():
            raise UsageError(f"{shown} is a link to nothing: name another --out")
        directory.resolve()
        files = list(directory.iterdir()) if directory.is_dir() else []
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads back to itself
        why = getattr(error, "strerror", None) or error
        raise LoadError(f"cannot read {shown}: {why}") from error
    there = {path.name for path in files if not any(map(path.match, _PARTS))}
    if resume:
        _check_resumed(shown, there)
    elif STATE_FILE in there:
        raise UsageError(
            f"{shown} holds a run that is not finished: --resume goes on with it, another --out "
            "begins a new one"
        )
    elif there:
        what = "a trained model" if LOG_FILE in there else "files"
        raise UsageError(f"{shown} holds {what} already: name a new --out, nothing is overwritten")
    _check_writable(directory)


def make_directory(directory: Path) -> None:
    """Make the directory and its parents if missing; raise LoadError if that fails."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LoadError(
            f"cannot make the directory {str(directory)!r}: {error.strerror or error}"
        ) from error


def clean_directory(directory: Path) -> None:
    """Remove the unfinished files that a killed process left."""
    for pattern in _PARTS:
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)


def _check_resumed(shown: str, there: set[str]) -> None:
    if STATE_FILE in there:
        return
    if LOG_FILE in there and CARD_FILE in there:
        raise UsageError(
            f"the run in {shown} is finished, nothing is left to resume: attnviz heads --model "
            f"{shown} shows the model, another --out trains a new one"
        )
    raise LoadError(
        f"nothing to resume: {shown} holds no {STATE_FILE}; leave out --resume to begin"
    )


def _check_writable(directory: Path) -> None:
    """Raise LoadError if the nearest existing directory is not writable."""
    nearest = directory.resolve()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise LoadError(
            f"cannot write {str(directory)!r}: {str(nearest)!r} is no directory that takes files"
        )


def write_curve(directory: Path, points: Sequence[CurvePoint]) -> None:
    """Write the curve of a run as a CSV file of rounded numbers, replacing the previous file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(CurvePoint))
    for point in points:
        row = asdict(point)
        row["seconds"] = f"{point.seconds:.1f}"
        row["learning_rate"] = f"{point.learning_rate:.3e}"
        row["loss"] = f"{point.loss:.4f}"
        row["valid_loss"] = "" if point.valid_loss is None else f"{point.valid_loss:.4f}"
        writer.writerow(row.values())
    with whole_file(directory / LOG_FILE) as stream:
        stream.write(text.getvalue().encode())


def write_state(
    directory: Path, run: Mapping[str, Any], state: Mapping[str, Any], points: Sequence[CurvePoint]
) -> None:
    """Write the state of a training to its directory, replacing the previous file.

    run: identifies the run, as JSON values; ``read_state`` refuses the state of another run.
    state: tensors, numbers, texts and containers of them. points: the curve so far.
    Raises LoadError if the file cannot be written; the old file stays.
    """
    buffer = io.BytesIO()
    stored = {"form": _FORM, "run": run, "state": dict(state), "points": [*map(asdict, points)]}
    torch.save(stored, buffer)
    with whole_file(directory / STATE_FILE) as stream:
        stream.write(buffer.getbuffer())


def read_state(directory: Path, run: Mapping[str, Any]) -> tuple[dict[str, Any], list[CurvePoint]]:
    """Return the state and the curve that ``write_state`` wrote last.

    run: identifies the run that is to be continued.
    Raises LoadError if there is no state or it is damaged, UsageError if it is of another run.
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
    except damage() as error:
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
    with damaged(repr(str(path)), "begin again in another --out"):
        return stored["state"], [CurvePoint(**point) for point in stored["points"]]


def _differences(saved: Any, wanted: Any, name: str = "") -> Iterator[str]:
    """Yield strings on differing settings, such as ``optimiser clip is 1.0, asked for is 2.0``."""
    if _are_tables(saved) and _are_tables(wanted) and len(saved) == len(wanted):
        saved, wanted = (dict(enumerate(rows, 1)) for rows in (saved, wanted))
    if isinstance(saved, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys([*wanted, *saved]):
            yield from _differences(saved.get(key), wanted.get(key), f"{name} {key}".lstrip())
    elif saved != wanted:
        yield f"{name} is {_short(saved)}, asked for is {_short(wanted)}"


def _are_tables(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _short(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
