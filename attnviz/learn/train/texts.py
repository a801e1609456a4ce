"""The training data of a model: text files, their tokens, and batches.

The tokenizer is a byte-level BPE (Sennrich et al. 2016; bytes as in GPT-2). Batches are of plain
text and of sequences that repeat, the same for the same seed and position: induction heads form
on repeated tokens (Olsson et al. 2022). Uniform random tokens are not predictable, so their loss
counts only after an earlier copy.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from attnviz.errors import UsageError
from attnviz.learn.train.recipe import Phase
from attnviz.reading import CORPUS_BYTES, read_bytes, utf8

BEGINNING = 0
"""Id of the token at the start of every sequence and between two texts."""

_BEGINNING_TEXT = "<|endoftext|>"
_USUAL = 4096
_LONG_WORD = re.compile(r"(\S{1000})")
_HELD_OUT = 0.1


@dataclass(frozen=True)
class Corpus:
    """The texts of some files, for training or validation.

    names: of the files. texts: their contents, in the same order. digest: the first 12 hexadecimal
    digits of a SHA-256 over the contents. held_out: whether it was cut from the end of another.
    """

    names: tuple[str, ...]
    texts: tuple[str, ...]
    digest: str
    held_out: bool = False

    @property
    def bytes(self) -> int:
        """Return the length of all texts together in UTF-8 bytes."""
        return sum(len(text.encode()) for text in self.texts)


def read_corpus(paths: Iterable[Path], apart: Corpus | None = None) -> Corpus:
    """Return the texts of some files; a directory means its ``*.txt`` files, by name.

    apart: a corpus that must have no text in common with these files.
    Raises LoadError that names the file if one is missing, unreadable or not UTF-8, UsageError if a
    file is empty, if a text is there twice or also in ``apart``, or if there is no file.
    """
    known = dict(zip(apart.texts, apart.names, strict=True)) if apart else {}
    names, texts, digest = [], [], hashlib.sha256()
    for path in (file for named in paths for file in _files(named)):
        text = utf8(read_bytes(path, most=CORPUS_BYTES), repr(str(path)))
        if not text.strip():
            raise UsageError(f"{str(path)!r} is empty: leave it out, or name another file")
        if text in known:
            raise UsageError(
                f"{str(path)!r} holds the same text as {known[text]!r}: name it once, or what is "
                "held out of one would be learned from the other"
            )
        known[text] = str(path)
        names.append(path.name)
        texts.append(text)
        digest.update(hashlib.sha256(text.encode()).digest())
    if not texts:
        raise UsageError(
            "no text to learn from: name FILES, before --valid, which takes all that follow it"
        )
    return Corpus(tuple(names), tuple(texts), digest.hexdigest()[:12])


def hold_out(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """Split a corpus in all but its last tenth, and that tenth, between lines if possible."""
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
    names, kept = corpus.names, (*before, *filter(None, [text[:cut]]))
    return (
        replace(corpus, names=names[: len(kept)], texts=kept),
        replace(corpus, names=names[index:], texts=(text[cut:], *after), held_out=True),
    )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.glob("*.txt") if file.is_file())
    if not files:
        raise UsageError(f"{str(path)!r} has no *.txt files: name the files, or another directory")
    return files


def make_tokenizer(texts: Sequence[str], vocabulary: int | None) -> Tokenizer:
    """Return a tokenizer of exactly ``vocabulary`` tokens that puts ``BEGINNING`` first.

    vocabulary: None for 4,096, or fewer if the text does not allow as many.
    Raises UsageError with the largest possible number if the text does not allow ``vocabulary``.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary or _USUAL,
        min_frequency=2,
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
    """Yield the lines of the texts, which the trainer reads in parallel; long words are cut.

    The trainer reads a whole word again for each pair that it merges in it.
    """
    for text in texts:
        for line in text.splitlines(True):
            yield from filter(None, _LONG_WORD.split(line)) if len(line) > 1000 else [line]


def encode(tokenizer: Tokenizer, texts: Sequence[str], separator: int) -> NDArray[np.int32]:
    """Return the token ids of all texts in one array, ``separator`` between two texts: (token,)."""
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    rows = [np.asarray([separator, *encoding.ids], np.int32) for encoding in encodings]
    return np.concatenate(rows)[1:]


