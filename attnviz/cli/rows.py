"""Rows of named texts from a file: JSON lines, an object each, or CSV with a line of names."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attnviz.cli.inputs import lines_of
from attnviz.draw.labels import visible
from attnviz.errors import LoadError, UsageError
from attnviz.reading import parse_json


class Rows(NamedTuple):
    """What a file holds.

    rows: at least one; a text by name, empty ones left out.
    lines: of each in the file, from 1.
    source: the file, safe to print.
    """

    rows: tuple[Mapping[str, str], ...]
    lines: tuple[int, ...]
    source: str


def read_rows(path: Path, option: str, needed: Sequence[str], allowed: Sequence[str] = ()) -> Rows:
    """The rows of a file, or of standard input for ``-``; empty lines are skipped.

    It is CSV where its name ends in .csv, or not in .jsonl and its first line has no brace first.
    option: what the file was given for. needed, allowed: the names that a row must and may have.
    Raises LoadError for a file that cannot be read or a damaged line, which it names by its number,
    UsageError where there is no row, or a name that is not known.
    """
    source, lines = lines_of(path)
    found = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    kind = path.suffix.lower()
    braced = kind != ".csv" and found[:1] and found[0][1].lstrip()[0] == "{"
    structured = braced or kind in (".jsonl", ".ndjson")
    read = _json_rows(found, source) if structured else _csv_rows(found, source)
    known = {*needed, *allowed}
    rows, numbers = [], []
    for number, row in read:
        _check(row, f"{source} line {number}", needed, known)
        rows.append({name: text for name, text in row.items() if text})
        numbers.append(number)
    if not rows:
        raise UsageError(f"{option} {source} is empty: expected rows with {' and '.join(needed)}")
    return Rows(tuple(rows), tuple(numbers), source)


def _check(
    row: Mapping[str, str], place: str, needed: Sequence[str], known: Collection[str]
) -> None:
    for name in row:
        if name not in known:
            raise UsageError(
                f"{place} has {visible(name)!r}: expected {', '.join(sorted(known))} and nothing "
                "else"
            )
    for name in needed:
        if not row.get(name, "").strip():
            raise UsageError(f"{place} has no {name}: expected {' and '.join(needed)}")


def _json_rows(
    lines: Sequence[tuple[int, str]], source: str
) -> Iterator[tuple[int, Mapping[str, str]]]:
    for number, line in lines:
        place = f"{source} line {number}"
        try:
            row = parse_json(line, place)
        except LoadError as error:
            raise LoadError(f"{place} is no JSON: mend or remove the line") from error
        if not isinstance(row, dict):
            raise LoadError(f"{place} is no JSON object: mend or remove the line")
        for name, text in row.items():
            if not isinstance(text, str | int | None) or isinstance(text, bool):
                raise UsageError(f"{place}: {visible(name)!r} is no text")
        yield number, {name: str(text) for name, text in row.items() if text is not None}


def _csv_rows(
    lines: Sequence[tuple[int, str]], source: str
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Rows of one line each: a text with a line break in it is refused as damaged."""
    names: list[str] = []
    for number, line in lines:
        try:
            (cells,) = csv.reader([line], strict=True)
        except (csv.Error, ValueError) as error:
            raise LoadError(f"{source} line {number} is no CSV: {error}") from error
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
