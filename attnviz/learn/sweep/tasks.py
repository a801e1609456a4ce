"""The tasks of a sweep: sequences to learn, rules to compare with, and patterns of heads.

Rules without any training are measured on the same sequences. Heads are scored by their attention
to the keys that the answers need, and to those of the literature's patterns, Olsson et al. 2022
(previous token, induction), Wang et al. 2022 (duplicate), Xiao et al. 2023 (first). The means over
these keys are those of ``measures``. A mask of keys is (sequence, query, key).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from attnviz.errors import UsageError
from attnviz.learn.sweep.report import Reference, SweepTask
from attnviz.learn.train.report import CorpusFacts
from attnviz.learn.train.texts import read_corpus

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

BEGINNING = 0
"""The token id that begins every sequence; letters are counted from 1."""

_LEAST, _WINDOW, _MOST_DIFFERENT, _OTHERS = 1000, 42, 126, 1
"""Of a text: its fewest characters, those of a sequence, the number of frequent ones that have an
id of their own, and the id of all others."""


class Samples:
    """Sequences of tokens for a task, and which of their tokens can be predicted.

    answers: (sequence, token), the ids that are to be predicted. counted: a mask of the same shape,
    whether a prediction counts; at least one does. ids: (sequence, 1 + token), ``BEGINNING`` first.
    queries: all ids but the last, which are queries and keys of attention.
    """

    def __init__(self, answers: Ids, counted: Mask) -> None:
        self.answers, self.counted = answers, counted
        self.ids = np.insert(answers, 0, BEGINNING, axis=1)
        self.queries = self.ids[:, :-1]


class Pattern(NamedTuple):
    """A pattern of attention: its name, words for people, and the keys that it is about.

    keys: returns their mask; a query without any does not count.
    """

    name: str
    words: str
    keys: Callable[[Samples], Mask]


def _before(samples: Samples, distance: int = 1) -> Mask:
    """Return a mask of the keys that stand at least ``distance`` before the query."""
    sequences, tokens = samples.counted.shape
    return np.broadcast_to(np.tri(tokens, k=-distance, dtype=np.bool_), (sequences, tokens, tokens))


def _equal(samples: Samples, wanted: Ids, after: int = 0) -> Mask:
    """Return a mask of the earlier keys that equal what a query wants, or that follow one.

    wanted: (sequence, query). after: 0, or 1 for the keys that follow one.
    """
    keys = np.roll(samples.queries, after, axis=1)[:, None, :]
    there = np.arange(keys.shape[-1]) >= after  # no token precedes key 0
    return np.asarray((wanted[:, :, None] == keys) & _before(samples) & there)


def back(tokens: int) -> Pattern:
    """Return the pattern of the key ``tokens`` before the query; 1 is the previous token."""
    name, words = f"back_{tokens}", f"{tokens} tokens back"
    if tokens == 1:
        name, words = "previous", "previous token"
    return Pattern(name, words, lambda own: _before(own, tokens) & ~_before(own, tokens + 1))


FIRST = Pattern(
    "first", "first token", lambda own: _before(own) & (np.arange(own.counted.shape[1]) == 0)
)
DUPLICATE = Pattern("duplicate", "same letter before", lambda own: _equal(own, own.queries))
INDUCTION = Pattern("induction", "what followed it before", lambda own: _equal(own, own.queries, 1))


class Task(NamedTuple):
    """A task for small models: sequences to learn from, drawn anew for every batch.

    facts: without the rules that are measured. patterns: those by which heads are scored.
    draw: returns a given number of sequences to learn from. between: returns the results of simple
        rules. held_out: returns a given number of sequences to measure on, or fewer if there are no
        more; None if they are drawn in the same way.
    """

    facts: SweepTask
    patterns: Sequence[Pattern]
    draw: Callable[[int, Generator], Samples]
    between: Callable[[Samples], Sequence[Reference]] = lambda samples: ()
    held_out: Callable[[int], Samples] | None = None


def _evenly(name: str, choices: NDArray[np.floating]) -> Reference:
    """Return the expected result of drawing each answer evenly from so many possible ones."""
    return Reference(name, float(np.log(choices).mean()), float((1 / choices).mean()))


def _chance(letters: int, unit: str = "letters") -> Reference:
    return _evenly(f"chance: {letters} {unit}", np.full(1, float(letters)))


# Induction: what followed before ------------------------------------------------------------

STRANDS = 3
"""Strands of letters that take turns; each repeats a stretch of letters of its own, all different.

