"""``attnviz train --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.errors import UsageError
from attnviz.learning import CurvePoint, TrainedModel
from attnviz.render.export.training_json import write_train_json
from attnviz.render.export.whole_file import check_writable, whole_file
from attnviz.render.labels import visible

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["SAVED", "check_save_path", "save_training", "write_train_csv"]

SAVED: Sequence[str] = (".json", ".csv", ".txt")
"""The endings that are known."""


def check_save_path(path: Path) -> None:
    """Raise one line if ``save_training`` could not write ``path``; cheap, so it can come first.

    UsageError for an unknown ending or something that is no file; LoadError for a missing or closed
    directory or a closed file.
    """
    if path.suffix.lower() not in SAVED:
        raise UsageError(
            f"cannot tell from the name {visible(str(path))} what to save: end it in one of "
            f"{', '.join(SAVED)}"
        )
    check_writable(path)


def save_training(result: TrainedModel, path: Path, screen_text: str) -> None:
    """Write a run whole or not at all; ``screen_text`` is what a ``.txt`` holds.

    Raises what ``check_save_path`` raises, and LoadError where the system refuses on the way.
    """
    check_save_path(path)
    ending = path.suffix.lower()
    with whole_file(path) as stream:
        text = codecs.getwriter("utf-8")(stream, "backslashreplace")
        if ending == ".json":
            write_train_json(result, text)
        elif ending == ".csv":
            write_train_csv(result.points, text)
        else:
            text.write(screen_text)


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
