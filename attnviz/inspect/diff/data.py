"""The output of ``attnviz diff`` for programs: the object of ``--json``, the rows of a table.

Indices start at 0 whatever the screen shows; what was not measured is null or empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnviz.draw.values import json_number, json_numbers, model_facts
from attnviz.inspect.diff.compare import Predictions
from attnviz.inspect.diff.records import DiffReport, HeadChange
from attnviz.inspect.diff.words import SAME

SCHEMA = "attnviz.diff/1"


def diff_data(report: DiffReport) -> dict[str, Any]:
    """Return the report of a comparison as JSON values, except its example maps.

    ``heads`` has an entry for each pair of heads. ``kl`` (nats) and ``same_top`` are means over
    ``positions``, their errors standard errors. ``noise`` is how far either model differs from
    itself in another number format; ``noise_floor`` is the bound in bits above which the interval
    of ``js_divergence`` must lie. If both models are the same, nothing was measured: the numbers
    are null, ``heads`` is empty and ``notes`` says so.
    """
    floor = report.floor
    return {
        "schema": SCHEMA,
        "model_a": model_facts(report.a),
        "model_b": model_facts(report.b),
        "condition": report.condition or None,
        "saved": report.saved,
        "kind": report.kind,
        "causal": report.causal,
        "source": report.source or None,
        "text_count": report.texts,
        "token_count": report.tokens,
        "stride": report.stride,
        "matched": report.matched,
        "noise_floor": None if floor is None else json_number(floor.js),
        "noise": None
        if floor is None
        else {
            "against": report.floor_words,
            "output_change": json_number(floor.output),
            **_predictions(report.floor_predictions),
        },
        **_predictions(report.predictions),
        "tests": report.family,
        "changed": len(report.changed),
        "output_changed": sum(change.output_changed for change in report.changes),
        "unmatched_a": [list(head) for head in report.unmatched_a],
        "unmatched_b": [list(head) for head in report.unmatched_b],
        "index_base": 0,
        "seconds": round(report.seconds, 3),
        "notes": [*report.notes, *([f"{SAME}: nothing was measured"] if report.same else [])],
        "heads": [_head(report, change) for change in report.changes],
    }


def _predictions(found: Predictions | None) -> dict[str, float | None]:
    names = ("kl", "kl_error", "same_top", "same_top_error", "positions")
    return {name: json_number(None if found is None else getattr(found, name)) for name in names}


def _head(report: DiffReport, change: HeadChange) -> dict[str, Any]:
    low, high = change.ends or (None, None)
    found: dict[str, Any] = {
        "layer": change.place[0],
        "head": change.place[1],
        "js_divergence": json_number(change.js),
        "ci_low": json_number(low),
        "ci_high": json_number(high),
        "changed": change.changed,
        "label_a": change.a.label,
        "label_b": change.b.label,
        "scores_a": json_numbers(change.a.scores),
        "scores_b": json_numbers(change.b.scores),
        "js_divergence_no_sink": json_number(change.no_sink),
        "output_change": json_number(change.output),
        "output_ci": [*map(json_number, change.output_ends or (None, None))],
        "output_changed": change.output_changed,
        "moves": [
            {
                "score": move.name,
                "change": json_number(move.change),
                "p": json_number(move.p),
                "texts": move.texts,
                "significant": move.significant,
            }
            for move in change.moves
        ],
    }
    if report.matched:
        found |= {"layer_b": change.other[0], "head_b": change.other[1]}
    if report.importance:
        for name, state in (("a", change.a), ("b", change.b)):
            found[f"loss_delta_{name}"] = json_number(state.effect)
            found[f"loss_delta_{name}_ci"] = [*map(json_number, state.effect_ends or (None, None))]
    return found


def diff_rows(report: DiffReport) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, and a row for each pair of heads.

    ``a.NAME`` and ``b.NAME`` are pattern scores in both models. The other columns begin with layer,
    head, layer_b, head_b and js_divergence.
    """
    names = dict.fromkeys(
        name for change in report.changes for state in (change.a, change.b) for name in state.scores
    )
    yield (
        *("layer", "head", "layer_b", "head_b", "js_divergence", "ci_low", "ci_high", "changed"),
        *("js_divergence_no_sink", "output_change", "output_changed", "label_a", "label_b"),
        *("loss_delta_a", "loss_delta_b"),
        *(f"{side}.{name}" for name in names for side in ("a", "b")),
    )
    for change in report.changes:
        yield (
            *change.place,
            *change.other,
            json_number(change.js),
            *map(json_number, change.ends or (None, None)),
            change.changed,
            json_number(change.no_sink),
            json_number(change.output),
            change.output_changed,
            change.a.label,
            change.b.label,
            json_number(change.a.effect),
            json_number(change.b.effect),
            *(
                json_number(state.scores.get(name))
                for name in names
                for state in (change.a, change.b)
            ),
        )
