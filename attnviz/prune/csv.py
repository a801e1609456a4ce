"""``attnviz prune --save FILE.csv``: the losses as heads go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnviz.prune.records import PruneReport

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["write_prune_csv"]


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
