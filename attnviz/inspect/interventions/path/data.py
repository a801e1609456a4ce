"""A report of paths for programs: the object of ``--json`` and the rows of ``--save FILE.csv``."""

from __future__ import annotations

from typing import Any

from attnviz.draw.values import json_number, model_facts, token_facts
from attnviz.inspect.interventions.path.path import Listener, PathReport

SCHEMA = "attnviz.path/1"


def path_data(report: PathReport) -> dict[str, Any]:
    """Return a whole report of paths as one JSON object."""
    pair = report.pairs[0]
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "sender": {"layer": report.sender[0], "head": report.sender[1]},
        "clean": token_facts(pair.clean),
        "corrupt": token_facts(pair.corrupt),
        "method": "direct path, norms held at the corrupt run",
        "into": report.into,
        "source": report.source or None,
        "pair_count": len(report.pairs),
        "seed": report.seed,
        "notes": list(report.notes),
        "heads": path_entries(report),
    }


def path_entries(report: PathReport) -> list[dict[str, Any]]:
    """Return the JSON objects of the later heads of a report, in its order."""
    return [path_entry(one) for one in report.listeners]


def path_entry(one: Listener) -> dict[str, Any]:
    """Return the JSON object of one later head: the sender's share in one of its inputs."""
    low, high = one.share.interval or (None, None)
    return {
        "layer": one.place[0],
        "head": one.place[1],
        "into": one.into,
        "share": json_number(one.share.value),
        "ci_low": json_number(low),
        "ci_high": json_number(high),
        "other_heads": json_number(one.share.base_rate),
        "explained": json_number(one.explained),
        "moved": json_number(one.moved),
    }
