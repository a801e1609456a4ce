"""``attnviz sweep --save FILE.csv``: the trained models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnviz.sweep.records import SweepReport

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["write_sweep_csv"]


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
