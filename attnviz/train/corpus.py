"""Text files read as one text: decoded, told apart by a digest, turned into token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from attnviz.errors import LoadError, UsageError
from attnviz.reading import CORPUS_BYTES, read_bytes

__all__ = ["Corpus", "encode", "hold_out", "read_corpus"]

_HELD_OUT = 0.1


@dataclass(frozen=True)
class Corpus:
    """The texts of some files, in the order of the files.

    names: of the files. digest: the first 12 hexadecimal digits of a SHA-256 over the contents.
    files: of each file, whole, its name, its bytes and the first digits of its SHA-256.
    held_out: whether it was cut from the end of another one.
    """

    names: tuple[str, ...]
    texts: tuple[str, ...]
    digest: str
    files: tuple[tuple[str, int, str], ...] = ()
    held_out: bool = False

    @property
    def bytes(self) -> int:
        """Length of all texts in UTF-8."""
        return sum(len(text.encode()) for text in self.texts)


def read_corpus(paths: Iterable[Path]) -> Corpus:
    """Read files of UTF-8 text; a directory stands for its ``*.txt`` files, by name.

    Raises LoadError, naming the file, for one that is missing, unreadable or no UTF-8, and
    UsageError where a file or everything is empty, or two files are the same.
    """
    files: list[tuple[str, int, str]] = []
    texts: dict[str, Path] = {}
    digest = hashlib.sha256()
    for path in (file for named in paths for file in _files(named)):
        content = read_bytes(path, most=CORPUS_BYTES)
        text = _text(path, content)
        if text in texts:
            raise UsageError(
                f"{str(path)!r} holds the same text as {str(texts[text])!r}: name it once, or what "
                "is held out of one would be learned from the other"
            )
        texts[text] = path
        files.append((path.name, len(content), hashlib.sha256(content).hexdigest()[:12]))
        digest.update(hashlib.sha256(text.encode()).digest())
    if not files:
        raise UsageError("no text to train on: name files, or directories with *.txt files")
    names = tuple(name for name, _, _ in files)
    return Corpus(names, tuple(texts), digest.hexdigest()[:12], tuple(files))


def hold_out(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """The text without its last tenth, and that tenth, cut where a line ends if one does."""
    left = sum(map(len, corpus.texts))
    left -= max(1, round(left * _HELD_OUT))
    index = 0
    while left >= len(corpus.texts[index]):
        left -= len(corpus.texts[index])
        index += 1
    text, before, after = corpus.texts[index], corpus.texts[:index], corpus.texts[index + 1 :]
    cut = text.rfind("\n", 0, left) + 1 or left
    if not cut and not before:
        raise UsageError("the text is too short to hold out a tenth of it: name files with --valid")
    until = index + (cut > 0)
    kept = replace(
        corpus,
        names=corpus.names[:until],
        texts=(*before, *filter(None, [text[:cut]])),
        files=corpus.files[:until],
    )
    held = replace(
        corpus,
        names=corpus.names[index:],
        texts=(text[cut:], *after),
        files=corpus.files[index:],
        held_out=True,
    )
    return kept, held


def encode(tokenizer: Tokenizer, texts: Sequence[str], separator: int) -> NDArray[np.int32]:
    """The ids of all texts in one row, ``separator`` between two of them: (token,)."""
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    rows: list[NDArray[np.int32]] = []
    for encoding in encodings:
        rows += [np.asarray([separator], np.int32), np.asarray(encoding.ids, np.int32)]
    return np.concatenate(rows[1:])


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.glob("*.txt") if file.is_file())
    if not files:
        raise UsageError(f"{str(path)!r} has no *.txt files: name the files, or another directory")
    return files


def _text(path: Path, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LoadError(
            f"{str(path)!r} is no UTF-8 text: byte {error.start:,} cannot be read; convert it first"
        ) from error
    if not text.strip():
        raise UsageError(f"{str(path)!r} is empty: leave it out, or name another file")
    return text
