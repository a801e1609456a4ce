"""The task of predicting the next character of a text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnviz.errors import UsageError
from attnviz.learn.sweep.report import Reference
from attnviz.learn.sweep.tasks import BEGINNING, DUPLICATE, FIRST, INDUCTION, Samples, Task, back
from attnviz.learn.train.report import CorpusFacts
from attnviz.learn.train.texts import read_corpus

_LEAST = 1000
"""Least number of characters of a text."""

_MOST_DIFFERENT = 126
"""Number of characters with an id of their own, the most frequent ones; all others share one id."""

_OTHERS = 1


class Characters(Task):
    """The task of predicting characters in random windows of a text; its last tenth is held out.

    path: a file of UTF-8 text, or a directory of ``*.txt`` files. length: characters of a window.
    Raises UsageError if the text is too short, LoadError if it cannot be read.
    """

    name = "text"
    words = "guess the next character of the text"
    unit = "characters"
    patterns = (back(1), INDUCTION, DUPLICATE, FIRST)

    def __init__(self, path: Path, length: int = 42) -> None:
        corpus = read_corpus([path])
        characters = sum(map(len, corpus.texts))
        if characters < _LEAST:
            raise UsageError(
                f"the text of --text has {characters:,} characters: expected at least {_LEAST:,}, "
                "so that a tenth of it can be held out; give a longer one"
            )
        whole = "\n".join(corpus.texts)
        cut = len(whole) - len(whole) // 10
        frequent = [character for character, _ in Counter(whole[:cut]).most_common(_MOST_DIFFERENT)]
        known = {character: number for number, character in enumerate(frequent, _OTHERS + 1)}
        ids = np.array([known.get(character, _OTHERS) for character in whole])
        self._learned, self._held = ids[:cut], ids[cut:]
        self.length, self.letters, self.vocabulary = length, len(known), len(known) + 2
        self.text = CorpusFacts(
            files=corpus.names, bytes=corpus.bytes, tokens=len(ids), digest=corpus.digest
        )

    def draw(self, count: int, random: np.random.Generator) -> Samples:
        """Return ``count`` windows that begin at random positions; every prediction counts."""
        starts = random.integers(0, len(self._learned) - self.length, count, endpoint=True)
        return self._windows(self._learned, starts)

    def held_out(self, count: int, random: np.random.Generator) -> Samples:
        """Return at most ``count`` adjacent windows of the last tenth of the text.

        They do not depend on the random numbers.
        """
        most = len(self._held) // self.length
        return self._windows(self._held, np.arange(min(count, most)) * self.length)

    def best(self) -> None:
        """Return None, since the least possible loss on a text is unknown."""

    def between(self, samples: Samples) -> tuple[Reference, ...]:
        """Return the results on ``samples`` of two rules that count without any training.

        They predict by the frequency of characters, and of the character after the previous one.
        Each count is raised by one. A window's first character is predicted by its frequency.
        """
        size = self.vocabulary
        alone = 1.0 + np.bincount(self._learned, minlength=size)
        pairs = self._learned[:-1] * size + self._learned[1:]
        behind = 1.0 + np.bincount(pairs, minlength=size * size).reshape(size, size)
        behind[BEGINNING] = alone
        before, answers = samples.ids[:, :-1], samples.ids[:, 1:]
        references = []
        for name, counts in (
            ("by character frequency", np.broadcast_to(alone, (size, size)).copy()),
            ("by the character before", behind),
        ):
            counts[:, BEGINNING] = 0
            shares = counts / counts.sum(1, keepdims=True)
            losses = -np.log(shares[before, answers])
            right = shares.argmax(1)[before] == answers
            references.append(Reference(name, float(losses.mean()), float(right.mean())))
        return tuple(references)

    def _windows(self, ids: NDArray[np.int64], starts: NDArray[np.int64]) -> Samples:
        tokens = ids[starts[:, None] + np.arange(self.length)]
        return Samples(np.insert(tokens, 0, BEGINNING, axis=1), np.ones(tokens.shape, np.bool_))
