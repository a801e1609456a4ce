"""The object that ``attnviz scaling --json`` prints and ``--save FILE.json`` writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attnviz.draw.model_facts import model_facts
from attnviz.scaling.records import (
    BIN_EDGES,
    HIGH_WEIGHT,
    VANISHED,
    ScalingCase,
    ScalingReport,
    Softened,
)
from attnviz.scaling.seen import seen

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["SCHEMA", "scaling_document", "write_scaling_json"]

SCHEMA = "attnviz.scaling/1"


def scaling_document(report: ScalingReport) -> dict[str, Any]:
    """The report as JSON values; layers and heads count from 0.

    ``model`` and ``text`` are null where queries and keys are random. An ``error`` is a standard
    error over the samples, null where there are no independent ones. ``expected_variance`` is that
    of independent entries of variance 1: of random ones theory, of a model a comparison.
    """
    return {
        "schema": SCHEMA,
        "model": None if report.model is None else model_facts(report.model),
        "source": "random" if report.model is None else "model",
        "seed": report.seed,
        "keys": report.keys,
        "samples": report.samples,
        "text": report.text if report.model is not None else None,
        "text_source": report.source if report.model is not None else None,
        "high_weight": HIGH_WEIGHT,
        "vanished_norm": VANISHED,
        "bin_edges": list(BIN_EDGES),
        "cases": [_case(case) for case in report.cases],
        "seen": seen(report),
        "notes": list(report.notes),
    }


def _case(case: ScalingCase) -> dict[str, Any]:
    return {
        "d_k": case.d_k,
        "layer": case.layer,
        "head": case.head,
        "heads": case.heads,
        "queries": case.queries,
        "weights": case.weights,
        "without_scale": _side(case.plain),
        "with_scale": _side(case.scaled),
    }


def _side(side: Softened) -> dict[str, Any]:
    return {
        "scale": side.scale,
        "expected_variance": side.expected_variance,
        **{
            name: {"value": estimate.value, "error": estimate.error}
            for name, estimate in side.measures.items()
        },
        "histogram": list(side.histogram),
    }


def write_scaling_json(report: ScalingReport, stream: SupportsWrite[str]) -> None:
    """Write ``scaling_document``, ASCII only: nothing in a name may reach a terminal."""
    stream.write(json.dumps(scaling_document(report), indent=1, allow_nan=False) + "\n")
