"""The card of a head for programs: the object of ``--json`` and the rows of ``--save FILE.csv``.

Each part is what the JSON of another command says of the head, under the same names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attnviz.draw.values import json_number, model_facts, table_of, token_facts
from attnviz.inspect.head.records import Firing, HeadCard, Hurt
from attnviz.inspect.heads.written import weight_rows
from attnviz.inspect.interventions.ablate.data import effect_entry
from attnviz.inspect.interventions.path.data import path_entry
from attnviz.inspect.patterns.report import score_entry

SCHEMA = "attnviz.head/1"


def card_data(card: HeadCard) -> dict[str, Any]:
    """Return all facts on the card, a one-page summary of a head, as a JSON object.

    Indices start at 0.
    """
    card = replace(card, index_base=0)
    return {
        "schema": SCHEMA,
        "model": model_facts(card.model),
        "layer": card.head[0],
        "head": card.head[1],
        "name": card.name,
        "kind": card.kind,
        "text": card.text,
        "source": card.source or None,
        "seed": card.seed,
        "index_base": 0,
        "complete": card.complete,
        "notes": list(card.notes),
        "missing": dict(card.missing),
        **_parts(card),
    }


def _parts(card: HeadCard) -> dict[str, Any]:
    record, pattern, effect = card.map.first.record, card.pattern, card.effect
    return {
        "map": {
            **token_facts(record.queries),
            "key_tokens": list(record.keys.texts),
            "weights": weight_rows(card.map.first.weights(*card.head)),
        },
        "label": None if pattern is None else score_entry(pattern),
        "fires": [_firing(each) for each in card.firings],
        "ablation": None
        if effect is None or card.ablation is None
        else {
            "baseline": {name: json_number(each) for name, each in card.ablation.baseline.items()},
            "texts": len(card.ablation.texts),
            **effect_entry(replace(card.ablation, by_token=False, index_base=0), effect),
        },
        "hurts": [_hurt(each) for each in card.hurts],
        "predictions": card.predictions,
        "writes": _written(card),
        "one_token": _one_token(card),
        "read_from": [{"sender": [*each.sender], **path_entry(each.read)} for each in card.sources],
        "read_by": []
        if card.readers is None
        else [path_entry(each) for each in card.readers.listeners],
        "cost": None if card.cost is None else card.cost._asdict() | {"total": card.cost.total},
    }


def _firing(one: Firing) -> dict[str, Any]:
    return {
        "text": one.text,
        "query": one.query,
        "key": one.key,
        "query_token": one.queries.texts[one.query],
        "key_token": one.keys.texts[one.key],
        "weight": json_number(one.weight),
    }


def _hurt(one: Hurt) -> dict[str, Any]:
    change = json_number(one.change)
    token = one.tokens.texts[one.place]
    return {"text": one.text, "place": one.place, "token": token, "loss_delta": change}


def _written(card: HeadCard) -> dict[str, Any] | None:
    """Return the head's contribution to the prediction as JSON, as ``attnviz why`` reports it.

    None if it was not measured.
    """
    if card.why is None or card.written is None:
        return None
    first, effect = card.why.first, card.written
    source = first.source(card.key)
    return {
        "answer": first.answer,
        "position": first.found.position,
        "logit": json_number(card.why.logit),
        "contribution": json_number(effect.value),
        "base_rate": json_number(effect.base),
        "adjusted_p": json_number(effect.p),
        "source": None if source is None else source.place,
    }


def _one_token(card: HeadCard) -> dict[str, Any] | None:
    """Return the head's effect over texts of one token as JSON; None if it was not measured."""
    if card.writes is None:
        return None
    found, words = card.writes
    return {
        "tokens": found.tokens,
        "copying": found.copying,
        "chance": found.chance,
        "pairs": [
            {"token": words[read], "raises": words[written], "logits": json_number(logits)}
            for read, written, logits in found.strongest
        ],
    }


def card_rows(card: HeadCard) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, then a row for each number of the card.

    Columns: layer, head, part (such as ``label``), of (what in that part), value.
    """
    return table_of(("layer", "head", "part", "of", "value"), _rows(card))


def _rows(card: HeadCard) -> Iterator[dict[str, Any]]:
    data = _parts(card)
    found = [
        ("score", name, value)
        for name, value in ((data["label"] or {}).get("scores") or {}).items()
    ]
    for part in ("ablation", "writes", "one_token", "cost"):
        found += [(part, name, value) for name, value in (data[part] or {}).items()]
    for part in ("read_from", "read_by"):
        for each in data[part]:
            place = each.get("sender") or (each["layer"], each["head"])
            found.append((part, f"L{place[0]}H{place[1]} {each['into']}", each["share"]))
    for part, of, value in found:
        if value is None or isinstance(value, int | float | str):
            yield dict(zip(("layer", "head"), card.head, strict=True)) | {
                "part": part,
                "of": of,
                "value": value,
            }
