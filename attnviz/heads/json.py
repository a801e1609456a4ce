"""The object that ``attnviz heads --json`` prints and ``--save FILE.json`` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.decimals import json_number, shortest
from attnviz.draw.model_facts import model_facts
from attnviz.draw.scale import visible_cells
from attnviz.records import HeadScores, HeadsReport

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["SCHEMA", "head_entry", "run_facts", "weight_rows", "write_heads_json"]

SCHEMA = "attnviz.heads/1"


def run_facts(report: HeadsReport, text: str, target: str | None = None) -> dict[str, Any]:
    """The document without its heads: the model, the text and its tokens."""
    record, info = report.record, report.record.model
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "model": model_facts(info),
        "text": text,
    }
    if target is not None:
        facts["target"] = target
    facts |= {
        "kind": record.kind,
        "causal": record.causal,
        "score": info.score,
        "index_base": 0,
        "sorted_by": report.sorted_by,
        "tokens": list(record.queries.texts),
        "token_ids": list(record.queries.ids),
    }
    if record.kind == "cross":
        facts["key_tokens"] = list(record.keys.texts)
        facts["key_token_ids"] = list(record.keys.ids)
    return facts


def head_entry(report: HeadsReport, scores: HeadScores) -> dict[str, Any]:
    """One head without its weights: where it sits, its scores (None: not measured), its trait."""
    group = report.record.model.group(scores.head)
    return {
        "layer": scores.layer,
        "head": scores.head,
        "kv_head": scores.head if group is None else group,
        "entropy": scores.scores.get("entropy"),
        **{name: value for name, value in scores.scores.items() if name != "entropy"},
        "trait": {
            "name": scores.trait.name,
            "score": json_number(scores.trait.score),
            "base_rate": json_number(scores.trait.base_rate),
        },
    }


def weight_rows(weights: NDArray[np.floating]) -> list[list[float | None]]:
    """Weights (query, key) as lists; what is not a finite number becomes None."""
    rows: list[list[float | None]] = shortest(weights).tolist()
    if np.isfinite(weights).all():
        return rows
    finite = np.isfinite(weights).tolist()
    return [
        [value if good else None for value, good in zip(row, marks, strict=True)]
        for row, marks in zip(rows, finite, strict=True)
    ]


def _encode(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def _row_texts(weights: NDArray[np.floating], causal: bool) -> Iterator[str]:
    """Each row of ``weight_rows`` as JSON.

    ``%.9g`` prints a number of at most nine digits as its repr does, in half the time; but not
    the point of a whole number, nor null: rows with such cells go the long way.
    """
    visible = visible_cells(weights.shape[0], weights.shape[1], causal)
    special = (weights == np.rint(weights)) | ~np.isfinite(weights)
    plain = ~np.where(visible, special, weights != 0).any(axis=1)
    if weights.dtype != np.float32:
        plain[:] = False
    seen = visible.sum(axis=1).tolist()
    for row, short, count in zip(weight_rows(weights), plain.tolist(), seen, strict=True):
        if short:
            digits = ", ".join(["%.9g"] * count) % tuple(row[:count])
            yield f"[{digits}{', 0.0' * (len(row) - count)}]"
        else:
            yield _encode(row)


def _pieces(report: HeadsReport, text: str, target: str | None) -> Iterator[str]:
    """The document's text in pieces, a row of weights at most: the whole would not fit twice."""
    yield _encode(run_facts(report, text, target)).removesuffix("}") + ', "heads": ['
    for index, scores in enumerate(report.heads):
        entry = _encode(head_entry(report, scores)).removesuffix("}")
        yield f'{"," if index else ""}\n{entry}, "weights": ['
        weights = report.weights(scores.layer, scores.head)
        for place, row in enumerate(_row_texts(weights, report.record.causal)):
            yield (",\n" if place else "\n") + row
        yield "]}"
    yield "\n]}\n"


def write_heads_json(
    report: HeadsReport, text: str, target: str | None, stream: SupportsWrite[str]
) -> None:
    """Write everything of a report as one JSON object, ASCII only, a line for each row of weights.

    Indices start at 0 whatever the names show. ``heads`` holds an entry a kept head, in the order
    of ``report.heads``; weights have the fewest digits that give the same float32.

    ASCII because tokens come from strangers: an escape sequence must not reach a terminal.
    """
    for piece in _pieces(report, text, target):
        stream.write(piece)
