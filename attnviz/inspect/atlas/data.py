"""The atlas for programs: the JSON object, and a row for each head of the CSV table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnviz.draw.values import json_number, model_facts, table_of
from attnviz.inspect.atlas.records import AtlasReport, Fired, HeadAtlas
from attnviz.inspect.atlas.scan import NAMES
from attnviz.inspect.atlas.tally import distances, edges

SCHEMA = "attnviz.atlas/1"


def atlas_data(report: AtlasReport) -> dict[str, Any]:
    """Return the atlas as a JSON object; indices start at 0."""
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "kind": report.kind,
        "source": report.source or None,
        "index_base": 0,
        "complete": report.complete,
        "notes": list(report.notes),
        "texts": report.texts,
        "tokens": report.tokens,
        "sampled": report.sampled,
        "bins": {name: edges(name).tolist() for name in NAMES},
        "distances": [*distances(report.kind)],
        "heads": [head_data(one) for one in report.heads],
    }


def head_data(one: HeadAtlas) -> dict[str, Any]:
    """Return the atlas of one head as a JSON object, which is a line of ``heads.jsonl``."""
    return {
        "layer": one.layer,
        "head": one.head,
        "scores": dict(one.scores),
        "base_rate": dict(one.base_rate),
        "texts": dict(one.texts),
        "histogram": {name: list(counts) for name, counts in one.histogram.items()},
        "share": one.share,
        "median": json_number(one.median),
        "pattern": one.pattern,
        "prefers": None if one.prefers is None else one.prefers._asdict(),
        "fires": [_place(each) for each in one.fires],
        "tenths": [[_place(each) for each in tenth] for tenth in one.tenths],
        "by_distance": list(one.by_distance),
        "even": list(one.even),
    }


def _place(one: Fired) -> dict[str, Any]:
    link = one.link
    return {
        "text": link.text,
        "query": link.query,
        "key": link.key,
        "query_token": link.queries.texts[link.query],
        "key_token": link.keys.texts[link.key],
        "weight": json_number(link.weight),
        "usual": json_number(one.usual),
        "even": json_number(one.even),
    }


def atlas_rows(report: AtlasReport) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, then a row for each head: its means, and where it fires most."""
    names = ("layer", "head", "share", "median", "pattern", *NAMES)
    places = ("query_token", "key_token", "weight", "usual", "even")
    prefers = ("side", "token", "token_share", "token_base_rate")
    found = []
    for one in report.heads:
        entry = head_data(one)
        known = one.prefers
        entry |= entry["scores"] | (entry["fires"][0] if entry["fires"] else {})
        if known is not None:
            entry |= dict(zip(prefers, (known.side, known.token, *known[3:]), strict=True))
        found.append(entry)
    return table_of((*names, *places, *prefers), found)
