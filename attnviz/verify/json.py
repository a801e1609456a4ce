"""The object that ``attnviz verify --json`` prints and ``--save FILE.json`` writes."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from attnviz.draw.model_facts import model_facts
from attnviz.verify.records import Check, Matrix, Measure, Step, Verification
from attnviz.verify.steps_screen import numbers_shown

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["SCHEMA", "verification_document", "write_verification_json"]

SCHEMA = "attnviz.verify/1"


def verification_document(found: Verification) -> dict[str, Any]:
    """Everything of a verification; ``model`` is null where the own attention was verified.

    A ``difference`` that is no number or endless is null, and its measure has failed.
    """
    return {
        "schema": SCHEMA,
        "model": None if found.model is None else model_facts(found.model),
        "passed": not found.failed,
        "passes": found.count("pass"),
        "failures": found.count("fail"),
        "skips": found.count("skipped"),
        "dtype": found.dtype,
        "tolerance": {"epsilon": found.epsilon, "dtype": found.rounds_in, "formula": _FORMULA},
        "sizes": None if found.sizes is None else asdict(found.sizes),
        "text": found.text,
        "target": found.target,
        "tokens": list(found.tokens),
        "versions": dict(found.versions),
        "cases": dict(found.cases),
        "checks": [_check(check) for check in found.checks],
        "causal": found.causal if found.steps else None,
        "steps": [_step(step, numbers_shown(found)) for step in found.steps],
    }


_FORMULA = "4 * epsilon * sqrt(roundings) * largest"


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


def _measure(measure: Measure) -> dict[str, Any]:
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


def _step(step: Step, numbers: bool) -> dict[str, Any]:
    return {
        "name": step.name,
        "formula": step.formula,
        "axes": list(step.axes),
        "note": step.note or None,
        "given": [_matrix(matrix, numbers) for matrix in step.given],
        "found": [_matrix(matrix, numbers) for matrix in step.found],
    }


def _matrix(matrix: Matrix, numbers: bool) -> dict[str, Any]:
    """A matrix; ``values`` only where they are few, null where a score is hidden."""
    found: dict[str, Any] = {"symbol": matrix.symbol, "shape": list(matrix.shape)}
    if numbers:
        found["values"] = _listed(matrix.values.tolist())
    return found


def _listed(values: Any) -> Any:
    if isinstance(values, list):
        return [_listed(value) for value in values]
    return values if math.isfinite(values) else None


def write_verification_json(found: Verification, stream: SupportsWrite[str]) -> None:
    """Write ``verification_document``, ASCII only."""
    stream.write(json.dumps(verification_document(found), allow_nan=False) + "\n")
