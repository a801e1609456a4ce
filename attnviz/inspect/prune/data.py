"""The output of ``attnviz prune`` for programs: the object of ``--json``, the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnviz.draw.values import json_number, model_facts
from attnviz.inspect.prune.records import Head, PruneReport

SCHEMA = "attnviz.prune/1"


def prune_data(report: PruneReport) -> dict[str, Any]:
    """Return the report as JSON values; layers and heads count from 0, losses are nats per token.

    All losses are over the held-out texts, except those under ``ranking``.
    """
    pruned, ranking = report.pruned, report.ranking
    request = report.request
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "text": report.text,
        "source": report.source,
        "texts": report.texts,
        "tokens": report.tokens,
        "split": "tokens" if report.texts == 1 else "texts",
        "held_out": {"texts": report.held_out.texts, "tokens": report.held_out.tokens},
        "ranking": {
            "texts": ranking.texts,
            "tokens": ranking.tokens,
            "baseline": {"loss": json_number(ranking.baseline)},
            "steps": [
                {"heads_left": step.heads_left, "loss": json_number(step.ranking_loss)}
                for step in report.steps
            ],
        },
        "metric": report.loss_name,
        "goal": request.goal,
        "method": request.method,
        "rerank": request.rerank,
        "uniform": request.uniform,
        "empty_layers": request.empty_layers,
        "baseline": {"loss": json_number(report.baseline)},
        "limit": json_number(report.limit),
        "parameters_before": report.parameters_before,
        "parameters_after": pruned.parameters,
        "heads_before": report.total,
        "heads_after": report.total - len(report.steps),
        "removed": _heads(report.removed),
        "steps": [
            {
                "layer": step.layer,
                "head": step.head,
                "score": json_number(step.score),
                "heads_left": step.heads_left,
                "loss": json_number(step.loss),
                "loss_ratio": json_number(report.ratio(step.loss)),
            }
            for step in report.steps
        ],
        "random": [
            {
                "heads_left": point.heads_left,
                "loss": json_number(point.mean),
                "low": json_number(point.low),
                "high": json_number(point.high),
            }
            for point in report.random
        ],
        "draws": request.draws,
        "seed": report.seed,
        "pruned": {
            "form": pruned.form,
            "heads": pruned.heads,
            "kv_heads": pruned.kv_heads,
            "architecture": pruned.architecture,
            "parameters": pruned.parameters,
            "zeroed": _heads(pruned.zeroed),
            "path": pruned.path,
            "max_difference": json_number(pruned.difference),
            "note": pruned.note,
        },
        "seconds": json_number(report.seconds),
        "notes": list(report.notes),
    }


def _heads(heads: tuple[Head, ...]) -> list[dict[str, int]]:
    return [{"layer": layer, "head": head} for layer, head in heads]


def prune_rows(report: PruneReport) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, then a row for each number of heads left.

    Indices start at 0, losses are nats per token. Columns: heads_left, layer, head, score, loss,
    random_loss, random_low, random_high, held_out_ratio, ranking_loss. The whole model comes first.
    A value that was not measured is empty. All losses are over the held-out texts, except in the
    last column.
    """
    order = ("heads_left", "layer", "head", "score", "loss")
    yield (*order, "random_loss", "random_low", "random_high", "held_out_ratio", "ranking_loss")
    whole = (
        report.baseline,
        None,
        None,
        None,
        report.ratio(report.baseline),
        report.ranking.baseline,
    )
    yield report.total, None, None, None, *whole
    random = {point.heads_left: point for point in report.random}
    for step in report.steps:
        point = random.get(step.heads_left)
        beside = (point.mean, point.low, point.high) if point else (None, None, None)
        losses = (step.score, step.loss, *beside, report.ratio(step.loss), step.ranking_loss)
        yield (step.heads_left, step.layer, step.head, *losses)
