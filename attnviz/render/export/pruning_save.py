"""``attnviz prune --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.pruning import PruneReport
from attnviz.render.export.path_check import check_path
from attnviz.render.export.pruning_json import write_prune_json
from attnviz.render.export.saved_file import TextWriter, save_text

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["SAVED", "check_save_path", "save_prune", "write_prune_csv"]

SAVED = (".json", ".csv", ".txt")
"""The endings that are known."""


def check_save_path(path: Path) -> None:
    """Raise one line if ``save_prune`` could not write ``path``; see ``check_path``."""
    check_path(path, SAVED)


def save_prune(report: PruneReport, path: Path, screen_text: str) -> None:
    """Write a report whole or not at all; ``screen_text`` is what a ``.txt`` holds.

    Raises what ``check_save_path`` raises, and LoadError where the system refuses on the way.
    """
    check_save_path(path)
    writers: dict[str, TextWriter] = {
        ".json": partial(write_prune_json, report),
        ".csv": partial(write_prune_csv, report),
        ".txt": lambda out: out.write(screen_text),
    }
    save_text(path, writers[path.suffix.lower()])


def write_prune_csv(report: PruneReport, stream: SupportsWrite[str]) -> None:
    """A line for each number of heads left; indices start at 0, losses are nats per token.

    The whole model comes first. What was not measured is empty.
    """
    stream.write("heads_left,layer,head,score,loss,random_loss,random_low,random_high\n")
    stream.write(f"{report.total},,,,{report.baseline!r},,,\n")
    random = {point.heads_left: point for point in report.random}
    for step in report.steps:
        point = random.get(step.heads_left)
        beside = (point.mean, point.low, point.high) if point else ("", "", "")
        cells = (step.heads_left, step.layer, step.head, step.score, step.loss, *beside)
        stream.write(",".join(map(str, cells)) + "\n")
