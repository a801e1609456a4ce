"""``attnviz sweep --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.render.export.path_check import check_path
from attnviz.render.export.saved_file import TextWriter, save_text
from attnviz.render.export.sweep_json import write_sweep_json
from attnviz.sweeping import SweepReport

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["SAVED", "check_save_path", "save_sweep", "write_sweep_csv"]

SAVED = (".json", ".csv", ".txt")
"""The endings that are known."""


def check_save_path(path: Path) -> None:
    """Raise one line if ``save_sweep`` could not write ``path``; see ``check_path``."""
    check_path(path, SAVED)


def save_sweep(report: SweepReport, path: Path, screen_text: str) -> None:
    """Write a report whole or not at all; ``screen_text`` is what a ``.txt`` holds.

    Raises what ``check_save_path`` raises, and LoadError where the system refuses on the way.
    """
    check_save_path(path)
    writers: dict[str, TextWriter] = {
        ".json": partial(write_sweep_json, report),
        ".csv": partial(write_sweep_csv, report),
        ".txt": lambda out: out.write(screen_text),
    }
    save_text(path, writers[path.suffix.lower()])


def write_sweep_csv(report: SweepReport, stream: SupportsWrite[str]) -> None:
    """A line a trained model; losses are nats per counted prediction, indices start at 0.

    Of each pattern the best head's score, layer and head.
    """
    names = [pattern.name for pattern in report.models[0].patterns]
    columns = ["heads", "head_dim", "seed", "parameters", "loss", "accuracy", "step_seconds"]
    columns += [f"{name}{what}" for name in names for what in ("", "_layer", "_head")]
    stream.write(",".join(columns) + "\n")
    for model in report.models:
        width = report.d_model // model.heads
        cells: list[float] = [model.heads, width, model.seed, model.parameters]
        cells += [model.loss, model.accuracy, model.step_seconds]
        for name in names:
            best = model.pattern(name)
            cells += [best.score, best.layer, best.head]
        stream.write(",".join(map(repr, cells)) + "\n")
