"""The output of ``attnviz rollout`` for programs: the object of ``--json``, the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnviz.draw.values import model_facts
from attnviz.inspect.heads.report import weight_rows
from attnviz.inspect.rollout.records import RolloutReport

SCHEMA = "attnviz.rollout/1"


def rollout_data(report: RolloutReport) -> dict[str, Any]:
    """Return the report of a rollout as JSON values; its matrices are (query, key)."""
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "text": report.text,
        "kind": report.kind,
        "causal": report.causal,
        "layers": report.layers,
        "layers_not_followed": list(report.not_followed),
        "tokens": list(report.tokens.texts),
        "token_ids": list(report.tokens.ids),
        **({} if report.sampled is None else {"queries": list(report.sampled)}),
        "rollout": weight_rows(report.matrix),
        "last_layer": weight_rows(report.raw),
        "sink": report.at_sink.nonzero()[0].tolist(),
        "rollout_without_sink": weight_rows(report.without_sink()),
    }


def rollout_rows(report: RolloutReport) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, then a row for each query and key with both weights.

    Columns: query, key, query_token, key_token, rollout, last_layer. Pairs that a causal mask hides
        are left out.
    """
    texts = report.tokens.texts
    yield ("query", "key", "query_token", "key_token", "rollout", "last_layer")
    matrices = zip(report.queries, report.matrix.tolist(), report.raw.tolist(), strict=True)
    for query, row, last in matrices:
        for key in range(query + 1 if report.causal else len(texts)):
            yield query, key, texts[query], texts[key], row[key], last[key]