KIND_WORDS: Mapping[str, str] = {
    "text": "text",
    "repeated_tokens": "uniform random tokens, repeated",
    "repeated_passages": "passages of the text, repeated",
    "recalled_pairs": "pairs of uniform random tokens, repeated in another order",
}
"""The kinds of sequences, by their names in recipes, in words."""

_WINDOWS, _SEQUENCES = 1, 2  # the purposes of random numbers; each has its own stream


class Batch(NamedTuple):
    """A batch of sequences to train on.

    ids: (sequence, token), the first one the beginning of a text. Token i + 1 is predicted at i.
    weights: (sequence, token − 1), by which each prediction's loss is multiplied; 0 if it does not
        count. kinds: number of sequences by kind.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    kinds: Counter[str]


class Sampler:
    """Draws the batches of a training from its text and at random.

    tokens: the training text's ids, (token,). vocabulary: ids are below it. beginning: the id
    that starts every sequence, never drawn at random.
    position, windows: batches and windows of text drawn so far; a resumed run needs only these.
    """

    def __init__(
        self, tokens: NDArray[np.int32], vocabulary: int, beginning: int, seed: int
    ) -> None:
        self._tokens, self._vocabulary, self._beginning = tokens, vocabulary, beginning
        self._seed = seed
        self._order: tuple[tuple[int, int], NDArray[np.int64]] | None = None
        self.position = 0
        self.windows = 0

    def draw(self, phase: Phase) -> Batch:
        """Return the next batch. phase: its settings; its length is at most that of the text."""
        random = np.random.default_rng((self._seed, _SEQUENCES, self.position))
        self.position += 1
        sequences, weights, kinds = zip(
            *(self._sequence(phase, random) for _ in range(phase.batch)), strict=True
        )
        ids = np.insert(np.stack(sequences), 0, self._beginning, axis=1)
        return Batch(ids.astype(np.int64), np.stack(weights), Counter(kinds))

    def _sequence(
        self, phase: Phase, random: np.random.Generator
    ) -> tuple[NDArray[np.integer], NDArray[np.float32], str]:
        """Return the ids of one sequence, the loss weight of each prediction, and its kind."""
        weights = np.ones(phase.length, np.float32)
        draw = random.random()
        for kind in list(KIND_WORDS)[1:]:
            share = getattr(phase, kind)
            if draw < share:
                break
            draw -= share
        else:
            return self._window(phase.length), weights, "text"
        period = int(random.integers(phase.period[0], phase.period[1], endpoint=True))
        if kind == "recalled_pairs":
            # Only the first token of a pair predicts the second; the token before it misleads.
            count = max(1, period // 2)
            pairs = self._random_tokens(2 * count, random).reshape(count, 2)
            rounds = range(-(-phase.length // (2 * count)))
            order = np.concatenate([random.permutation(count) for _ in rounds])
            weights[:] = phase.surprise
            weights[2 * count + 1 :: 2] = 1
            return pairs[order].ravel()[: phase.length], weights, kind
        if kind == "repeated_passages":
            start = int(random.integers(0, len(self._tokens) - period, endpoint=True))
            stretch: NDArray[np.integer] = self._tokens[start : start + period]
        else:
            # The beginning of a text predicts the first token, so the copy's first prediction is
            # made at index period; there it is not predictable that the stretch has ended.
            weights[: period + 1] = phase.surprise
            stretch = self._random_tokens(period, random)
        return np.resize(stretch, phase.length), weights, kind

    def _random_tokens(self, count: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Return ``count`` ids drawn evenly from all except the one that begins a text."""
        drawn = random.integers(0, self._vocabulary - 1, count)
        return drawn + (drawn >= self._beginning)

    def _window(self, length: int) -> NDArray[np.int32]:
        """Return the next window of ``length`` tokens; every window comes once per epoch.

        An epoch's windows are adjacent from a random offset on, and shuffled.
        """
        count = len(self._tokens) // length
        epoch, index = divmod(self.windows, count)
        self.windows += 1
        if self._order is None or self._order[0] != (epoch, length):
            random = np.random.default_rng((self._seed, _WINDOWS, epoch))
            offset = random.integers(0, len(self._tokens) - count * length, endpoint=True)
            self._order = (epoch, length), offset + length * random.permutation(count)
        start = self._order[1][index]
        return self._tokens[start : start + length]
