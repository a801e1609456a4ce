"""The output of ``heads --cut`` for programs: the object of ``--json`` and the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnviz.draw.values import json_number, model_facts
from attnviz.engine.likely import Likely
from attnviz.inspect.heads.cut import CutReport

SCHEMA = "attnviz.cut/1"


def cut_data(found: CutReport) -> dict[str, Any]:
    """Return the whole report as JSON values; indices start at 0."""
    ends = {
        name: {
            "text": "".join(tokens.texts[word.span.start : word.span.stop]).strip(),
            "indices": list(word.span),
        }
        for name, tokens, word in (
            ("query", found.queries, found.query),
            ("key", found.keys, found.key),
        )
    }
    return {
        "schema": SCHEMA,
        "model": model_facts(found.model),
        "text": found.text,
        **({} if found.target is None else {"target": found.target}),
        "kind": found.kind,
        "causal": found.causal,
        "method": "edge logit -inf, softmax over the remaining keys",
        **ends,
        "edges": [list(edge) for edge in found.edges],
        "heads": [list(head) for head in found.heads],
        "weight": found.weight,
        "loss": {
            "before": json_number(found.loss_before),
            "after": json_number(found.loss_after),
            "unit": "nats per token",
            "tokens": found.measured,
            "deltas": [json_number(delta) for delta in found.loss_deltas.tolist()],
        },
        "predictions": [
            {
                "index": each.place,
                "token": found.predicted.texts[each.place],
                "predicts": "the token itself, masked" if found.masked else "the next token",
                "kl": json_number(each.kl),
                "before": [_likely(one) for one in each.before],
                "after": [_likely(one) for one in each.after],
            }
            for each in found.predictions
        ],
        "alone": [
            {
                "heads": [list(head) for head in each.heads],
                "weight": each.weight,
                "kl": json_number(each.kl),
                "loss_delta": json_number(each.loss_delta),
            }
            for each in found.alone
        ],
    }


def cut_rows(found: CutReport) -> Iterator[tuple[object, ...]]:
    """Yield the header, then a row for each head or layer in which the edge was cut alone.

    Columns: layer, head (None for a whole layer), weight, kl, loss_delta.
    """
    yield ("layer", "head", "weight", "kl", "loss_delta")
    for each in found.alone:
        layer, head = each.heads[0]
        alone = None if found.by_layer else head
        yield layer, alone, each.weight, each.kl, each.loss_delta


def _likely(one: Likely) -> dict[str, Any]:
    return {"token": one.text, "id": one.id, "probability": one.probability}