Induction heads (Elhage et al. 2021; Olsson et al. 2022) need a token that knows the one before it.
With one strand a single head in the first layer is enough for that. If strands take turns, the next
token belongs to another strand than the last one: to continue it, a query must know the last letter
of that strand, and a key the letter before its own, which are at different distances.
"""


def _draw_strands(count: int, random: Generator) -> Samples:
    """Return sequences of strands; a prediction counts once its strand repeats."""
    period = random.integers(3, 5, (count, STRANDS, 1), endpoint=True)
    letters = random.permuted(np.broadcast_to(np.arange(1, 10), (count, STRANDS, 9)), axis=-1)
    turn = np.arange(14)
    strands = np.take_along_axis(letters, turn % period, -1)  # (sequence, strand, turn)
    by_turn = strands.swapaxes(1, 2).reshape(count, -1)
    return Samples(by_turn, (turn > period).swapaxes(1, 2).reshape(count, -1))


def _letter_of_strand(samples: Samples) -> list[Reference]:
    """Return the result of guessing evenly among the letters of the strand."""
    letters = np.zeros(samples.answers.shape)  # how many different ones the token's strand has
    for strand in range(STRANDS):
        ordered = np.sort(samples.answers[:, strand::STRANDS], axis=1)
        letters[:, strand::STRANDS] = 1 + (np.diff(ordered) > 0).sum(1, keepdims=True)
    return [_evenly("a letter of its strand", letters[samples.counted])]


def _followed_in_strand(samples: Samples) -> Mask:
    """Return a mask of a perfect induction head: the answer, where it follows in its strand."""
    at = np.arange(samples.counted.shape[1])
    same_strand = (at[:, None] + 1 - at) % STRANDS == 0
    return np.asarray(_equal(samples, samples.answers) & same_strand & (at > STRANDS))


# Copying and counting: a string of random letters, a sign, the answer, then filling -----------


def _string(letters: int, tokens: Ids, size: Ids, answers: Ids | int) -> Samples:
    """Return the samples of strings of letters with their answers; the answers' predictions count.

    tokens: (sequence, token). size: (sequence, 1), of each string, behind which the sign stands.
    answers: how many tokens each answer has, from behind the sign on.
    """
    at = np.arange(tokens.shape[1])
    tokens = np.where(at == size, letters + 1, tokens)
    tokens = np.where(at > size + answers, letters + 2, tokens)
    return Samples(tokens, (at > size) & (at <= size + answers))


def _draw_copies(count: int, random: Generator) -> Samples:
    size = random.integers(6, 14, (count, 1), endpoint=True)
    letters = random.integers(1, 8, (count, 14), endpoint=True)
    at = np.arange(29)
    source = np.where(at < size, at, at - size - 1) % 14
    return _string(8, np.take_along_axis(letters, source, axis=1), size, size)


def _copied(samples: Samples) -> Mask:
    """Return a mask of the letter to copy, for counted predictions."""
    size, at = samples.counted.sum(1)[:, None, None], np.arange(samples.counted.shape[1])
    return np.asarray((at[:, None] - at == size) & samples.counted[:, :, None])


def _draw_majorities(count: int, random: Generator) -> Samples:
    """Return sequences of a string and its most frequent letter; no letters tie."""
    size = random.integers(8, 24, (count, 1), endpoint=True)
    tokens, at, tied = np.zeros((count, 26), np.int64), np.arange(26), np.arange(count)
    while len(tied):
        drawn = random.integers(1, 4, (len(tied), 26), endpoint=True)
        tokens[tied] = np.where(at < size[tied], drawn, 0)
        frequencies = np.sort(_frequencies(tokens[tied]), axis=1)
        tied = tied[frequencies[:, -1] == frequencies[:, -2]]
    most = 1 + _frequencies(tokens).argmax(1, keepdims=True)
    return _string(4, np.where(at == size + 1, most, tokens), size, 1)


def _frequencies(tokens: Ids) -> Ids:
    """Return how often each of four letters occurs: (sequence, token) to (sequence, letter)."""
    return np.asarray((tokens[:, :, None] == np.arange(1, 5)).sum(1))


def _letter_of_string(samples: Samples) -> list[Reference]:
    """Return the result of answering with a random letter of the string."""
    string = np.where(_counted_letters(samples).any(1), samples.queries, 0)
    share = _frequencies(string).max(1) / _frequencies(string).sum(1)
    return [Reference("a letter of the string", float(-np.log(share).mean()), float(share.mean()))]


def _counted_letters(samples: Samples) -> Mask:
    """Return a mask of the string's letters, which end before the sign, for the query at it."""
    at = np.arange(samples.counted.shape[1])
    return np.asarray(_before(samples) & samples.counted[:, :, None] & (at > 0))


