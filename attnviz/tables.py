"""Reads tables of texts: CSV, JSON lines, or one JSON array."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from attnviz.errors import LoadError
from attnviz.reading import TEXTS_BYTES, parse_json

PLAIN, JSON_LINES, JSON_ARRAY = "plain", "json lines", "json array"
"""The forms of a file of texts; that of a CSV is the separator that its first line has most of."""

_ARRAY = re.compile(r"\s*\[\s*([\"{[]|$)")
"""Matches the first line of a JSON array of texts or objects; not that of ``[1] A text.``"""


def layout_of(path: Path, lines: Iterable[str]) -> tuple[str, Iterator[str]]:
    """Return how a file of texts is laid out, and all of its lines.

    The layout is PLAIN, JSON_LINES, JSON_ARRAY, or the character that separates the columns of CSV.
    path: its ending decides if it names a layout; else the first line that is not blank.
    """
    ending, begun, lines = path.suffix.lower(), list[str](), iter(lines)
    for line in lines:
        begun.append(line)
        if line.strip():
            break
    first, layout = begun[-1] if begun else "", PLAIN
    if ending in (".csv", ".tsv"):
        layout = max(",;\t", key=first.count)
    elif ending in (".jsonl", ".ndjson") or (ending != ".txt" and first.lstrip().startswith("{")):
        layout = JSON_LINES
    elif ending == ".json" or (ending != ".txt" and _ARRAY.match(first)):
        layout = JSON_ARRAY
    return layout, chain(begun, lines)


def table_rows(layout: str, lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    """Yield (number of its first line or of the entry, row) for each row of a table.

    layout: as ``layout_of`` tells. lines: all, without line ends. source: the file, for messages.
    A row of CSV is its cells by the names in the first row; others are JSON values. Blank lines are
    skipped. Raises LoadError for a damaged table.
    """
    if layout == JSON_LINES:
        for number, line in enumerate(lines, start=1):
            try:
                if line.strip():
                    yield number, parse_json(line, source)
            except LoadError as error:
                raise LoadError(
                    f"{source} line {number} is not JSON: fix or remove the line"
                ) from error
    elif layout == JSON_ARRAY:
        rows = parse_json("\n".join(_bounded(lines, source)), source, TEXTS_BYTES)
        if not isinstance(rows, list):
            raise LoadError(f"{source} is neither a JSON array nor JSON lines")
        yield from enumerate(rows, start=1)
    else:
        yield from _csv_rows(layout, lines, source)


def _bounded(lines: Iterable[str], source: str) -> Iterator[str]:
    size = 0
    for line in lines:
        if (size := size + len(line)) > TEXTS_BYTES:
            raise LoadError(
                f"{source} is one JSON array of more than {TEXTS_BYTES:,} bytes: write JSON lines"
            )
        yield line


def _csv_rows(
    separator: str, lines: Iterable[str], source: str
) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True)
    names, number = list[str](), 1
    try:
        for cells in reader:
            blank = len(cells) < 2 and not "".join(cells).strip()
            if blank and (not cells or len(names) != 1):
                pass  # a blank line
            elif not names:
                names = [cell.strip() for cell in cells]
                if len(set(names)) < len(names):
                    raise LoadError(f"{source} line {number} names a column twice")
            elif len(cells) != len(names):
                columns = f"{len(cells)} column{'s' * (len(cells) != 1)}"
                raise LoadError(
                    f"{source} line {number} has {columns}, the first line names {len(names)}"
                )
            else:
                yield number, dict(zip(names, cells, strict=True))
            number = reader.line_num + 1
    except (csv.Error, ValueError) as error:
        raise LoadError(f"{source} line {number} is not CSV: {error}") from error
