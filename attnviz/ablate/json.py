"""The object that ``attnviz ablate --json`` prints and ``--save FILE.json`` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnviz.ablate.names import variant_name
from attnviz.ablate.order import joint_effects, singles, traits_of
from attnviz.ablate.view import AblationView
from attnviz.draw.decimals import json_number
from attnviz.draw.model_facts import model_facts
from attnviz.engine.effects import METRICS, AblationReport, Effect
from attnviz.records import Tokens, Trait

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["SCHEMA", "ablation_document", "write_ablation_json"]

SCHEMA = "attnviz.ablate/1"


def _numbers(values: Mapping[Any, float]) -> dict[str, float | None]:
    return {name: json_number(value) for name, value in values.items()}


def _metrics(effect: Effect) -> dict[str, float | None]:
    return {name: json_number(effect.metric(name)) for name in METRICS}


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {"tokens": list(tokens.texts), "token_ids": list(tokens.ids)}


def _trait(trait: Trait) -> dict[str, Any]:
    return {"name": trait.name, "score": trait.score, "base_rate": trait.base_rate}


def _effect(report: AblationReport, view: AblationView, effect: Effect) -> dict[str, Any]:
    """One removal: its heads, its metrics, and what is known of their doubt."""
    heads = effect.variant.heads
    single = len(heads) == 1
    entry: dict[str, Any] = {
        "layer": heads[0][0] if len(effect.variant.layers) == 1 else None,
        "head": heads[0][1] if single else None,
        "name": variant_name(report, effect.variant, 0),
        "removed": [list(head) for head in heads],
        **_metrics(effect),
    }
    if effect.texts > 1:  # of few texts there is no interval
        entry["ci_low"] = json_number(effect.ci_low.get(report.metric))
        entry["ci_high"] = json_number(effect.ci_high.get(report.metric))
        entry["intervals"] = {
            name: [json_number(low), json_number(effect.ci_high[name])]
            for name, low in effect.ci_low.items()
        }
    if effect.errors:
        entry["standard_errors"] = _numbers(effect.errors)
    if single and heads[0] in report.gradients:
        entry["gradient"] = json_number(report.gradients[heads[0]])
    trait = traits_of(view).get(heads[0]) if single else None
    if trait is not None:
        entry["trait"] = _trait(trait)
    for control in report.control:
        if control.variant.heads == heads:
            entry["random_direction"] = _metrics(control)
    if effect.token_losses:
        entry["token_loss_deltas"] = [
            [json_number(value) for value in losses.tolist()] for losses in effect.token_losses
        ]
    return entry


def _hint(report: AblationReport, view: AblationView, head: tuple[int, int]) -> dict[str, Any]:
    """A head that has a gradient and no measurement."""
    entry = {"layer": head[0], "head": head[1], "gradient": json_number(report.gradients[head])}
    trait = traits_of(view).get(head)
    return {**entry, "trait": _trait(trait)} if trait is not None else entry


def ablation_document(report: AblationReport, view: AblationView) -> dict[str, Any]:
    """Everything of a report as one JSON object; indices start at 0 whatever the names show.

    ``heads`` holds an entry a removal of the report's unit, in the order of the scan, and
    ``together`` the heads that were removed at once. Of ``--method gradient`` and of what a budget
    left out, ``heads`` has the gradients alone.
    """
    measured = singles(report)
    joint = joint_effects(report)
    known = {effect.variant.heads[0] for effect in measured if len(effect.variant.heads) == 1}
    hints = [head for head in report.gradients if head not in known]
    many = len(report.texts) > 1
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "text": view.text,
        "source": view.source or None,
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
        "index_base": 0,
        "answer": view.answer,
        "foil": view.foil,
        "complete": report.complete,
        "seconds": round(report.seconds, 3),
        "notes": list(report.notes),
        "baseline": _numbers(report.baseline),
        "rank_correlation": json_number(report.rank_correlation),
        "heads": [
            *(_effect(report, view, effect) for effect in measured),
            *(_hint(report, view, head) for head in hints),
        ],
        "together": [_effect(report, view, effect) for effect in joint],
    }


def write_ablation_json(
    report: AblationReport, view: AblationView, stream: SupportsWrite[str]
) -> None:
    """Write ``ablation_document``, ASCII only, a line for each removal."""
    document = ablation_document(report, view)
    lists = {name: document.pop(name) for name in ("heads", "together")}
    stream.write(json.dumps(document, allow_nan=False).removesuffix("}"))
    for name, entries in lists.items():
        lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
        stream.write(f',\n"{name}": [\n{lines}\n]' if lines else f',\n"{name}": []')
    stream.write("}\n")