TASKS = {
    "induction": Task(
        SweepTask(
            "induction",
            "repeat what followed this letter before: 3 strands of 9 letters take turns, each "
            "repeats 3 to 5 different letters of its own",
            *(10, 42, _chance(9)),
        ),
        patterns=(
            *map(back, (STRANDS - 1, STRANDS)),
            Pattern("induction", "what followed before", _followed_in_strand),
            *(DUPLICATE, FIRST),
        ),
        draw=_draw_strands,
        between=_letter_of_strand,
    ),
    "copy": Task(
        SweepTask(
            "copy",
            "write a string of 6 to 14 random letters, of 8, once more behind a sign",
            *(11, 29, _chance(8)),
        ),
        patterns=(
            *(back(1), Pattern("copy", "letter to be copied", _copied)),
            *(INDUCTION, DUPLICATE, FIRST),
        ),
        draw=_draw_copies,
    ),
    "majority": Task(
        SweepTask(
            "majority",
            "name the most frequent of 8 to 24 random letters, of 4, behind a sign",
            *(7, 26, _chance(4)),
        ),
        patterns=(
            Pattern(
                "majority",
                "most frequent letter",
                lambda own: _counted_letters(own) & _equal(own, own.answers),
            ),
            Pattern("letters", "letters that are counted", _counted_letters),
            *(back(1), FIRST),
        ),
        draw=_draw_majorities,
        between=_letter_of_string,
    ),
}
"""The tasks that ``--task`` names."""


# The characters of a text ---------------------------------------------------------------------


def characters(path: Path) -> Task:
    """Return the task of predicting characters in windows of a text; its last tenth is held out.

    path: a file of UTF-8 text, or a directory of ``*.txt`` files.
    To learn from, windows begin at random; those held out are adjacent and always the same.
    Raises UsageError if the text is too short, LoadError if it cannot be read.
    """
    corpus = read_corpus([path])
    count = sum(map(len, corpus.texts))
    if count < _LEAST:
        raise UsageError(
            f"the text of --text has {count:,} characters: expected at least "
            f"{_LEAST:,}, so that a tenth of it can be held out; give a longer one"
        )
    whole = "\n".join(corpus.texts)
    cut = len(whole) - len(whole) // 10
    frequent = Counter(whole[:cut]).most_common(_MOST_DIFFERENT)
    known = {character: number for number, (character, _) in enumerate(frequent, _OTHERS + 1)}
    ids = np.array([known.get(character, _OTHERS) for character in whole])
    learned, held = ids[:cut], ids[cut:]

    def windows(ids: Ids, starts: Ids) -> Samples:
        tokens = ids[starts[:, None] + np.arange(_WINDOW)]
        return Samples(tokens, np.ones(tokens.shape, np.bool_))

    def draw(count: int, random: Generator) -> Samples:
        return windows(learned, random.integers(0, len(learned) - _WINDOW, count, endpoint=True))

    text = CorpusFacts(corpus.names, corpus.bytes, len(ids), corpus.digest)
    return Task(
        SweepTask(
            "text",
            "guess the next character of the text",
            vocabulary=len(known) + 2,
            length=_WINDOW,
            chance=_chance(len(known), "characters"),
            best=None,
            text=text,
        ),
        patterns=(back(1), INDUCTION, DUPLICATE, FIRST),
        draw=draw,
        held_out=lambda count: windows(held, np.arange(min(count, len(held) // _WINDOW)) * _WINDOW),
        between=lambda samples: _by_frequency(learned, len(known) + 2, samples),
    )


def _by_frequency(learned: Ids, size: int, samples: Samples) -> list[Reference]:
    """Return the results of predicting by the frequency of characters, and after the one before.

    learned: the ids that are counted; each count is raised by one. size: ids are below it.
    A window's first character is predicted by its frequency.
    """
    alone = 1.0 + np.bincount(learned, minlength=size)
    pairs = learned[:-1] * size + learned[1:]
    behind = 1.0 + np.bincount(pairs, minlength=size * size).reshape(size, size)
    behind[BEGINNING] = alone
    rules = {"by character frequency": np.tile(alone, (size, 1)), "by the character before": behind}
    references = []
    for name, counts in rules.items():
        counts[:, BEGINNING] = 0
        shares = counts / counts.sum(1, keepdims=True)
        loss = float(-np.log(shares[samples.queries, samples.answers]).mean())
        right = shares.argmax(1)[samples.queries] == samples.answers
        references.append(Reference(name, loss, float(right.mean())))
    return references
