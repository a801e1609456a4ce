"""A report for programs: the object of ``--json`` and the table of ``--save FILE.csv``.

Indices start at 0 whatever the names on the screen show; what was not measured is null or empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attnviz.draw.values import json_number, known_label_facts, model_facts, table_of, token_facts
from attnviz.inspect.interventions.patch.records import (
    AskedToken,
    PairRuns,
    PatchEffect,
    PatchReport,
)
from attnviz.inspect.interventions.patch.words import base_tokens

SCHEMA = "attnviz.patch/1"


def patch_data(report: PatchReport) -> dict[str, Any]:
    """Return the report of patching as one JSON object.

    ``heads`` has an entry for each patch; ``head`` is null for ``--what mlp`` and ``residual``.
    ``clean`` and ``corrupt`` are the prompts of the first pair; ``metric`` is the mean over all
    pairs.
    """
    report = replace(report, index_base=0)
    first = report.pairs[0]
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "kind": report.kind,
        **_pair(first, report.clean_metric, report.corrupt_metric),
        "what": report.what,
        "direction": report.direction,
        "at": report.at,
        "metric": report.metric,
        "method": report.method,
        "ratio": report.ratio,
        "reason": report.why or None,
        "control": report.control or None,
        "source": report.source or None,
        "pair_count": len(report.pairs),
        "complete": report.complete,
        "seed": report.seed,
        "seconds": round(report.seconds, 3),
        "notes": list(report.notes),
        "query_heads_per_head": report.group,
        "rank_correlation": json_number(report.rank_correlation),
        "heads": [_effect(report, effect) for effect in report.effects],
        "together": None if report.together is None else _effect(report, report.together),
    }
    if report.by_token is not None:
        tokens, found = base_tokens(report), report.by_token
        data["by_token"] = [
            {
                "index": token,
                "token": tokens.texts[token],
                "layer": place[0],
                "head": None if report.whole_layers else place[1],
                "effect" if report.ratio else "change": json_number(float(value)),
            }
            for token, row in zip(found.tokens, found.values, strict=True)
            for place, value in zip(found.places, row, strict=True)
        ]
    if len(report.pairs) > 1:
        data["pairs"] = [_pair(one, one.clean_metric, one.corrupt_metric) for one in report.pairs]
    return data


def _word(word: AskedToken | None) -> dict[str, Any] | None:
    return None if word is None else {"id": word.id, "token": word.text}


def _pair(pair: PairRuns, clean: float, corrupt: float) -> dict[str, Any]:
    return {
        "clean": {**token_facts(pair.tokens.clean), "metric": json_number(clean)},
        "corrupt": {**token_facts(pair.tokens.corrupt), "metric": json_number(corrupt)},
        "answer": _word(pair.answer),
        "foil": _word(pair.foil),
    }


def _effect(report: PatchReport, effect: PatchEffect) -> dict[str, Any]:
    layer, head = effect.places[0]
    one, share = len(effect.places) == 1, effect.share
    entry: dict[str, Any] = {
        "layer": layer if one else None,
        "head": head if one and not report.whole_layers else None,
        "name": report.names(effect),
        **({} if one else {"heads": [list(place) for place in effect.places]}),
        "effect": json_number(share.value),
        "metric": json_number(effect.metric),
        "change": json_number(effect.change),
    }
    if len(report.pairs) > 1:
        entry["ci_low"], entry["ci_high"] = map(json_number, share.interval or (None, None))
    entry["base_rate"] = json_number(share.base_rate)
    if share.adjusted is not None:
        entry["carries"] = effect.carries
        entry["adjusted_p"] = json_number(share.adjusted)
    if report.fdr:
        entry["q"] = json_number(effect.q)
    if report.method != "exact":
        entry["gradient"] = json_number(effect.gradient)
    known = report.labels.get(effect.places[0]) if one else None
    if known is not None:
        entry["label"] = known_label_facts(known)
    return entry


def patch_rows(report: PatchReport) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, then a row for each patch: name, layer, head, effect and others."""
    names = ("effect", "metric", "change", "ci_low", "ci_high", "base_rate", "q", "gradient")
    data = patch_data(report)
    entries = [*data["heads"], *[data["together"]] * (data["together"] is not None)]
    rows = ({**entry, "pairs": data["pair_count"]} for entry in entries)
    return table_of(("name", "layer", "head", "pairs", *names), rows)
