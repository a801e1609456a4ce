"""The report of ``link`` for programs: the object of ``--json``, the table and the arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from attnviz.draw.values import json_number, model_facts, table_of, token_facts
from attnviz.inspect.link.choice import LinkChoice
from attnviz.inspect.link.records import LinkedPrompt, LinkPart, LinkReport

SCHEMA = "attnviz.link/1"


def link_data(report: LinkReport) -> dict[str, Any]:
    """Return the whole report as one JSON object; for many prompts the parts are means."""
    first, found = report.first, report.first.found
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "prompt": first.text,
        "source": report.source or None,
        "chosen": _choice(report.chosen),
        **_link(first),
        "softcap": found.softcap,
        "tolerance": json_number(max(each.found.tolerance for each in report.prompts)),
        "tallies": report.tallies,
        "seed": report.seed,
        "notes": list(report.notes),
        "controls": report.controls,
        **(
            {"prompts": [{"prompt": each.text, **_link(each)} for each in report.prompts]}
            if report.many
            else {}
        ),
        "parts": [_part(report, part) for part in report.parts] if report.tallies else [],
        "pairs": _pairs(first) if report.tallies and not report.many else [],
    }


def _link(each: LinkedPrompt) -> dict[str, Any]:
    """Return the facts about one link: where it is, its weight, score and lead."""
    kind, layer, head = each.asked.head
    found, key = each.found, each.asked.key
    cap = found.softcap
    return {
        **token_facts(each.tokens),
        "attention": kind,
        "layer": layer,
        "head": head,
        "query": each.asked.query,
        "key": key,
        "than": each.asked.than,
        "visible": len(found.visible),
        "weight": json_number(each.weight),
        "score": json_number(float(found.scores[key])),
        "capped": None if cap is None else json_number(cap * np.tanh(found.scores[key] / cap)),
        "sum": json_number(each.sum),
        "lead": json_number(each.lead),
    }


def _choice(chosen: LinkChoice | None) -> dict[str, Any] | None:
    """Return why a link was chosen; None if a person named a part of it."""
    if chosen is None:
        return None
    link = chosen.link
    return {
        "pairs": chosen.pairs,
        "habit": None if link is None else json_number(link.habit),
        "heads": None if link is None else link.heads,
        "chance": None if link is None else json_number(link.chance),
        "beats_chance": link is not None and link.beats_chance,
        "induction": chosen.induction,
    }


def _part(report: LinkReport, part: LinkPart) -> dict[str, Any]:
    by = part.part
    entry: dict[str, Any] = {
        "side": part.side,
        "kind": "distance" if by is None else by.kind,
        "layer": None if by is None else by.layer,
        "head": None if by is None else by.head,
        "lead": json_number(part.lead),
        "base_rate": json_number(part.base),
        "reached": part.reached,
        "weight_without": json_number(part.without),
    }
    if by is not None and by.crosses:
        entry["attention"] = "cross"
    if report.many:
        low, high = part.interval or (None, None)
        entry |= {"ci_low": json_number(low), "ci_high": json_number(high)}
        return entry | {"p": json_number(part.p), "stands_out": part.stands_out}
    if by is not None:
        row = report.first.found.sources.get((part.side, report.first.found.parts.index(by)))
        entry["by_token"] = None if row is None else [json_number(each) for each in row.tolist()]
    return entry


def _pairs(each: LinkedPrompt) -> list[dict[str, Any]]:
    """Return score and lead of each pair of a part of the query and one of the key, by index."""
    scores = each.found.matrix(np.eye(len(each.found.weights))[each.asked.key])
    leads, parts = each.found.matrix(each.towards), len(each.found.parts)
    return [
        {
            "query": query,
            "key": parts + key,
            "score": json_number(float(scores[query, key])),
            "lead": json_number(float(leads[query, key])),
        }
        for query in range(parts)
        for key in range(parts)
    ]


def link_rows(report: LinkReport) -> Iterator[tuple[object, ...]]:
    names = ("side", "kind", "layer", "head", "lead", "ci_low", "ci_high", "base_rate", "reached")
    return table_of((*names, "p", "stands_out", "weight_without"), link_data(report)["parts"])


def write_link_npz(report: LinkReport, stream: BinaryIO) -> None:
    """Write a NumPy archive: scores and leads (prompt, part of query, part of key), and names."""
    prompts = report.prompts
    scores = [
        each.found.matrix(np.eye(len(each.found.weights))[each.asked.key]) for each in prompts
    ]
    np.savez(
        stream,
        allow_pickle=False,
        names=np.array([report.name(part) for part in report.first.found.parts]),
        score_parts=np.array(scores),
        lead_parts=np.array([each.found.matrix(each.towards) for each in prompts]),
        weights=np.array([each.weight for each in prompts]),
    )
