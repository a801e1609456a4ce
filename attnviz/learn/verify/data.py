"""The JSON object and the table rows that ``attnviz verify`` writes for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnviz.draw.values import json_number, model_facts
from attnviz.learn.verify.records import (
    Backends,
    Check,
    ComparedNumber,
    ComputationStep,
    Matrix,
    VerifyReport,
)

SCHEMA = "attnviz.verify/1"
_FORMULA = "4 * epsilon * sqrt(roundings) * largest"
_COLUMNS = (
    *("case", "check", "against", "verdict", "measure", "difference", "tolerance"),
    *("roundings", "largest", "where", "reason"),
)


def verification_data(found: VerifyReport) -> dict[str, Any]:
    """Return the report of a verification as JSON values.

    ``model`` is null for the library's own attention. A ``difference`` that is NaN or infinite is
    null, and its measure has failed.
    """
    sizes = found.sizes
    return {
        "schema": SCHEMA,
        "model": None if found.model is None else model_facts(found.model),
        "passed": not found.failed,
        "passes": found.count("pass"),
        "failures": found.count("fail"),
        "skips": found.count("skipped"),
        "dtype": found.dtype,
        "tolerance": {"epsilon": found.epsilon, "dtype": found.rounds_in, "formula": _FORMULA},
        "sizes": None
        if sizes is None
        else {
            "d_model": sizes.d_model,
            "heads": sizes.heads,
            "kv_heads": sizes.kv_heads,
            "tokens": sizes.tokens,
            "keys": sizes.keys,
            "batch": sizes.batch,
            "seed": sizes.seed,
        },
        "text": found.text,
        "target": found.target,
        "tokens": list(found.tokens),
        "versions": dict(found.versions),
        "cases": dict(found.cases),
        "checks": [_check(check) for check in found.checks],
        **({} if found.model is None else {"backends": _backends(found.backends)}),
        "causal": found.causal if found.steps else None,
        "steps": [_step(step, found.numbers_shown) for step in found.steps],
    }


def _check(check: Check) -> dict[str, Any]:
    return {
        "case": check.group or None,
        "name": check.name,
        "against": check.against or None,
        "claim": check.claim or None,
        "verdict": check.verdict,
        "reason": check.skipped,
        "measures": [_measure(measure) for measure in check.measures],
        "notes": list(check.notes),
    }


def _backends(found: Backends | None) -> dict[str, Any] | None:
    """Return the comparison of NumPy and torch as JSON values; None if it was skipped."""
    if found is None:
        return None
    heads = [
        {"layer": layer, "head": head, "difference": json_number(float(difference))}
        for (layer, head), difference in np.ndenumerate(found.apart)
    ]
    counts = {"texts": found.texts, "tokens": found.tokens}
    return {"dtypes": dict(found.dtypes), **counts, "heads": heads}


def _measure(measure: ComparedNumber) -> dict[str, Any]:
    return {
        "name": measure.name,
        "difference": measure.difference if math.isfinite(measure.difference) else None,
        "tolerance": measure.tolerance.value,
        "passed": measure.passed,
        "epsilon": measure.tolerance.epsilon,
        "roundings": measure.tolerance.roundings,
        "largest": measure.tolerance.largest,
        "reason": measure.reason or None,
        "where": measure.where or None,
    }


def _step(step: ComputationStep, numbers: bool) -> dict[str, Any]:
    return {
        "name": step.name,
        "formula": step.formula,
        "axes": list(step.axes),
        "note": step.note or None,
        "given": [_matrix(matrix, numbers) for matrix in step.given],
        "found": [_matrix(matrix, numbers) for matrix in step.found],
    }


def _matrix(matrix: Matrix, numbers: bool) -> dict[str, Any]:
    """Return a named array of a computation as JSON values, with null for a hidden score.

    numbers: True includes ``values``; else only the symbol and the shape.
    """
    found: dict[str, Any] = {"symbol": matrix.symbol, "shape": list(matrix.shape)}
    if numbers:
        found["values"] = _listed(matrix.values.tolist())
    return found


def _listed(values: Any) -> Any:
    if isinstance(values, list):
        return [_listed(value) for value in values]
    return json_number(values)


def verification_rows(found: VerifyReport) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, then one row per measure or skipped check; NaN is an empty cell.

    The columns begin with case, check, against, verdict, measure, difference and tolerance.
    """
    yield _COLUMNS
    for check in found.checks:
        start = (check.group, check.name, check.against, check.verdict)
        for measure in check.measures:
            tolerance = measure.tolerance
            yield (
                *start,
                *(measure.name, json_number(measure.difference), tolerance.value),
                *(tolerance.roundings, tolerance.largest, measure.where, measure.reason),
            )
        if check.skipped is not None:
            yield (*start, *[None] * 6, check.skipped)
