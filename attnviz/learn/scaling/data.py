"""The JSON and the table that ``attnviz scaling`` writes for programs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from attnviz.draw.values import model_facts
from attnviz.learn.scaling.records import (
    BIN_EDGES,
    HIGH_WEIGHT,
    VANISHED,
    ScaledSoftmax,
    ScalingCase,
    ScalingReport,
)
from attnviz.learn.scaling.words import finding, seen

SCHEMA = "attnviz.scaling/1"
_COLUMNS = (
    *("d_k", "layer", "head", "side", "scale", "measure"),
    *("value", "standard_error", "expected", "bin_from", "bin_to"),
)


def scaling_data(report: ScalingReport) -> dict[str, Any]:
    """Return the report of ``attnviz scaling`` as JSON values; layers and heads count from 0.

    ``model`` and ``text`` are null if queries and keys are random. ``error`` is the standard error
    over the samples, null without independent samples. ``expected_variance`` is the variance for
    independent entries of variance 1: theory for random vectors, a comparison for a model.
    """
    return {
        "schema": SCHEMA,
        "model": None if report.model is None else model_facts(report.model),
        "source": "random" if report.model is None else "model",
        "seed": report.seed,
        "keys": report.keys,
        "samples": report.samples,
        "text": report.text if report.model is not None else None,
        "text_source": report.source or None,
        "high_weight": HIGH_WEIGHT,
        "vanished_norm": VANISHED,
        "bin_edges": list(BIN_EDGES),
        "cases": [
            {
                "d_k": case.d_k,
                "layer": case.layer,
                "head": case.head,
                "heads": case.heads,
                "queries": case.queries,
                "weights": case.weights,
                "without_scale": _side(case.plain),
                "with_scale": _side(case.scaled),
            }
            for case in report.cases
        ],
        "finding": finding(report),
        "seen": seen(report),
        "notes": list(report.notes),
    }


def _side(side: ScaledSoftmax) -> dict[str, Any]:
    return {
        "scale": side.scale,
        "expected_variance": side.expected_variance,
        **{
            name: {"value": estimate.value, "error": estimate.error}
            for name, estimate in side.measures.items()
        },
        "histogram": list(side.histogram),
    }


def scaling_rows(report: ScalingReport) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, then a row for each case and measure (or bin of weights).

    Each measure has a row with the scale and one without it, see the column ``side``. Layers and
    heads count from 0; cells that do not apply are empty. A row with the measure ``weights_in_bin``
    has the number of weights from ``bin_from`` to ``bin_to``.
    """
    yield _COLUMNS
    for case in report.cases:
        for name, side in (("without", case.plain), ("with", case.scaled)):
            yield from _rows(case, name, side)


def _rows(case: ScalingCase, name: str, side: ScaledSoftmax) -> Iterator[tuple[object, ...]]:
    lead = (case.d_k, case.layer, case.head, name, side.scale)
    for measure, estimate in side.measures.items():
        expected = side.expected_variance if measure == "score_variance" else None
        yield (*lead, measure, estimate.value, estimate.error, expected, None, None)
    for edges, count in zip(pairwise(BIN_EDGES), side.histogram, strict=True):
        yield (*lead, "weights_in_bin", count, None, None, *edges)
