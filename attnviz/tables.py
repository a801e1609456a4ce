"""Reads tables of texts: CSV with its separators, JSON lines, or one JSON array."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from attnviz.errors import LoadError
from attnviz.reading import TEXTS_BYTES, parse_json

Form = Literal["csv", "json lines", "json array", "plain"]

_ARRAY = re.compile(r"\s*\[\s*([\"{[]|$)")
"""Matches the first line of a JSON array of texts or objects; not that of ``[1] A text.``"""

_ENDINGS: Mapping[str, Form] = {
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "json lines"),
    ".txt": "plain",
}
_SEPARATORS = ",;\t"


def form_of(path: Path, line: str) -> Form:
    """Return the form of a file of texts: a kind of table, or plain lines.

    path: its ending decides, if it is one of a form. line: its first one that is not blank.
    """
    if (known := _ENDINGS.get(path.suffix.lower())) is not None:
        return known
    if line.lstrip().startswith("{"):
        return "json lines"
    return "json array" if path.suffix.lower() == ".json" or _ARRAY.match(line) else "plain"


def table_rows(form: Form, lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    """Yield (number, row) for each row of a table: its cells by column, or a JSON value.

    form: one of those of a table. lines: all of them, without line ends. source: the name of the
    file, for messages. The number is that of the row's first line, in an array that of the entry.
    Raises LoadError for a damaged table.
    """
    if form == "csv":
        return _csv_rows(lines, source)
    return _json_rows(lines, source) if form == "json lines" else _entries(lines, source)


def _json_rows(lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, parse_json(line, source)
            except LoadError as error:
                raise LoadError(
                    f"{source} line {number} is no JSON: mend or remove the line"
                ) from error


def _entries(lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    content, size = list[str](), 0
    for line in lines:
        content.append(line)
        size += len(line) + 1
        if size > TEXTS_BYTES:
            raise LoadError(
                f"{source} is one JSON array of more than {TEXTS_BYTES:,} bytes: write JSON lines, "
                "an entry a line"
            )
    found = parse_json("\n".join(content), source, TEXTS_BYTES)
    if not isinstance(found, list):
        raise LoadError(f"{source} is no JSON array, and no JSON lines: expected one of them")
    yield from enumerate(found, start=1)


def _csv_rows(lines: Iterable[str], source: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (number, cells by column) for each row behind the first, which names the columns.

    The separator is the comma, semicolon or tab that the first line has most of. A cell in quotes
    may have line feeds; blank lines are skipped.
    """
    every, blank = iter(lines), 0
    first = next(every, "")
    while not first.strip():
        if (following := next(every, None)) is None:
            return
        first, blank = following, blank + 1
    separator = max(_SEPARATORS, key=first.count)
    reader = csv.reader(
        (f"{line}\n" for line in chain([first], every)), delimiter=separator, strict=True
    )
    names = list[str]()
    while True:
        number = blank + reader.line_num + 1
        try:
            cells = next(reader, None)
        except (csv.Error, ValueError) as error:
            raise LoadError(f"{source} line {number} is no CSV: {error}") from error
        if cells is None:
            return
        if len(cells) < 2 and not "".join(cells).strip():
            continue
        if not names:
            names = [cell.strip() for cell in cells]
            if len(set(names)) < len(names):
                raise LoadError(f"{source} line {number} names a column twice")
        elif len(cells) != len(names):
            raise LoadError(
                f"{source} line {number} has {len(cells)} columns, the first line names "
                f"{len(names)}"
            )
        else:
            yield number, dict(zip(names, cells, strict=True))
