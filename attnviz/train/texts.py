"""Text files read as one text, told apart by a digest; the tokenizer made from it; its tokens.

The tokenizer is a byte-level BPE (Sennrich et al. 2016; bytes as in GPT-2).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from attnviz.errors import LoadError, UsageError
from attnviz.reading import CORPUS_BYTES, read_bytes

__all__ = ["BEGINNING", "Corpus", "encode", "hold_out", "make_tokenizer", "read_corpus"]

BEGINNING = 0
"""Id of the token that stands at the start of every sequence and between two texts."""

_BEGINNING_TEXT = "<|endoftext|>"
_USUAL = 4096
_LEAST_PAIRS = 2
"""How often a pair of tokens must occur to become a token: what occurs once teaches nothing."""

_LONGEST_WORD = 1000
_LONG_WORD = re.compile(rf"(?<!\S)\S{{{_LONGEST_WORD + 1},}}")

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


def make_tokenizer(texts: Sequence[str], vocabulary: int | None) -> Tokenizer:
    """A tokenizer of exactly ``vocabulary`` tokens that puts ``BEGINNING`` first.

    vocabulary: None for 4,096, or fewer where the text does not allow as many.
    Raises UsageError where the text does not allow that many, with the number that it does.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary or _USUAL,
        min_frequency=_LEAST_PAIRS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(_BEGINNING_TEXT, special=True, normalized=False)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_pieces(texts), trainer)
    made = tokenizer.get_vocab_size()
    if vocabulary is not None and made < vocabulary:
        raise UsageError(
            f"a vocabulary of {vocabulary:,} is larger than the text allows: it has pairs that "
            f"repeat for {made:,} tokens; ask for at most that many, or give more text"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BEGINNING_TEXT} $A", special_tokens=[(_BEGINNING_TEXT, BEGINNING)]
    )
    return tokenizer


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Paragraphs, for the trainer splits at white space anyway and reads them in parallel.

    Longer words are cut: it goes through a whole word again for each pair that it joins there.
    """
    for text in texts:
        for line in text.splitlines(True):
            start = 0
            for word in _LONG_WORD.finditer(line) if len(line) > _LONGEST_WORD else ():
                for end in range(word.start() + _LONGEST_WORD, word.end(), _LONGEST_WORD):
                    yield line[start:end]
                    start = end
            yield line[start:]


def encode(tokenizer: Tokenizer, texts: Sequence[str], separator: int) -> NDArray[np.int32]:
    """The ids of all texts in one row, ``separator`` between two of them: (token,)."""
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    rows: list[NDArray[np.int32]] = []
    for encoding in encodings:
        rows += [np.asarray([separator], np.int32), np.asarray(encoding.ids, np.int32)]
    return np.concatenate(rows[1:])
