"""Reads a corpus of any size text by text, in blocks of 64 that several processes can share.

A block is the unit of work: which texts a model runs together depends on the block alone, so that a
text gives the same bits whichever process measures it. Shard K of N takes every N-th block.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from attnviz import ranks
from attnviz.draw.labels import visible
from attnviz.errors import LoadError, UsageError
from attnviz.reading import TEXT_BYTES, utf8
from attnviz.texts import Texts, cell_text, source_of, texts_in, texts_of

BLOCK = 64  # the number of texts in a block; only the last block of a corpus may have fewer
MOST_SHARDS = 10**6  # the most shards that a corpus may be cut into
_SPLIT = "train"
_INSTALL = "needs a further library: pip install 'attnviz[data]'"


class Shard(NamedTuple):
    """The share of one process in a corpus: shard ``number``, from 0, of ``of`` shards."""

    number: int = 0
    of: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


class Line(NamedTuple):
    """A text of a corpus, and the number of its line or row, from 1."""

    number: int
    text: str


@dataclass(frozen=True)
class TextBlock:
    """Texts of a corpus that are measured together, in order, from text ``64 * index`` on."""

    index: int
    lines: tuple[Line, ...]

    @property
    def first(self) -> int:
        """Return the index of the first text in the corpus."""
        return self.index * BLOCK

    @property
    def texts(self) -> Texts:
        """Return the block's texts for a command, with line numbers for its messages."""
        texts, numbers = (line.text for line in self.lines), (line.number for line in self.lines)
        return Texts(tuple(texts), "", tuple(numbers), self.first)


@dataclass(frozen=True)
class TextCorpus:
    """Texts that can be read again and again, without being in memory together.

    source: where they come from, safe to print. rows: yields them from the first one; a row of a
        table without a text has an empty one.
    bytes: about how many bytes they have together; 0 if that is unknown.
    """

    source: str
    rows: Callable[[], Iterator[Line]]
    bytes: int = 0

    def lines(self) -> Iterator[Line]:
        """Yield the texts from the first one."""
        return (line for line in self.rows() if line.text)


@dataclass
class Reading:
    """One pass over a corpus that yields the blocks of one shard.

    It reads all texts, so that in the end it knows their number and a digest of them, by which
    shards that read different texts are told apart. texts, bytes: how many were read so far.
    empty: how many rows without a text.
    """

    corpus: TextCorpus
    shard: Shard
    texts: int = 0
    bytes: int = 0
    empty: int = 0
    _hash: Any = field(default_factory=hashlib.sha256)

    def __iter__(self) -> Iterator[TextBlock]:
        index, kept = 0, list[Line]()
        for line in self.corpus.rows():
            if not line.text:
                self.empty += 1
                continue
            content = line.text.encode("utf-8", "surrogatepass")
            self._hash.update(len(content).to_bytes(8, "little") + content)
            self.texts += 1
            self.bytes += len(content) + 1
            if index % self.shard.of == self.shard.number:
                kept.append(line)
            if self.texts % BLOCK == 0:
                if kept:
                    yield TextBlock(index, tuple(kept))
                index, kept = index + 1, []
        if kept:
            yield TextBlock(index, tuple(kept))
        if not self.texts:
            raise UsageError(f"--texts {self.corpus.source} has no text: expected one per line")

    @property
    def share(self) -> float:
        """Return about which share of the corpus was read, from 0 to 1; 0 if that is unknown."""
        return min(self.bytes / self.corpus.bytes, 1.0) if self.corpus.bytes else 0.0

    @property
    def digest(self) -> str:
        """Return a short hash of the texts that were read so far, in their order."""
        return str(self._hash.hexdigest()[:16])


def read_shard(typed: str | None, file: Path | None = None) -> tuple[Shard, Path | None]:
    """Return the shard that ``K/N`` names, and the file that keeps its record.

    typed: None stands for the whole corpus, or for the rank of one of several processes of
        torchrun, which gets a file of its own: ``part.record`` becomes ``part-2.record``. With
        ``--tp`` all of them measure the same texts. Raises UsageError unless 0 ≤ K < N ≤ 10⁶.
    """
    if typed is None and under_torchrun():
        shard = Shard(ranks.rank(), ranks.size())
        return shard, file and file.with_stem(f"{file.stem}-{shard.number}")
    typed = "0/1" if typed is None else typed
    parts = re.fullmatch("0*([0-9]{1,7})/0*([0-9]{1,7})", typed)
    shard = Shard(*map(int, parts.groups())) if parts else Shard(1, 0)
    if not shard.number < shard.of <= MOST_SHARDS:
        raise UsageError(
            f"--shard {visible(typed)!r}: expected K/N, with K from 0 to N-1 and N at most "
            f"{MOST_SHARDS:,}, such as 0/4 for the first of four"
        )
    return shard, file


