"""A report for programs: the object of ``--json`` and the table of ``--save FILE.csv``.

Indices start at 0 whatever the names on the screen show; what was not measured is null or empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from attnviz.draw.signed import Place
from attnviz.draw.values import (
    json_number,
    json_numbers,
    label_facts,
    model_facts,
    table_of,
    token_facts,
)
from attnviz.engine.effects import METRICS
from attnviz.inspect.interventions.ablate.records import AblationReport, Effect

SCHEMA = "attnviz.ablate/1"


def ablation_data(report: AblationReport) -> dict[str, Any]:
    """Return a report as one JSON object.

    ``heads`` has an entry for each ablation of a head (or other unit of the report), in the order
    of the scan, and ``together`` one for each set of heads that were ablated together. Heads that
    were not measured, because of ``--method gradient`` or a budget, have only their gradients in
    ``heads``.
    """
    report = replace(report, index_base=0)
    many = len(report.texts) > 1
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "text": report.text,
        "source": report.source or None,
        "kind": report.kind,
        **(token_facts(report.texts[0]) if report.texts else {"tokens": [], "token_ids": []}),
        **({"texts": [*map(token_facts, report.texts)]} if many else {}),
        **({"targets": [*map(token_facts, report.targets)]} if report.targets else {}),
        "text_count": report.text_count,
        "mode": "edge" if report.edges else report.mode,
        **({"edges": [edge._asdict() for edge in report.edges]} if report.edges else {}),
        "reference": report.reference,
        "draws": report.draws,
        "unit": report.unit,
        "method": report.method,
        "positions": report.positions,
        "metric": report.metric,
        "seed": report.seed,
        "index_base": report.index_base,
        "answer": report.answer,
        "foil": report.foil,
        **({"labels": list(report.classes)} if report.classes else {}),
        "complete": report.complete,
        "seconds": round(report.seconds, 3),
        "notes": list(report.notes),
        "baseline": json_numbers(report.baseline),
        "rank_correlation": json_number(report.rank_correlation),
        **({} if math.isnan(report.chance) else {"chance": report.chance}),
        "heads": [
            *(effect_entry(report, effect) for effect in report.singles),
            *(_hint(report, head) for head in _unmeasured(report)),
        ],
        "together": [effect_entry(report, effect) for effect in report.joint],
    }


def _metrics(values: Mapping[Any, float | None]) -> dict[str, float | None]:
    return {name: json_number(values.get(name)) for name in METRICS}


def effect_entry(report: AblationReport, effect: Effect) -> dict[str, Any]:
    """Return the JSON object of one ablation: its heads and its metrics."""
    variant, head, found = effect.variant, effect.head, effect.means
    entry: dict[str, Any] = {
        "layer": variant.layer if len(variant.layers) == 1 else None,
        "head": head[1] if head else None,
        "name": report.name(variant),
        "removed": [list(each) for each in variant.heads],
        **_metrics({name: one.value for name, one in found.items()}),
    }
    if effect.texts > 1:  # of few texts there is no interval
        ends = {
            name: [*map(json_number, one.interval)]
            for name, one in found.items()
            if one.interval is not None
        }
        entry["ci_low"], entry["ci_high"] = ends.get(report.metric, (None, None))
        entry["intervals"] = ends
    ranked_by = effect.shown(report.metric)
    if ranked_by.adjusted is not None:
        entry["adjusted_p"] = json_number(ranked_by.adjusted)
    errors = {name: one.error for name, one in found.items() if one.error is not None}
    if errors:
        entry["standard_errors"] = json_numbers(errors)
    if head is not None and head in report.gradients:
        entry["gradient"] = json_number(report.gradients[head])
    if head is not None and head in report.labels:
        entry["trait"] = label_facts(report.labels[head])
    if any(one.base_rate is not None for one in found.values()):
        control = "random_edges" if report.edges else "random_direction"
        entry[control] = _metrics({name: one.base_rate for name, one in found.items()})
    if report.edges:
        entry["edge_weight"] = json_number(report.edge_weight(variant))
    if report.by_token and effect.token_losses:
        entry["token_loss_deltas"] = [
            [json_number(value) for value in losses.tolist()] for losses in effect.token_losses
        ]
    return entry


def _hint(report: AblationReport, head: Place) -> dict[str, Any]:
    entry = {"layer": head[0], "head": head[1], "gradient": json_number(report.gradients[head])}
    label = report.labels.get(head)
    return {**entry, "trait": label_facts(label)} if label is not None else entry


def _unmeasured(report: AblationReport) -> list[Place]:
    measured = {effect.head for effect in report.effects}
    return [head for head in report.gradients if head not in measured]


def ablation_rows(report: AblationReport) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, a row for each ablation, and one for each head with only a gradient.

    The columns are the keys of ``effect_entry``. ``ci_low`` and ``ci_high`` bound the mean of the
    report's metric over several texts.
    """
    report = replace(report, index_base=0)
    rows = [
        {
            **effect_entry(report, effect),
            "texts": effect.texts,
            "removed": _names(effect.variant.heads),
        }
        for effect in report.effects
    ]
    for head in _unmeasured(report):
        name = {"name": _names([head]), "removed": _names([head])}
        rows.append({**_hint(report, head), **name, "texts": report.text_count})
    names = ("name", "layer", "head", "removed", "texts")
    return table_of((*names, *METRICS, "ci_low", "ci_high", "gradient"), rows)


def _names(heads: Iterable[Place]) -> str:
    return " ".join(f"L{layer}H{head}" for layer, head in heads)
