"""What ``attnviz check`` writes for programs: the object of ``--json`` and the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnviz.draw.values import json_number, model_facts
from attnviz.inspect.check.records import CheckReport, Outcome

SCHEMA = "attnviz.check/1"


def check_data(report: CheckReport) -> dict[str, Any]:
    """Return the report of a check as JSON values.

    ``model`` is the model's name alone if only its config was counted.
    """
    model = {"name": report.name} if report.info is None else model_facts(report.info)
    return {
        "schema": SCHEMA,
        "model": model,
        "file": str(report.path),
        "passed": report.passed,
        "failed": len(report.failed),
        "warnings": len(report.warned),
        "seconds": round(report.seconds, 3),
        "notes": list(report.notes),
        "rules": [_rule(outcome) for outcome in report.outcomes],
    }


def _rule(outcome: Outcome) -> dict[str, Any]:
    rule = outcome.rule
    return {
        "name": rule.name,
        "passed": outcome.passed,
        "value": json_number(outcome.value),
        "bound": {"at_least": rule.bounds.at_least, "at_most": rule.bounds.at_most},
        "unit": outcome.unit or None,
        "warning": rule.warning,
        "measured_on": outcome.measured_on,
        "detail": outcome.detail or None,
        "line": rule.line or None,
    }


def check_rows(report: CheckReport) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, and a row for each rule in the order of the file.

    Columns: name, passed, value, at_least, at_most, unit, warning, measured_on.
    """
    yield ("name", "passed", "value", "at_least", "at_most", "unit", "warning", "measured_on")
    for outcome in report.outcomes:
        rule = outcome.rule
        bounds = rule.bounds
        value = json_number(outcome.value)
        yield (
            *(rule.name, outcome.passed, value, bounds.at_least, bounds.at_most),
            *(outcome.unit, rule.warning, outcome.measured_on),
        )