def under_torchrun() -> bool:
    """Return whether torchrun runs several processes, each with its own texts, unlike ``--tp``."""
    return "TORCHELASTIC_RUN_ID" in os.environ and not ranks.is_together()


def is_corpus(file: Path) -> bool:
    """Return True if ``--texts`` names a corpus: a large or Parquet file, or a hub's data set."""
    if os.path.isfile(file):  # unlike Path, False for a name too long
        return file.suffix.lower() == ".parquet" or file.stat().st_size > TEXT_BYTES
    return not os.path.exists(file) and _is_data_set(str(file))


def open_corpus(
    named: str | os.PathLike[str] | Texts | Iterable[str], column: str | None = None
) -> TextCorpus:
    """Return a corpus: a file that exists, the name of a hub's data set, or texts in memory.

    A file has one text a line, or is a table: Parquet, or one that ``texts_in`` reads.
    A data set is ``OWNER/NAME[:SPLIT[:COLUMN]]``, by default its split ``train``, and needs the
    library ``datasets``. column: that of the texts in a table or data set; None for ``text``.
    Raises UsageError or LoadError for anything else.
    """
    if not isinstance(named, str | os.PathLike):
        texts = texts_of(named)
        assert texts is not None
        numbers = texts.lines or range(1, len(texts.texts) + 1)
        lines = [Line(*line) for line in zip(numbers, texts.texts, strict=True)]
        size = sum(len(line.text.encode("utf-8", "replace")) + 1 for line in lines)
        return TextCorpus(texts.source, lambda: iter(lines), size)
    path, shown = Path(named), visible(os.fspath(named))
    if os.path.isdir(path):
        raise UsageError(f"--texts {shown} is a directory: name a file")
    there = os.path.exists(path)
    if path.suffix.lower() == ".parquet" and there:
        return TextCorpus(shown, lambda: _rows(shown, _parquet(path), column))
    if shown == "-":
        return TextCorpus("standard input", lambda: _file_lines(path, column))
    if there:
        source = source_of(path, shown, column)
        return TextCorpus(source, lambda: _file_lines(path, column), path.stat().st_size)
    if not _is_data_set(os.fspath(named)):
        raise LoadError(f"cannot read {shown!r}: there is no such file")
    name, _, rest = os.fspath(named).partition(":")
    split, _, typed = rest.partition(":")
    rows = _hub(name, split or _SPLIT)
    return TextCorpus(shown, lambda: _rows(shown, rows(), typed or column))


_ENDINGS = (".txt", ".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv", ".gz")


def _is_data_set(named: str) -> bool:
    """Return True if a string has the form of a hub's data set, ``OWNER/NAME[:SPLIT[:COLUMN]]``."""
    name = named.partition(":")[0]
    owned = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    return owned and Path(named).suffix not in _ENDINGS


def _file_lines(path: Path, column: str | None) -> Iterator[Line]:
    """Yield the texts of a file, a line in memory at a time; LoadError names a damaged line."""
    name = "standard input" if str(path) == "-" else visible(str(path))
    try:
        with sys.stdin.buffer if name == "standard input" else path.open("rb") as stream:
            lines = (
                utf8(content.removesuffix(b"\n").removesuffix(b"\r"), f"{name} line {number}")
                for number, content in enumerate(_lines(stream, name), start=1)
            )
            yield from (Line(*line) for line in texts_in(path, name, lines, column))
    except OSError as error:
        raise LoadError(f"cannot read {name}: {error.strerror or error}") from error


def _lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    number = 0
    while line := stream.readline(TEXT_BYTES + 1):
        number += 1
        if len(line) > TEXT_BYTES:
            raise LoadError(
                f"{name} line {number} has more than {TEXT_BYTES:,} bytes: cut it into texts"
            )
        yield line


def _rows(source: str, rows: Iterable[Any], column: str | None) -> Iterator[Line]:
    for number, row in enumerate(rows, start=1):
        yield Line(number, cell_text(row, column, f"{source} row {number}"))


def _parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise LoadError(f"a Parquet file {_INSTALL}") from error
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(1024):
                yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot read {visible(str(path))}: {error}") from error


def _hub(name: str, split: str) -> Callable[[], Iterator[Any]]:
    """Return what yields a data set's rows as they are fetched; LoadError for whatever fails."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise LoadError(f"there is no file {name}, and a dataset {_INSTALL}") from error

    @contextmanager
    def in_one_line() -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the library has no common class for what can go wrong
            why = " ".join(str(error).split())[:200]
            raise LoadError(f"cannot read the dataset {name}, split {split}: {why}") from error

    def rows() -> Iterator[Any]:
        with in_one_line():
            yield from data

    with in_one_line():
        data: Iterable[Any] = load_dataset(name, split=split, streaming=True)
    return rows
