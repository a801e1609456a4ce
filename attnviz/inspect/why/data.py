"""The report for programs: the object of ``--json`` and the table of ``--save FILE.csv``.

Indices start at 0 whatever the names on the screen show. If the parts do not sum to the logit, they
are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, BinaryIO

import numpy as np

from attnviz.draw.values import json_number, known_label_facts, model_facts, table_of, token_facts
from attnviz.engine.attribution.parts import Part
from attnviz.inspect.why.records import ExplainedPrompt, HeadEffect, WhyReport

SCHEMA = "attnviz.why/1"


def why_data(report: WhyReport) -> dict[str, Any]:
    """Return the whole report as one JSON object; for many prompts the parts are means."""
    effects = {effect.head: effect for effect in report.effects} if report.tallies else {}
    first = report.first
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "prompt": first.text,
        "source": report.source or None,
        **_asked(first),
        **_sums(report.prompts),
        "tolerance": json_number(max(each.found.tolerance for each in report.prompts)),
        "tallies": report.tallies,
        "seed": report.seed,
        "notes": list(report.notes),
        "controls": len(first.base),
        **({} if report.inputs is None else {"inputs": report.inputs.data()}),
        "parts": [_part(report, part, effects) for part in first.found.parts]
        if report.tallies
        else [],
        **({"prompts": [_prompt(each) for each in report.prompts]} if report.many else {}),
        **({"maps": _maps(report)} if report.shown else {}),
    }


def _asked(each: ExplainedPrompt) -> dict[str, Any]:
    found, given = each.found, each.given
    words = each.words
    return {
        **token_facts(given.text),
        **(
            {}
            if given.target is None
            else {"target_tokens": list(given.target.texts), "target_ids": list(given.target.ids)}
        ),
        "position": found.position,
        "answer": {"id": found.answer, "token": words[found.answer]},
        **({"labels": list(found.labels)} if found.labels else {}),
        **({} if found.span is None else {"span": found.span._asdict()}),
        **({"several_labels": True} if found.several else {}),
        "foil": None if found.foil is None else {"id": found.foil, "token": words[found.foil]},
        "top": [{"id": one, "token": words[one], "probability": p} for one, p in found.top],
    }


def _sums(prompts: Sequence[ExplainedPrompt]) -> dict[str, Any]:
    """Return the logit, the logit before the softcap, and the sum of the parts, as JSON values.

    Each is the mean over the prompts.
    """
    found = [each.found for each in prompts]
    uncapped = [each.uncapped for each in found if each.uncapped is not None]
    return {
        "logit": json_number(fmean(each.logit for each in found)),
        "uncapped": json_number(fmean(uncapped)) if uncapped else None,
        "softcap": found[0].softcap,
        "sum": json_number(fmean(each.sum for each in found)),
    }


def _prompt(each: ExplainedPrompt) -> dict[str, Any]:
    heads = [
        {"attention": kind, "layer": layer, "head": head, "contribution": json_number(value)}
        for (kind, layer, head), value in each.found.heads.items()
    ]
    return {
        "prompt": each.text,
        **_asked(each),
        **_sums([each]),
        "controls": len(each.base),
        "heads": heads,
    }


def _part(report: WhyReport, part: Part, effects: Mapping[Any, HeadEffect]) -> dict[str, Any]:
    """Return the JSON object of one summand of the logit; for a head also sources, label, interval.

    effects: what each head writes, by the key of the head.
    """
    entry: dict[str, Any] = {"kind": part.kind, "layer": part.layer, "head": part.head}
    if part.attention is None or part.layer is None or part.head is None:
        mean = report.part(part.kind, part.layer) if part.layer is not None else part.contribution
        if report.many and part.layer is None:
            mean = _mean_of(report, part)
        return {**entry, "contribution": json_number(mean)}
    key = (part.attention, part.layer, part.head)
    entry["attention"] = part.attention
    effect = effects.get(key)
    entry["contribution"] = json_number(part.contribution if effect is None else effect.value)
    row, label = report.first.found.rows.get(key), report.labels.get(key)
    if not report.many and row is not None:
        entry["by_token"] = [json_number(value) for value in np.asarray(row, float).tolist()]
    if effect is not None:
        low, high = effect.interval or (None, None)
        entry |= {"ci_low": low, "ci_high": high} if report.many else {}
        entry |= {"base_rate": json_number(effect.base), "stands_out": effect.clear}
        entry["p"] = json_number(effect.p)
    if label is not None:
        entry["label"] = known_label_facts(label)
    return entry


def _mean_of(report: WhyReport, part: Part) -> float:
    return sum(
        one.contribution
        for each in report.prompts
        for one in each.found.parts
        if one[:1] == part[:1] and one[2:] == part[2:]
    ) / len(report.prompts)


def _maps(report: WhyReport) -> list[dict[str, Any]]:
    return [
        {
            "attention": kind,
            "layer": layer,
            "head": head,
            "contributions": [
                [json_number(value) for value in row]
                for row in np.asarray(report.first.found.maps[kind, layer, head], float).tolist()
            ],
        }
        for kind, layer, head in report.shown
    ]


def why_rows(report: WhyReport) -> Iterator[tuple[object, ...]]:
    names = ("kind", "attention", "layer", "head", "contribution", "ci_low", "ci_high")
    parts = why_data(report)["parts"]
    entries = ({**part, "label": (part.get("label") or {}).get("name")} for part in parts)
    return table_of((*names, "base_rate", "stands_out", "label", "p"), entries)


def write_why_npz(report: WhyReport, stream: BinaryIO) -> None:
    """Write a NumPy archive: contributions (prompt, head), head names, rows and maps.

    The rows and maps, by source token, are those of a single prompt.
    """
    names = [report.name(key, 0) for key in report.first.found.heads]
    arrays: dict[str, Any] = {
        "heads": np.array(names),
        "contributions": np.array([list(each.found.heads.values()) for each in report.prompts]),
        "logits": np.array([each.found.decomposed for each in report.prompts]),
    }
    rows = report.first.found.rows
    arrays |= {f"by_token_{report.name(key, 0)}": np.asarray(row) for key, row in rows.items()}
    maps = report.first.found.maps
    arrays |= {f"map_{report.name(key, 0)}": np.asarray(found) for key, found in maps.items()}
    np.savez(
        stream, allow_pickle=False, **{name.replace(" ", "_"): a for name, a in arrays.items()}
    )
