"""A report on a model for programs: the object of ``--json``, and a row for each head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attnviz.count.params.params import params_data
from attnviz.draw.values import json_number, model_facts, table_of
from attnviz.inspect.head.data import card_data
from attnviz.inspect.interventions.ablate.data import effect_entry
from attnviz.inspect.patterns.report import score_entry
from attnviz.inspect.report.records import ModelReport

SCHEMA = "attnviz.report/1"

_COLUMNS = ("layer", "head", "label", "score", "loss_delta", "ci_low", "ci_high", "adjusted_p")


def report_data(report: ModelReport) -> dict[str, Any]:
    """Return a whole report on a model as one JSON object; indices start at 0."""
    ablation = None if report.ablation is None else replace(report.ablation, index_base=0)
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "source": report.source or None,
        "seed": report.seed,
        "index_base": 0,
        "complete": report.complete,
        "notes": list(report.notes),
        "missing": dict(report.missing),
        "vocabulary": report.vocabulary,
        "context": report.context,
        "params": None if report.counted is None else params_data(report.counted.counted),
        "labels": None
        if report.scored is None
        else [score_entry(entry) for entry in report.scored.heads],
        "ablation": None
        if ablation is None
        else {
            "method": ablation.method,
            "metric": ablation.metric,
            "texts": len(ablation.texts),
            "baseline": {name: json_number(each) for name, each in ablation.baseline.items()},
            "heads": [effect_entry(ablation, effect) for effect in ablation.singles],
        },
        "cards": [card_data(card) for card in report.cards],
    }


def report_rows(report: ModelReport) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, then a row for each head: its label, its score, its ablation effect."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for entry in report.scored.heads if report.scored is not None else ():
        score = json_number(entry.score)
        facts = {"layer": entry.layer, "head": entry.head, "label": entry.label, "score": score}
        found[entry.layer, entry.head] = facts
    for effect in report.ablation.singles if report.ablation is not None else ():
        if report.ablation is not None and effect.head is not None:
            layer, head = effect.head
            row = found.setdefault(effect.head, {"layer": layer, "head": head})
            entry_of = effect_entry(report.ablation, effect)
            row |= {name: entry_of.get(name) for name in _COLUMNS[4:]}
    return table_of(_COLUMNS, found.values())
