"""Writes the files of weights that ``attnviz heads`` saves: JSON and ``.npz``.

``files`` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.files import Writer, text_file
from attnviz.draw.scale import visible_cells
from attnviz.draw.values import shortest
from attnviz.inspect.heads.data import (
    TOKENS,
    asked_facts,
    comparison_facts,
    head_entries,
    link_facts,
    run_facts,
    write_heads_csv,
)
from attnviz.inspect.heads.report import HeadsReport, HeadsView, kept_vectors
from attnviz.records import HeadScores, HeadsRecord

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


# JSON ----------------------------------------------------------------------------------------


def weight_rows(weights: NDArray[np.floating]) -> list[list[float | None]]:
    """Return attention weights (query, key) as lists; a number that is not finite becomes None."""
    rows: list[list[float | None]] = shortest(weights).tolist()
    if np.isfinite(weights).all():
        return rows
    finite = np.isfinite(weights).tolist()
    return [
        [value if good else None for value, good in zip(row, marks, strict=True)]
        for row, marks in zip(rows, finite, strict=True)
    ]


def _encode(value: object) -> str:
    """Return ASCII JSON: an escape sequence in a token must not reach a terminal."""
    return json.dumps(value, allow_nan=False)


def _row_texts(weights: NDArray[np.floating], causal: bool) -> Iterator[str]:
    """Yield each row of attention weights as JSON, with the result of ``weight_rows``.

    weights: (query, key). causal: whether a query sees no later key.
    ``%.9g`` prints a number of at most nine digits as its repr does, in half the time. It cannot
    print null or the ``.0`` of a whole number: rows with such cells go through ``_encode``.
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


def _norms(report: HeadsRecord, scores: HeadScores) -> dict[str, list[float]]:
    """Return the norms of the values that a head moves as a JSON fact; empty if not kept."""
    norms = {} if report.vectors is None else report.vectors.norms
    if scores.layer not in norms:
        return {}
    return {"value_norms": shortest(norms[scores.layer][scores.head]).tolist()}


def write_heads_json(
    found: HeadsReport, stream: SupportsWrite[str], view: HeadsView | None = None
) -> None:
    """Write the JSON of a report, a row of weights at a time, so that it may exceed the memory.

    stream: where it is written. view: a requested word or word pair, whose facts are written as
        well; None for no such request. ``heads`` has an entry for each selected head and run, in
        the order of the first run's heads; weights have the fewest digits that give the same
        float32. A single run has a line for each row of weights, a comparison a line for each
        entry.
    """
    facts = comparison_facts(found) | link_facts(found) | asked_facts(found, view or HeadsView())
    stream.write(_encode(facts).removesuffix("}") + ', "heads": [')
    begin, between = ("\n", ",\n") if len(found.reports) == 1 else ("", ", ")
    for index, (entry, report, scores) in enumerate(head_entries(found)):
        norms = _norms(report, scores)
        stream.write(f"{',' if index else ''}\n{_encode(entry | norms).removesuffix('}')}")
        stream.write(', "weights": [')
        weights = report.weights(scores.layer, scores.head)
        for place, row in enumerate(_row_texts(weights, report.record.causal)):
            stream.write((between if place else begin) + row)
        stream.write("]}")
    stream.write("\n]}\n")


# Arrays --------------------------------------------------------------------------------------


def _provenance(found: HeadsReport) -> str:
    """Return the JSON document without the weights."""
    return _encode(
        {**comparison_facts(found), "heads": [entry for entry, _, _ in head_entries(found)]}
    )


def _entries(found: HeadsReport, run: HeadsRecord) -> list[HeadScores]:
    """Return the heads of one run in the order of the file, which is that of the first run."""
    return [scores for _, report, scores in head_entries(found) if report is run]


def write_heads_npz(found: HeadsReport, stream: BinaryIO) -> None:
    """Write an archive that ``numpy.load`` opens with ``allow_pickle=False``.

    ``weights`` (selected head, query, key) in the order of the first run's heads; ``layers`` and
    ``heads`` give each one's indices from 0, so that ``weights[(layers == 2) & (heads == 5)]`` is
    L2H5; ``tokens``, ``token_ids``, for cross attention also ``key_tokens``, ``key_token_ids``;
    ``provenance``: the JSON document without the weights; and the arrays of ``kept_vectors``. NumPy
    drops NUL characters at the end of a string: the tokens in ``provenance`` keep them. If runs are
    compared, the other names end in ``_VARIANT``, such as ``weights_1``.
    """
    arrays: dict[str, Any] = {"provenance": np.array(_provenance(found))}
    for index, report in enumerate(found.reports):
        end = f"_{index}" if len(found.reports) > 1 else ""
        facts, heads = run_facts(report), _entries(found, report)
        arrays |= {
            f"weights{end}": np.stack([report.weights(each.layer, each.head) for each in heads]),
            f"layers{end}": np.array([each.layer for each in heads]),
            f"heads{end}": np.array([each.head for each in heads]),
        }
        arrays |= {f"{name}{end}": np.array(facts[name]) for name in TOKENS if name in facts}
        arrays |= {f"{name}{end}": found for name, found in kept_vectors(report, heads).items()}
    np.savez(stream, allow_pickle=False, **arrays)


def array_files(found: HeadsReport, view: HeadsView | None = None) -> dict[str, Writer]:
    """Return the functions that write the attention weights to a file, by the ending of its name.

    view: the requested word or word pair; only the ``.csv`` depends on it.
    """
    return {
        ".csv": text_file(partial(write_heads_csv, found, view=view)),
        ".npz": partial(write_heads_npz, found),
    }
