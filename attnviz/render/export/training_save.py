"""``attnviz train --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.learning import CurvePoint, TrainedModel
from attnviz.render.export.path_check import check_path
from attnviz.render.export.saved_file import TextWriter, save_text
from attnviz.render.export.training_json import write_train_json

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["SAVED", "check_save_path", "save_training", "write_train_csv"]

SAVED = (".json", ".csv", ".txt")
"""The endings that are known."""


def check_save_path(path: Path) -> None:
    """Raise one line if ``save_training`` could not write ``path``; see ``check_path``."""
    check_path(path, SAVED)


def save_training(result: TrainedModel, path: Path, screen_text: str) -> None:
    """Write a run whole or not at all; ``screen_text`` is what a ``.txt`` holds.

    Raises what ``check_save_path`` raises, and LoadError where the system refuses on the way.
    """
    check_save_path(path)
    writers: dict[str, TextWriter] = {
        ".json": partial(write_train_json, result),
        ".csv": partial(write_train_csv, result.points),
        ".txt": lambda out: out.write(screen_text),
    }
    save_text(path, writers[path.suffix.lower()])


def write_train_csv(points: Sequence[CurvePoint], stream: SupportsWrite[str]) -> None:
    """A line for each point of the curve, losses in nats per token; what was not measured is empty.

    The columns are the fields of ``CurvePoint``; a phase's name is in quotes.
    """
    stream.write(",".join(one.name for one in fields(CurvePoint)) + "\n")
    for point in points:
        *numbers, phase = astuple(point)
        cells = ["" if number is None else repr(number) for number in numbers]
        quoted = phase.replace('"', '""')
        stream.write(",".join([*cells, f'"{quoted}"']) + "\n")
