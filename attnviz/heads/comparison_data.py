"""Several kinds of attention of the same heads, for programs: JSON, CSV and arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from attnviz.draw.csv_cells import CsvTable
from attnviz.draw.decimals import shortest
from attnviz.heads.csv import COLUMNS
from attnviz.heads.json import head_entry, run_facts, weight_rows
from attnviz.records import HeadsComparison, HeadScores, HeadsReport

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = [
    "comparison_document",
    "write_comparison_csv",
    "write_comparison_json",
    "write_comparison_npz",
    "write_comparison_safetensors",
]

_VARIED = ("kind", "causal", "score")
_TOKENS = ("tokens", "token_ids", "key_tokens", "key_token_ids")


def _varied(report: HeadsReport) -> dict[str, Any]:
    """In what one report may differ from another."""
    record = report.record
    return {"kind": record.kind, "causal": record.causal, "score": record.model.score}


def _facts(comparison: HeadsComparison, text: str, target: str | None) -> dict[str, Any]:
    """The document without its heads: what differs is null, and is found in ``variants``."""
    facts = run_facts(comparison.first, text, target)
    variants = []
    for report in comparison.reports:
        own = run_facts(report, text)
        variants.append({name: own[name] for name in (*_VARIED, *_TOKENS) if name in own})
    compared = [name for name in _VARIED if any(each[name] != facts[name] for each in variants)]
    return {**facts, **dict.fromkeys(compared), "compared": compared, "variants": variants}


def _entries(
    comparison: HeadsComparison,
) -> Iterator[tuple[dict[str, Any], HeadsReport, HeadScores]]:
    """Each head of the first report, once for each report that kept it, without its weights."""
    for first in comparison.first.heads:
        place = first.layer, first.head
        for index in comparison.kept_by(*place):
            report, moved = comparison.reports[index], comparison.moved[index]
            scores = report.scores(*place)
            entry = {"variant": index, **_varied(report), **head_entry(report, scores)}
            yield {**entry, "moved": None if moved is None else moved[place]}, report, scores


def comparison_document(
    comparison: HeadsComparison, text: str, target: str | None = None
) -> dict[str, Any]:
    """All of it as one JSON object of the schema of ``attnviz heads``.

    ``variants`` says what each run was and over which tokens; ``compared`` names what differs.
    ``heads`` has an entry for each head and run, those of one head together; ``variant`` is the
    place in ``variants``, ``moved`` the share of attention on other keys than in variant 0.
    """
    heads = [
        {**entry, "weights": weight_rows(report.weights(scores.layer, scores.head))}
        for entry, report, scores in _entries(comparison)
    ]
    return {**_facts(comparison, text, target), "heads": heads}


def write_comparison_json(
    comparison: HeadsComparison, text: str, target: str | None, stream: SupportsWrite[str]
) -> None:
    """Write ``comparison_document``, ASCII only, a line for each entry of ``heads``."""
    document = comparison_document(comparison, text, target)
    heads = document.pop("heads")
    stream.write(json.dumps(document, allow_nan=False).removesuffix("}") + ', "heads": [\n')
    stream.write(",\n".join(json.dumps(entry, allow_nan=False) for entry in heads))
    stream.write("\n]}\n")


def write_comparison_csv(comparison: HeadsComparison, stream: SupportsWrite[str]) -> None:
    """Write a line for each run, head, query and key; cells behind a mask are left out.

    Columns: ``variant, kind, causal, score``, then those of a single run.
    """
    writer = CsvTable(stream)
    writer.writerow(("variant", *_VARIED, *COLUMNS))
    for entry, report, scores in _entries(comparison):
        record = report.record
        start = [entry[name] for name in ("variant", *_VARIED, "layer", "head")]
        rows = shortest(report.weights(scores.layer, scores.head)).tolist()
        for query, row in enumerate(rows):
            for key, weight in enumerate(row[: query + 1] if record.causal else row):
                tokens = record.queries.texts[query], record.keys.texts[key]
                writer.writerow((*start, query, tokens[0], key, tokens[1], weight))


def _provenance(comparison: HeadsComparison, text: str, target: str | None) -> str:
    heads = [entry for entry, _, _ in _entries(comparison)]
    return json.dumps({**_facts(comparison, text, target), "heads": heads}, allow_nan=False)


def write_comparison_npz(
    comparison: HeadsComparison, text: str, target: str | None, stream: BinaryIO
) -> None:
    """Write an archive as that of a single run, each array's name ending in ``_VARIANT``.

    So ``weights_0`` and ``weights_1`` (kept head, query, key); ``provenance`` is there once.
    """
    arrays: dict[str, Any] = {"provenance": np.array(_provenance(comparison, text, target))}
    for index, report in enumerate(comparison.reports):
        facts, heads = run_facts(report, text), report.heads
        arrays |= {
            f"weights_{index}": np.stack([report.weights(e.layer, e.head) for e in heads]),
            f"layers_{index}": np.array([entry.layer for entry in heads]),
            f"heads_{index}": np.array([entry.head for entry in heads]),
        }
        arrays |= {f"{name}_{index}": np.array(facts[name]) for name in _TOKENS if name in facts}
    np.savez(stream, allow_pickle=False, **arrays)


def write_comparison_safetensors(
    comparison: HeadsComparison, text: str, target: str | None, stream: BinaryIO
) -> None:
    """Write a tensor ``variant.V.layer.N.weights`` (kept head, query, key) for each kept layer.

    Metadata: ``schema``, and as JSON ``provenance`` and ``heads``, the head indices by tensor.
    """
    from safetensors.numpy import save

    tensors, heads = {}, {}
    for index, report in enumerate(comparison.reports):
        for kept in report.record.layers:
            name = f"variant.{index}.layer.{kept.layer}.weights"
            tensors[name], heads[name] = np.ascontiguousarray(kept.weights), list(kept.heads)
    metadata = {
        "schema": run_facts(comparison.first, text)["schema"],
        "heads": json.dumps(heads),
        "provenance": _provenance(comparison, text, target),
    }
    stream.write(save(tensors, metadata=metadata))
