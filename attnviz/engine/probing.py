"""What heads are scored on: a model opened for it, and the texts.

These are texts that ship with the package, and a person's own; ``data/probes/README.md`` has the
format of annotated sentences.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnviz.engine.capture import capture, observe
from attnviz.engine.observer import Observer
from attnviz.errors import LoadError, UsageError
from attnviz.measures.records import (
    LABELS,
    RELATIONS,
    STATISTICS,
    AnnotatedSentence,
    WordPair,
)
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.random_twin import random_twin
from attnviz.models.vocabulary import HasVocabulary, Vocabulary, random_copies
from attnviz.reading import read_bytes
from attnviz.records import Input, Kind, Tokens

__all__ = ["Probing", "natural_texts", "open_probing", "read_probe_file", "shipped_sentences"]

_TRIAL = "The cat sat on the mat."
_TARGET_TOKENS = 64
"""The longest decoder text that a model writes for itself."""

_FEWEST = 8
"""Tokens of a written text below which the model has not written one."""


@dataclass(frozen=True)
class Probing:
    """A model and the kind of its attention that is scored.

    causal: whether a query sees no later key, as found on a short text.
    """

    model: Model
    kind: Kind
    causal: bool

    @property
    def ranked(self) -> bool:
        """Whether the vocabulary's order tells how rare a token is."""
        vocabulary = self._vocabulary()
        return vocabulary is not None and vocabulary.ranked

    def _vocabulary(self) -> Vocabulary | None:
        return self.model.vocabulary() if isinstance(self.model, HasVocabulary) else None

    def input_of(self, text: str) -> Input:
        """A text, cut to the model's context; the decoder reads the same, or for cross
        attention what the model itself makes of it."""
        tokens = self.model.encode(text, self.model.context)
        if not self._reads_target:
            return Input(tokens)
        return Input(tokens, self._target(text, tokens))

    @property
    def _reads_target(self) -> bool:
        return self.kind in ("decoder", "cross")

    def _target(self, text: str, tokens: Tokens) -> Tokens | None:
        model = self.model
        if not isinstance(model, TwoStackModel):
            return None
        same = model.encode_target(text, model.target_context)
        if self.kind != "cross":
            return same
        try:
            limit = min(model.target_context or _TARGET_TOKENS, _TARGET_TOKENS)
            written = model.greedy_target(tokens, limit)
        except UsageError:  # a model without a language-model head cannot write
            return same
        return written if len(written) >= _FEWEST else same

    def copies(self, length: int, copies: int, seed: int) -> Input | None:
        """Random tokens, several times over; None where the model has no room for them."""
        vocabulary = self._vocabulary()
        if vocabulary is None or len(vocabulary.plain) < length or self.kind == "cross":
            return None
        tokens = random_copies(vocabulary, length, copies, seed)
        context = self.model.context
        if self.kind == "decoder" and isinstance(self.model, TwoStackModel):
            context = self.model.target_context
            source = self.model.encode(_TRIAL)
            start = self.model.encode_target(_TRIAL, 1)
            plain = random_copies(vocabulary.bare(), length, copies, seed)
            target = Tokens(
                start.ids + plain.ids, start.texts + plain.texts, start.special + plain.special
            )
            return Input(source, target) if _fits(target, context) else None
        return Input(tokens) if _fits(tokens, context) else None

    def notes_for(self, inputs: Sequence[Input]) -> tuple[str, ...]:
        """What a reader must know of running over these, beside the model's own notes."""
        if not inputs:
            return ()
        return self.model.notes_for(max((given.text for given in inputs), key=len))

    def run(self, observer: Observer, inputs: Sequence[Input]) -> None:
        """Run over inputs of one length."""
        observe(self.model, observer, inputs)

    def twin(self, seed: int) -> Probing:
        """The same with randomly initialised weights."""
        return Probing(random_twin(self.model, seed), self.kind, self.causal)


def _fits(tokens: Tokens, context: int | None) -> bool:
    return context is None or len(tokens) <= context


def open_probing(model: Model, kind: Kind | None = None) -> Probing:
    """A model opened for scoring one kind of its attention, by default its first.

    Raises UsageError for a kind that it does not have, UnsupportedError where its attention cannot
    be observed.
    """
    kind = kind or model.kinds[0]
    if kind not in model.kinds:
        raise UsageError(
            f"{model.info.name!r} has no {kind} attention: expected --kind "
            f"{' or '.join(model.kinds)}"
        )
    if kind == "cross":
        return Probing(model, kind, causal=False)
    target = None
    if kind == "decoder" and isinstance(model, TwoStackModel):
        target = model.encode_target(_TRIAL)
    record = capture(model, model.encode(_TRIAL), kind=kind, target=target)
    return Probing(model, kind, record.causal)


_DIRECTORY = Path(__file__).resolve().parent.parent / "data" / "probes"
_COLUMNS = ("text", "pairs", "words")
_NEEDED = ("text", "pairs")
_PAIR = re.compile(r"([a-z][a-z0-9_-]*):([0-9]{1,9})>([0-9]{1,9})")
_TAKEN = (set(LABELS) | set(STATISTICS)) - set(RELATIONS)


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
