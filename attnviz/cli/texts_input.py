"""The texts that a command measures on: one, many from a file, or the built-in passage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnviz.cli.text_input import decoded, read_file, read_standard_input, read_text
from attnviz.draw.labels import visible
from attnviz.errors import LoadError, UsageError
from attnviz.reading import parse_json

__all__ = ["BUILT_IN_TEXT", "Texts", "read_texts", "read_texts_file"]

BUILT_IN_TEXT = (
    "Old Captain Alder had two sisters, Mary and Margaret. When Captain Alder came home, Mary sat "
    "by the window and Margaret sat by the fire. Then Captain Alder gave a letter to Mary and a "
    "book to Margaret."
)
"""A passage in which names come back, so that heads that repeat what they have read matter."""

_JSON_START = "{"
_MOST_QUOTED = 40


@dataclass(frozen=True)
class Texts:
    """What is measured on.

    texts: at least one.
    source: where they come from, in words, such as ``built in: no text was given``; empty where
        the person typed the text.
    lines: of each text in its file, from 1; empty where there is no file of many.
    """

    texts: tuple[str, ...]
    source: str
    lines: tuple[int, ...] = ()

    def place(self, index: int) -> str:
        """How a message names a text: ``the text``, or ``text 3 (line 4)``."""
        if not self.lines:
            return "the text"
        return f"text {index + 1} (line {self.lines[index]})"


def read_texts(argument: str | None, file: Path | None, many: Path | None) -> Texts:
    """The texts of TEXT, ``-``, ``--file`` or ``--texts``; the built-in one where none is given.

    Raises UsageError where two are given or one is empty, LoadError where a file cannot be read.
    """
    if many is not None:
        if argument is not None or file is not None:
            raise UsageError("expected one source of texts: give TEXT, --file or --texts, not two")
        return read_texts_file(many, "--texts")
    if argument is None and file is None:
        return Texts((BUILT_IN_TEXT,), "built in: no text was given")
    source = visible(str(file)) if file is not None else "standard input" * (argument == "-")
    return Texts((read_text(argument, file),), source)


def read_texts_file(path: Path, option: str) -> Texts:
    """Texts of a file: one a line, or JSON lines with a ``text`` field; empty lines are skipped.

    A file is taken for JSON lines if its name ends in .jsonl or .ndjson, or its first line that
    is not empty begins with a brace and its name does not end in .txt.

    Raises LoadError for a file that cannot be read or a damaged line, which it names by its number,
    UsageError where there is no text; ``option`` names what the file was given for.
    """
    from_input = str(path) == "-"
    name = "standard input" if from_input else visible(str(path))
    content = read_standard_input() if from_input else read_file(path)
    lines = [
        (number, line) for number, line in enumerate(_lines(content, name), start=1) if line.strip()
    ]
    if not lines:
        raise UsageError(f"{option} {name} has no text: expected one text a line")
    ending = path.suffix.lower()
    structured = ending in (".jsonl", ".ndjson") or (
        ending != ".txt" and lines[0][1].lstrip().startswith(_JSON_START)
    )
    texts = [_field(line, number, name) if structured else line for number, line in lines]
    return Texts(tuple(texts), name, tuple(number for number, _ in lines))


def _lines(content: bytes, name: str) -> Iterator[str]:
    """The decoded lines of a file; a byte that is no UTF-8 is told with its line."""
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1):
        yield decoded(line.removesuffix(b"\r"), f"{name} line {number}")


def _field(line: str, number: int, name: str) -> str:
    """The ``text`` of one JSON line."""
    try:
        entry = parse_json(line, name)
    except LoadError as error:
        raise _damaged(line, number, name) from error
    text = entry.get("text") if isinstance(entry, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise _damaged(line, number, name)
    return text


def _damaged(line: str, number: int, name: str) -> LoadError:
    quoted = line if len(line) <= _MOST_QUOTED else line[:_MOST_QUOTED] + "…"
    return LoadError(
        f'{name} line {number} is damaged: expected {{"text": "..."}}, got {visible(quoted)}; '
        "mend or remove the line"
    )
