"""Reads the texts that heads are scored on: those that ship with the package, and a person's own.

``data/probes/README.md`` has the format of annotated sentences.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnviz.errors import LoadError
from attnviz.measures.registry import LABELS, RELATIONS, STATISTICS
from attnviz.reading import read_bytes

__all__ = [
    "AnnotatedSentence",
    "WordPair",
    "natural_texts",
    "read_probe_file",
    "shipped_sentences",
]

_DIRECTORY = Path(__file__).resolve().parent.parent / "data" / "probes"
_COLUMNS = ("text", "pairs", "words")
_NEEDED = ("text", "pairs")
_PAIR = re.compile(r"([a-z][a-z0-9_-]*):([0-9]{1,9})>([0-9]{1,9})")
_TAKEN = (set(LABELS) | set(STATISTICS)) - set(RELATIONS)


@dataclass(frozen=True)
class WordPair:
    """Two words that belong together.

    relation: such as ``subject``.
    dependent, head: their indices among the sentence's words.
    """

    relation: str
    dependent: int
    head: int


@dataclass(frozen=True)
class AnnotatedSentence:
    """A sentence of which a person has said which words belong together.

    text: as a model reads it.
    words: of each word the range of its characters in ``text``, without marks at its ends.
    pairs: what belongs together.
    line: of its file, counted from 1.
    """

    text: str
    words: tuple[range, ...]
    pairs: tuple[WordPair, ...]
    line: int

    def __post_init__(self) -> None:
        for pair in self.pairs:
            if not {pair.dependent, pair.head} <= set(range(len(self.words))):
                raise ValueError(f"no such words: {pair}")


def natural_texts() -> tuple[str, ...]:
    """The running text that ships with the package, passage by passage."""
    return tuple((_DIRECTORY / "natural.txt").read_text(encoding="utf-8").strip().split("\n\n"))


def shipped_sentences() -> tuple[AnnotatedSentence, ...]:
    """The annotated English sentences that ship with the package."""
    return read_probe_file(_DIRECTORY / "english.tsv")


def read_probe_file(path: str | os.PathLike[str]) -> tuple[AnnotatedSentence, ...]:
    """The annotated sentences of a file.

    Raises LoadError, with the number of the line and the reason, for what is not in the format.
    """
    lines = _lines(Path(path))
    columns: list[str] | None = None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if columns is None:
                columns = _header(line)
            else:
                found.append(_sentence(number, _cells(line, columns)))
        except _LineError as error:
            raise LoadError(f"{path}, line {number}: {error}") from error
    if columns is None or not found:
        raise LoadError(
            f"{path} holds no annotated sentence: expected a line that names the columns "
            f"{' and '.join(_NEEDED)}, apart by a tab, and sentences below it"
        )
    return tuple(found)


class _LineError(Exception):
    """What is wrong with a line. Never leaves this module."""


def _lines(path: Path) -> list[str]:
    raw, lines = read_bytes(path), []
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        try:
            lines.append(line.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise LoadError(
                f"{path}, line {number}: byte {error.object[error.start]:#04x} is no UTF-8; "
                "save the file as UTF-8"
            ) from error
    return lines


def _header(line: str) -> list[str]:
    columns = [cell.strip() for cell in line.split("\t")]
    unknown = [name for name in columns if name not in _COLUMNS]
    if unknown or len(set(columns)) < len(columns) or not set(_NEEDED) <= set(columns):
        raise _LineError(
            f"expected the names of the columns, apart by tabs: text, pairs and, if wanted, "
            f"words; got {', '.join(map(repr, columns))}"
        )
    return columns


def _cells(line: str, columns: list[str]) -> Mapping[str, str]:
    cells = line.split("\t")
    if len(cells) != len(columns):
        raise _LineError(
            f"expected {len(columns)} columns ({', '.join(columns)}) apart by tabs, "
            f"got {len(cells)}"
        )
    return dict(zip(columns, cells, strict=True))


def _sentence(number: int, cells: Mapping[str, str]) -> AnnotatedSentence:
    text = cells["text"].strip()
    words = _places(text, (cells.get("words") or text).split())
    items = cells["pairs"].split()
    if not text or not items:
        raise _LineError(f"the column {'text' if not text else 'pairs'} is empty")
    return AnnotatedSentence(text, words, tuple(_pair(item, len(words)) for item in items), number)


def _places(text: str, words: list[str]) -> tuple[range, ...]:
    """Where each word stands in the text, without marks at its ends."""
    places, begin = [], 0
    for word in words:
        start = text.find(word, begin)
        if start < 0:
            raise _LineError(f"the word {word!r} is not in the text, or not in this order")
        begin = start + len(word)
        inner = [place for place in range(start, begin) if text[place].isalnum()]
        places.append(range(inner[0], inner[-1] + 1) if inner else range(start, begin))
    return tuple(places)


def _pair(item: str, words: int) -> WordPair:
    match = _PAIR.fullmatch(item)
    if match is None:
        raise _LineError(f"expected a pair such as subject:1>3, got {item!r}")
    relation, dependent, head = match[1], int(match[2]), int(match[3])
    if relation in _TAKEN:
        raise _LineError(f"{relation!r} is another score's name: choose another relation")
    for index in (dependent, head):
        if index >= words:
            raise _LineError(
                f"{item!r} names the word {index}, the text has {words} (0 to {words - 1})"
            )
    if dependent == head:
        raise _LineError(f"{item!r} pairs a word with itself")
    return WordPair(relation, dependent, head)
