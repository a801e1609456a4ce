"""Name the letter that stood there most often."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.sweep.records import Reference
from attnviz.sweep.tasks.patterns import FIRST, back
from attnviz.sweep.tasks.task import BEGINNING, Pattern, Samples, Task, evenly

__all__ = ["Majority"]


class Majority(Task):
    """Random letters, a sign, the most frequent of them; what follows does not count.

    letters: to choose from. size: least and largest number of them before the sign.
    """

    name = "majority"

    def __init__(self, letters: int = 4, size: tuple[int, int] = (8, 24)) -> None:
        self.vocabulary, self.length = letters + 3, size[1] + 2
        self._letters, self._size = letters, size
        self._sign, self._filling = letters + 1, letters + 2
        self.words = (
            f"name the most frequent of {size[0]} to {size[1]} random letters, of {letters}, "
            "behind a sign"
        )
        self.patterns = (
            Pattern("majority", "most frequent letter", self._most),
            Pattern("letters", "letters that are counted", self._strings),
            back(1),
            FIRST,
        )

    def draw(self, count: int, random: np.random.Generator) -> Samples:
        """Sequences whose only prediction that counts is the answer; no two letters tie."""
        low, high = self._size
        size = random.integers(low, high, (count, 1), endpoint=True)
        at = np.arange(self.length)
        tokens = np.zeros((count, self.length), np.int64)
        answers = np.zeros(count, np.int64)
        open_ones = np.arange(count)
        while len(open_ones):
            drawn = random.integers(1, self._letters, (len(open_ones), self.length), endpoint=True)
            tokens[open_ones] = np.where(at < size[open_ones], drawn, 0)
            frequencies = np.sort(self._frequencies(tokens[open_ones]), axis=1)
            open_ones = open_ones[frequencies[:, -1] == frequencies[:, -2]]
        answers = 1 + self._frequencies(tokens).argmax(1)
        tokens = np.where(at == size, self._sign, tokens)
        tokens = np.where(at == size + 1, answers[:, None], tokens)
        tokens = np.where(at > size + 1, self._filling, tokens)
        return Samples(np.insert(tokens, 0, BEGINNING, axis=1), at == size + 1)

    def chance(self, samples: Samples) -> Reference:
        """Every letter as likely."""
        return evenly(f"chance: {self._letters} letters", np.full(1, float(self._letters)))

    def between(self, samples: Samples) -> tuple[Reference, ...]:
        """Who draws one of the letters that stand there."""
        frequencies = self._frequencies(np.where(self._before(samples), samples.ids[:, :-1], 0))
        share = frequencies.max(1) / frequencies.sum(1)
        return (
            Reference("a letter of the string", float(-np.log(share).mean()), float(share.mean())),
        )

    def _frequencies(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """How often each letter stands there: (sequence, token) to (sequence, letter)."""
        letters = np.arange(1, self._letters + 1)
        return np.asarray((tokens[:, :, None] == letters).sum(1))

    def _before(self, samples: Samples) -> NDArray[np.bool_]:
        """Which tokens but the last are letters of the string."""
        sign = samples.counted.argmax(1)[:, None]
        at = np.arange(self.length)
        return np.asarray((at > 0) & (at < sign))

    def _strings(self, samples: Samples) -> NDArray[np.bool_]:
        """Of the sign the letters before it."""
        return np.asarray(samples.counted[:, :, None] & self._before(samples)[:, None, :])

    def _most(self, samples: Samples) -> NDArray[np.bool_]:
        """Of the sign those of them that are the answer."""
        answers = samples.ids[:, 1:][samples.counted]
        equal = samples.ids[:, None, :-1] == answers[:, None, None]
        return np.asarray(self._strings(samples) & equal)
