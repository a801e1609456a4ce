"""``attnviz prune --save FILE``: the ending of the name says which file is written."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.errors import UsageError
from attnviz.pruning import PruneReport
from attnviz.render.export.pruning_json import write_prune_json
from attnviz.render.export.whole_file import check_writable, whole_file
from attnviz.render.labels import visible

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["SAVED", "check_save_path", "save_prune", "write_prune_csv"]

SAVED: Sequence[str] = (".json", ".csv", ".txt")
"""The endings that are known."""


def check_save_path(path: Path) -> None:
    """Raise one line if ``save_prune`` could not write ``path``; cheap, so it can come first.

    UsageError for an unknown ending or something that is no file; LoadError for a missing or closed
    directory or a closed file.
    """
    if path.suffix.lower() not in SAVED:
        raise UsageError(
            f"cannot tell from the name {visible(str(path))} what to save: end it in one of "
            f"{', '.join(SAVED)}"
        )
    check_writable(path)


def save_prune(report: PruneReport, path: Path, screen_text: str) -> None:
    """Write a report whole or not at all; ``screen_text`` is what a ``.txt`` holds.

    Raises what ``check_save_path`` raises, and LoadError where the system refuses on the way.
    """
    check_save_path(path)
    ending = path.suffix.lower()
    with whole_file(path) as stream:
        text = codecs.getwriter("utf-8")(stream, "backslashreplace")
        if ending == ".json":
            write_prune_json(report, text)
        elif ending == ".csv":
            write_prune_csv(report, text)
        else:
            text.write(screen_text)


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
