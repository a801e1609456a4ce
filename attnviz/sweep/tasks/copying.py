"""Copy a string of letters once a sign asks for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.sweep.records import Reference
from attnviz.sweep.tasks.patterns import DUPLICATE, FIRST, INDUCTION, back
from attnviz.sweep.tasks.task import BEGINNING, Pattern, Samples, Task, evenly

__all__ = ["Copying"]


class Copying(Task):
    """Random letters, a sign, the same letters again; what follows them does not count.

    letters: to choose from; a string may have the same one several times.
    size: least and largest length of a string.
    """

    name = "copy"

    def __init__(self, letters: int = 8, size: tuple[int, int] = (6, 14)) -> None:
        self.vocabulary, self.length = letters + 3, 2 * size[1] + 1
        self._letters, self._size = letters, size
        self._sign, self._filling = letters + 1, letters + 2
        self.words = (
            f"write a string of {size[0]} to {size[1]} random letters, of {letters}, once more "
            "behind a sign"
        )
        copied = Pattern("copy", "letter to be copied", self._sources)
        self.patterns = (back(1), copied, INDUCTION, DUPLICATE, FIRST)

    def draw(self, count: int, random: np.random.Generator) -> Samples:
        """Sequences whose predictions count from the sign to the last letter of the copy."""
        low, high = self._size
        size = random.integers(low, high, (count, 1), endpoint=True)
        letters = random.integers(1, self._letters, (count, high), endpoint=True)
        at = np.arange(self.length)
        source = np.where(at < size, at, at - size - 1) % high
        tokens = np.take_along_axis(letters, source, axis=1)
        tokens = np.where(at == size, self._sign, tokens)
        tokens = np.where(at > 2 * size, self._filling, tokens)
        counted = (at > size) & (at <= 2 * size)
        return Samples(np.insert(tokens, 0, BEGINNING, axis=1), counted)

    def chance(self, samples: Samples) -> Reference:
        """Every letter as likely."""
        return evenly(f"chance: {self._letters} letters", np.full(1, float(self._letters)))

    def _sources(self, samples: Samples) -> NDArray[np.bool_]:
        """Of each query whose prediction counts the letter that it is to write."""
        size = samples.counted.sum(1)[:, None, None]
        at = np.arange(self.length)
        return np.asarray((at[:, None] - at == size) & samples.counted[:, :, None])
