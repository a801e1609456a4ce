"""The tasks of a sweep: random sequences to learn, rules for comparison, and patterns of heads.

Rules without any training are measured on the same sequences. Heads are scored by their attention
to the keys that the answers need, and to those of the literature's patterns, Olsson et al. 2022
(previous token, induction), Wang et al. 2022 (duplicate), Xiao et al. 2023 (first). The means over
these keys are those of ``measures``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.errors import UsageError
from attnviz.learn.sweep.report import Reference, SweepTask
from attnviz.learn.train.report import CorpusFacts

BEGINNING = 0
"""The token id that begins every sequence; letters are counted from 1."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Sequences of tokens for a task, and which of their tokens can be predicted.

    ids: (sequence, 1 + token), ``BEGINNING`` first. Token i + 1 is predicted at i.
    counted: (sequence, token), whether that prediction counts; at least one does.
    """

    ids: NDArray[np.int64]
    counted: NDArray[np.bool_]

    @property
    def predictions(self) -> int:
        """Return the number of predictions that count."""
        return int(self.counted.sum())


@dataclass(frozen=True)
class Pattern:
    """A pattern of attention: the keys that each query should attend to.

    name: for programs. words: for people.
    keys: a function of samples that returns (sequence, query, key), True for the pattern's keys; a
        query without any does not count. Queries and keys are all tokens except the last.
    """

    name: str
    words: str
    keys: Callable[[Samples], NDArray[np.bool_]]


class Task(ABC):
    """A task for small models: sequences to learn from, drawn anew for every batch.

    name: the value of ``--task``, or ``text``. words: a description of what is predicted.
    vocabulary: ids are below it. length: tokens of a sequence, without its beginning.
    letters: number of different answers. unit: the name of an answer.
    patterns: the patterns by which heads are scored. text: the facts of the training text, if any.
    """

    name: str
    words: str
    vocabulary: int
    length: int
    letters: int
    patterns: tuple[Pattern, ...]
    text: CorpusFacts | None = None
    unit = "letters"

    @abstractmethod
    def draw(self, count: int, random: np.random.Generator) -> Samples:
        """Return ``count`` sequences to learn from. random: draws them."""

    def held_out(self, count: int, random: np.random.Generator) -> Samples:
        """Return ``count`` sequences to measure on, or fewer if the task has no more.

        random: draws them.
        """
        return self.draw(count, random)

    def chance(self) -> Reference:
        """Return the expected result of answers drawn evenly from all letters."""
        return evenly(f"chance: {self.letters} {self.unit}", np.full(1, float(self.letters)))

    def best(self) -> Reference | None:
        """Return the least possible loss, and its accuracy; None if unknown."""
        return Reference("best possible", 0.0, 1.0)

    def between(self, samples: Samples) -> tuple[Reference, ...]:
        """Return the results on ``samples`` of simple rules that need no training."""
        return ()

    def facts(self, samples: Samples) -> SweepTask:
        """Return the facts of the task for the report, with references measured on ``samples``."""
        return SweepTask(
            name=self.name,
            words=self.words,
            vocabulary=self.vocabulary,
            length=self.length,
            chance=self.chance(),
            best=self.best(),
            between=self.between(samples),
            text=self.text,
        )


def evenly(name: str, choices: NDArray[np.floating]) -> Reference:
    """Return the expected result of drawing each answer evenly from the possible ones.

    The right answer is among them. name: of this rule. choices: the number of possible answers for
    each prediction.
    """
    return Reference(name, float(np.log(choices).mean()), float((1 / choices).mean()))


def back(tokens: int) -> Pattern:
    """Return the pattern of the key ``tokens`` before the query; 1 is the previous token."""
    name = "previous" if tokens == 1 else f"back_{tokens}"
    words = "previous token" if tokens == 1 else f"{tokens} tokens back"
    return Pattern(
        name, words, lambda samples: _earlier(samples, -tokens) & ~_earlier(samples, -tokens - 1)
    )


def _earlier(samples: Samples, diagonal: int = -1) -> NDArray[np.bool_]:
    """Return a mask (sequence, query, key) of the keys before a query, from a distance on."""
    sequences, tokens = samples.counted.shape
    return np.broadcast_to(np.tri(tokens, k=diagonal, dtype=np.bool_), (sequences, tokens, tokens))


def _first(samples: Samples) -> NDArray[np.bool_]:
    return np.asarray(_earlier(samples) & (np.arange(samples.counted.shape[1]) == 0))


def _duplicates(samples: Samples) -> NDArray[np.bool_]:
    tokens = samples.ids[:, :-1]
    return np.asarray((tokens[:, :, None] == tokens[:, None, :]) & _earlier(samples))


def _followed(samples: Samples) -> NDArray[np.bool_]:
    tokens = samples.ids[:, :-1]
    equal = tokens[:, :, None] == np.roll(tokens, 1, axis=1)[:, None, :]
    return np.asarray(equal & _earlier(samples) & ~_first(samples))  # no token precedes key 0


FIRST = Pattern("first", "first token", _first)
DUPLICATE = Pattern("duplicate", "same letter before", _duplicates)
INDUCTION = Pattern("induction", "what followed it before", _followed)


class Induction(Task):
    """The task of repeating what followed a letter before, in several strands that take turns.

    Each strand repeats a stretch of letters of its own. Induction heads (Elhage et al. 2021; Olsson
    et al. 2022) need a token that knows the one before it. With one strand a single head in the
    first layer is enough for that. If strands take turns, the next token belongs to another strand
    than the last one: to continue it, a query must know the last letter of that strand, and a key
    the letter before its own, which are at different distances.

    letters: number of different letters. strands: number of strands. period: least and largest
    length of a stretch, whose letters all differ. length: tokens of a sequence.
    """

    name = "induction"

    def __init__(
        self, letters: int = 9, strands: int = 3, period: tuple[int, int] = (3, 5), length: int = 42
    ) -> None:
        self.vocabulary, self.length = letters + 1, length
        self.letters, self._strands, self._period = letters, strands, period
        self.words = (
            f"repeat what followed this letter before: {strands} strands of {letters} letters take "
            f"turns, each repeats {period[0]} to {period[1]} different letters of its own"
        )
        self.patterns = (
            *map(back, range(max(strands - 1, 1), strands + 1)),
            Pattern("induction", "what followed before", self._followed),
            DUPLICATE,
            FIRST,
        )

    def draw(self, count: int, random: np.random.Generator) -> Samples:
        """Return ``count`` sequences; a prediction counts once its strand repeats.

        random: draws them.
        """
        turns = -(-self.length // self._strands)
        low, high = self._period
        rows = (count, self._strands, 1)
        period = random.integers(low, high, rows, endpoint=True)
        letters = np.broadcast_to(
            np.arange(1, self.letters + 1), (count, self._strands, self.letters)
        )
        turn = np.arange(turns)
        strands = np.take_along_axis(random.permuted(letters, axis=-1), turn % period, -1)
        # (sequence, strand, turn), reordered so that the strands take turns
        tokens = strands.swapaxes(1, 2).reshape(count, -1)[:, : self.length]
        known = (turn > period).swapaxes(1, 2).reshape(count, -1)[:, : self.length]
        return Samples(np.insert(tokens, 0, BEGINNING, axis=1), known)

    def between(self, samples: Samples) -> tuple[Reference, ...]:
        """Return the result on ``samples`` of guessing evenly among the letters of the strand."""
        answers = samples.ids[:, 1:]
        letters = np.zeros(answers.shape)  # how many different ones the token's strand has
        for strand in range(self._strands):
            ordered = np.sort(answers[:, strand :: self._strands], axis=1)
            different = 1 + (np.diff(ordered, axis=1) > 0).sum(1)
            letters[:, strand :: self._strands] = different[:, None]
        return (evenly("a letter of its strand", letters[samples.counted]),)

    def _followed(self, samples: Samples) -> NDArray[np.bool_]:
        """Return a mask (sequence, query, key) of the keys for a perfect induction head.

        They are the earlier keys that followed the last letter of the next token's strand.
        """
        tokens = samples.ids[:, :-1]
        at = np.arange(tokens.shape[1])
        # The last letter of the next token's strand.
        query = np.roll(tokens, self._strands - 1, axis=1)
        key = np.roll(tokens, self._strands, axis=1)  # the letter before, in the key's own strand
        same = query[:, :, None] == key[:, None, :]
        turn = (at[:, None] + 1 - at) % self._strands == 0
        there = (at >= self._strands)[:, None] & (at > self._strands) & (at < at[:, None])
        return np.asarray(same & turn & there)


class Copying(Task):
    """The task of copying: random letters, a sign, the same letters again, then filling.

    letters: number of different letters; a string may have the same one several times.
    size: least and largest length of a string.
    """

    name = "copy"

    def __init__(self, letters: int = 8, size: tuple[int, int] = (6, 14)) -> None:
        self.vocabulary, self.length = letters + 3, 2 * size[1] + 1
        self.letters, self._size = letters, size
        self._sign, self._filling = letters + 1, letters + 2
        self.words = (
            f"write a string of {size[0]} to {size[1]} random letters, of {letters}, once more "
            "behind a sign"
        )
        copied = Pattern("copy", "letter to be copied", self._sources)
        self.patterns = (back(1), copied, INDUCTION, DUPLICATE, FIRST)

    def draw(self, count: int, random: np.random.Generator) -> Samples:
        """Return ``count`` sequences; predictions from the sign to the last copied letter count."""
        low, high = self._size
        size = random.integers(low, high, (count, 1), endpoint=True)
        letters = random.integers(1, self.letters, (count, high), endpoint=True)
        at = np.arange(self.length)
        source = np.where(at < size, at, at - size - 1) % high
        tokens = np.take_along_axis(letters, source, axis=1)
        tokens = np.where(at == size, self._sign, tokens)
        tokens = np.where(at > 2 * size, self._filling, tokens)
        counted = (at > size) & (at <= 2 * size)
        return Samples(np.insert(tokens, 0, BEGINNING, axis=1), counted)

    def _sources(self, samples: Samples) -> NDArray[np.bool_]:
        """Return a mask (sequence, query, key) of the letter to copy, for counted predictions."""
        size = samples.counted.sum(1)[:, None, None]
        at = np.arange(self.length)
        return np.asarray((at[:, None] - at == size) & samples.counted[:, :, None])


class Majority(Task):
    """The task of naming the most frequent letter of a random string.

    A sign ends the string and the answer follows it; the rest of the sequence is filling.

    letters: number of different letters. size: least and largest length of the string.
    """

    name = "majority"

    def __init__(self, letters: int = 4, size: tuple[int, int] = (8, 24)) -> None:
        self.vocabulary, self.length = letters + 3, size[1] + 2
        self.letters, self._size = letters, size
        self._sign, self._filling = letters + 1, letters + 2
        self.words = (
            f"name the most frequent of {size[0]} to {size[1]} random letters, of {letters}, "
            "behind a sign"
        )
        self.patterns = (
            Pattern("majority", "most frequent letter", self._answer_keys),
            Pattern("letters", "letters that are counted", self._string_keys),
            back(1),
            FIRST,
        )

    def draw(self, count: int, random: np.random.Generator) -> Samples:
        """Return ``count`` sequences; only the answer's prediction counts, and no letters tie."""
        low, high = self._size
        size = random.integers(low, high, (count, 1), endpoint=True)
        at = np.arange(self.length)
        tokens = np.zeros((count, self.length), np.int64)
        answers = np.zeros(count, np.int64)
        open_ones = np.arange(count)
        while len(open_ones):
            drawn = random.integers(1, self.letters, (len(open_ones), self.length), endpoint=True)
            tokens[open_ones] = np.where(at < size[open_ones], drawn, 0)
            frequencies = np.sort(self._frequencies(tokens[open_ones]), axis=1)
            open_ones = open_ones[frequencies[:, -1] == frequencies[:, -2]]
        answers = 1 + self._frequencies(tokens).argmax(1)
        tokens = np.where(at == size, self._sign, tokens)
        tokens = np.where(at == size + 1, answers[:, None], tokens)
        tokens = np.where(at > size + 1, self._filling, tokens)
        return Samples(np.insert(tokens, 0, BEGINNING, axis=1), at == size + 1)

    def between(self, samples: Samples) -> tuple[Reference, ...]:
        """Return the result on ``samples`` of answering with a random letter of the string."""
        frequencies = self._frequencies(np.where(self._in_string(samples), samples.ids[:, :-1], 0))
        share = frequencies.max(1) / frequencies.sum(1)
        return (
            Reference("a letter of the string", float(-np.log(share).mean()), float(share.mean())),
        )

    def _frequencies(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how often each letter occurs: (sequence, token) to (sequence, letter)."""
        letters = np.arange(1, self.letters + 1)
        return np.asarray((tokens[:, :, None] == letters).sum(1))

    def _in_string(self, samples: Samples) -> NDArray[np.bool_]:
        """Return a mask (sequence, token) of the letters to count, which end at a sign."""
        sign = samples.counted.argmax(1)[:, None]
        at = np.arange(self.length)
        return np.asarray((at > 0) & (at < sign))

    def _string_keys(self, samples: Samples) -> NDArray[np.bool_]:
        """Return a mask (sequence, query, key) of the string's letters for queries at the sign."""
        return np.asarray(samples.counted[:, :, None] & self._in_string(samples)[:, None, :])

    def _answer_keys(self, samples: Samples) -> NDArray[np.bool_]:
        """Return a mask (sequence, query, key) of the answer's letter for queries at the sign."""
        answers = samples.ids[:, 1:][samples.counted]
        equal = samples.ids[:, None, :-1] == answers[:, None, None]
        return np.asarray(self._string_keys(samples) & equal)


TASKS: Mapping[str, Callable[[], Task]] = {
    "induction": Induction,
    "copy": Copying,
    "majority": Majority,
}


def named_task(name: str) -> Task:
    """Return the task of this name in its default size; raise UsageError if there is none."""
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}: expected {', '.join(TASKS)}, or --text FILE")
    return TASKS[name]()
