"""Weights as a long table: one line for each head, query and key.

Columns: ``layer, head, query_index, query_token, key_index, key_token, weight``; indices start
at 0. Cells that a causal query cannot see are left out. Tokens are always quoted; what acts on a
terminal is written out as ``csv_cells`` tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnviz.draw.csv_cells import csv_text
from attnviz.draw.decimals import shortest
from attnviz.records import HeadsReport

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["COLUMNS", "write_heads_csv"]

COLUMNS = ("layer", "head", "query_index", "query_token", "key_index", "key_token", "weight")


def _quoted(text: str) -> str:
    doubled = csv_text(text).replace('"', '""')
    return f'"{doubled}"'


def _numbered(texts: tuple[str, ...]) -> list[str]:
    """Each token with its index, as two fields."""
    return [f"{index},{_quoted(text)}" for index, text in enumerate(texts)]


def write_heads_csv(report: HeadsReport, stream: SupportsWrite[str]) -> None:
    """Write the weights of every kept head, in the order of ``report.heads``."""
    record = report.record
    queries, keys = _numbered(record.queries.texts), _numbered(record.keys.texts)
    stream.write(",".join(COLUMNS) + "\n")
    for scores in report.heads:
        rows = shortest(report.weights(scores.layer, scores.head)).tolist()
        for index, (query, row) in enumerate(zip(queries, rows, strict=True)):
            seen = index + 1 if record.causal else len(row)
            start = f"{scores.layer},{scores.head},{query},"
            lines = [
                f"{start}{key},{weight}\n"
                for key, weight in zip(keys[:seen], row[:seen], strict=True)
            ]
            stream.write("".join(lines))
