"""The JSON object and the table rows that ``attnviz sweep`` writes for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from attnviz.learn.sweep.records import Spread, SweepModel, SweepReport

SCHEMA = "attnviz.sweep/1"


def sweep_data(report: SweepReport) -> dict[str, Any]:
    """Return the report as JSON values; losses are nats per prediction, indices start at 0."""
    return {
        "schema": SCHEMA,
        "model": {
            "name": "attnviz's own decoder",
            "layers": report.layers,
            "d_model": report.d_model,
            "d_ff": report.d_ff,
            "dtype": "float32",
            "device": report.device,
        },
        "task": asdict(report.task),
        "heads": list(report.heads),
        "seeds": list(report.seeds),
        "complete": report.complete,
        "steps": report.steps,
        "batch": report.batch,
        "learning_rate": report.learning_rate,
        "held_out": report.held_out,
        "predictions": report.predictions,
        "threads": report.threads,
        "results": [_result(report, heads) for heads in report.measured],
        "models": [_model(report, model) for model in report.models],
        "seconds": report.seconds,
        "notes": list(report.notes),
    }


def _result(report: SweepReport, heads: int) -> dict[str, Any]:
    """Return the results of one number of heads over its seeds, as JSON values."""

    models = report.of(heads)

    def spread(measure: Callable[[SweepModel], float]) -> dict[str, float | None]:
        found = Spread.of([measure(model) for model in models])
        return {"mean": found.mean, "deviation": found.deviation}

    def of_pattern(name: str) -> dict[str, float | None]:
        return spread(lambda model: model.pattern(name).score)

    return {
        "heads": heads,
        "head_dim": report.d_model // heads,
        "parameters": models[0].parameters,
        "seeds": [model.seed for model in models],
        "loss": spread(lambda model: model.loss),
        "accuracy": spread(lambda model: model.accuracy),
        "step_seconds": spread(lambda model: model.step_seconds),
        "patterns": {pattern.name: of_pattern(pattern.name) for pattern in models[0].patterns},
    }


def _model(report: SweepReport, model: SweepModel) -> dict[str, Any]:
    return {
        "heads": model.heads,
        "head_dim": report.d_model // model.heads,
        "seed": model.seed,
        "parameters": model.parameters,
        "loss": model.loss,
        "accuracy": model.accuracy,
        "step_seconds": model.step_seconds,
        "patterns": [asdict(pattern) for pattern in model.patterns],
        "curve": [
            {"step": point.step, "loss": point.loss, "learning_rate": point.learning_rate}
            for point in model.points
        ],
    }


def sweep_rows(report: SweepReport) -> Iterator[list[object]]:
    """Yield the CSV header, then one row per trained model.

    Losses are nats per counted prediction, indices start at 0. For each pattern a row has the
    score, layer and head of the best head.
    """
    names = [pattern.name for pattern in report.models[0].patterns]
    columns = ["heads", "head_dim", "seed", "parameters", "loss", "accuracy", "step_seconds"]
    yield [*columns, *(f"{name}{what}" for name in names for what in ("", "_layer", "_head"))]
    for model in report.models:
        width = report.d_model // model.heads
        cells: list[object] = [model.heads, width, model.seed, model.parameters]
        cells += [model.loss, model.accuracy, model.step_seconds]
        for name in names:
            best = model.pattern(name)
            cells += [best.score, best.layer, best.head]
        yield cells
