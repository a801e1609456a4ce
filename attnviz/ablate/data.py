"""A report for programs: the object of ``--json`` and the table of ``--save FILE.csv``.

Indices start at 0 whatever the names on the screen show; what was not measured is null or empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnviz.ablate.records import AblationReport, Effect, Head
from attnviz.draw.values import json_number, label_facts, model_facts
from attnviz.engine.effects import METRICS
from attnviz.records import Tokens

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

SCHEMA = "attnviz.ablate/1"


def ablation_data(report: AblationReport) -> dict[str, Any]:
    """Everything of a report as one JSON object.

    ``heads`` holds an entry an ablation of the report's unit, in the order of the scan, and
    ``together`` the heads that were ablated at once. Of ``--method gradient`` and of what a budget
    left out, ``heads`` has the gradients alone.
    """
    report = replace(report, index_base=0)
    many = len(report.texts) > 1
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "text": report.text,
        "source": report.source or None,
        "kind": report.kind,
        **(_tokens(report.texts[0]) if report.texts else {"tokens": [], "token_ids": []}),
        **({"texts": [_tokens(tokens) for tokens in report.texts]} if many else {}),
        **({"targets": [_tokens(tokens) for tokens in report.targets]} if report.targets else {}),
        "text_count": len(report.texts),
        "mode": report.mode,
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
        "complete": report.complete,
        "seconds": round(report.seconds, 3),
        "notes": list(report.notes),
        "baseline": _numbers(report.baseline),
        "rank_correlation": json_number(report.rank_correlation),
        "heads": [
            *(_effect(report, effect) for effect in report.singles),
            *(_hint(report, head) for head in _unmeasured(report)),
        ],
        "together": [_effect(report, effect) for effect in report.joint],
    }


def write_ablation_json(report: AblationReport, stream: SupportsWrite[str]) -> None:
    """Write ``ablation_data``, ASCII only, a line for each ablation."""
    document = ablation_data(report)
    lists = {name: document.pop(name) for name in ("heads", "together")}
    stream.write(json.dumps(document, allow_nan=False).removesuffix("}"))
    for name, entries in lists.items():
        lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
        stream.write(f',\n"{name}": [\n{lines}\n]' if lines else f',\n"{name}": []')
    stream.write("}\n")


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {"tokens": list(tokens.texts), "token_ids": list(tokens.ids)}


def _numbers(values: Mapping[Any, float]) -> dict[str, float | None]:
    return {name: json_number(value) for name, value in values.items()}


def _metrics(effect: Effect) -> dict[str, float | None]:
    return {name: json_number(effect.values.get(name)) for name in METRICS}


def _effect(report: AblationReport, effect: Effect) -> dict[str, Any]:
    """One ablation: its heads, its metrics, and what is known of their doubt."""
    variant, head = effect.variant, effect.head
    entry: dict[str, Any] = {
        "layer": variant.layer if len(variant.layers) == 1 else None,
        "head": head[1] if head else None,
        "name": report.name(variant),
        "removed": [list(each) for each in variant.heads],
        **_metrics(effect),
    }
    if effect.texts > 1:  # of few texts there is no interval
        ends = {name: [*map(json_number, pair)] for name, pair in effect.intervals.items()}
        entry["ci_low"], entry["ci_high"] = ends.get(report.metric, (None, None))
        entry["intervals"] = ends
    if report.metric in effect.adjusted:
        entry["adjusted_p"] = json_number(effect.adjusted[report.metric])
    if effect.errors:
        entry["standard_errors"] = _numbers(effect.errors)
    if head is not None and head in report.gradients:
        entry["gradient"] = json_number(report.gradients[head])
    if head is not None and head in report.labels:
        entry["trait"] = label_facts(report.labels[head])
    for control in report.control:
        if control.variant.heads == variant.heads:
            entry["random_direction"] = _metrics(control)
    if report.by_token and effect.token_losses:
        entry["token_loss_deltas"] = [
            [json_number(value) for value in losses.tolist()] for losses in effect.token_losses
        ]
    return entry


def _hint(report: AblationReport, head: Head) -> dict[str, Any]:
    """A head that has a gradient and no measurement."""
    entry = {"layer": head[0], "head": head[1], "gradient": json_number(report.gradients[head])}
    label = report.labels.get(head)
    return {**entry, "trait": label_facts(label)} if label is not None else entry


def _unmeasured(report: AblationReport) -> list[Head]:
    """The heads of which only the gradient is known."""
    measured = {effect.head for effect in report.effects}
    return [head for head in report.gradients if head not in measured]


def ablation_rows(report: AblationReport) -> Iterator[tuple[object, ...]]:
    """The header; a row for each ablation; one for each head with nothing but its gradient.

    ``ci_low`` and ``ci_high`` bound the mean of the report's metric over several texts.
    """
    ends = ("ci_low", "ci_high")
    yield ("name", "layer", "head", "removed", "texts", *METRICS, *ends, "gradient")
    for effect in report.effects:
        variant, head = effect.variant, effect.head
        yield (
            report.name(variant, 0),
            variant.layer if len(variant.layers) == 1 else "",
            head[1] if head else "",
            " ".join(f"L{layer}H{each}" for layer, each in variant.heads),
            effect.texts,
            *(effect.values.get(name, "") for name in METRICS),
            *effect.intervals.get(report.metric, ("", "")),
            report.gradients.get(head, "") if head is not None else "",
        )
    blank = ("",) * (len(METRICS) + len(ends))
    for layer, place in _unmeasured(report):
        name = f"L{layer}H{place}"
        yield (name, layer, place, name, len(report.texts), *blank, report.gradients[layer, place])
