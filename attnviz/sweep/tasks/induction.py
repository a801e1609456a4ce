"""Repeat what followed this letter before, of several strands that take turns.

Induction heads (Elhage et al. 2021; Olsson et al. 2022) need a token that knows the one before it.
With one strand a single head in the first layer is enough for that. Where strands take turns, the
next token belongs to another strand than the last one: to continue it, a query must know the last
letter of that strand and a key the letter before its own, which are at different distances.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.sweep.records import Reference
from attnviz.sweep.tasks.patterns import DUPLICATE, FIRST, back
from attnviz.sweep.tasks.task import BEGINNING, Pattern, Samples, Task, evenly

__all__ = ["Induction"]


class Induction(Task):
    """Strands of letters that take turns, each repeating a stretch of its own.

    letters: to choose from. strands: how many. period: least and largest length of a stretch; its
    letters are different ones. length: tokens of a sequence.
    """

    name = "induction"

    def __init__(
        self,
        letters: int = 9,
        strands: int = 3,
        period: tuple[int, int] = (3, 5),
        length: int = 42,
    ) -> None:
        self.vocabulary, self.length = letters + 1, length
        self._letters, self._strands, self._period = letters, strands, period
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
        """Sequences whose predictions count once their strand repeats."""
        turns = -(-self.length // self._strands)
        low, high = self._period
        rows = (count, self._strands, 1)
        period = random.integers(low, high, rows, endpoint=True)
        letters = np.broadcast_to(
            np.arange(1, self._letters + 1), (count, self._strands, self._letters)
        )
        turn = np.arange(turns)
        strands = np.take_along_axis(random.permuted(letters, axis=-1), turn % period, -1)
        # (sequence, strand, turn) to tokens that take turns
        tokens = strands.swapaxes(1, 2).reshape(count, -1)[:, : self.length]
        known = (turn > period).swapaxes(1, 2).reshape(count, -1)[:, : self.length]
        return Samples(np.insert(tokens, 0, BEGINNING, axis=1), known)

    def chance(self, samples: Samples) -> Reference:
        """Every letter as likely."""
        return evenly(f"chance: {self._letters} letters", np.full(1, float(self._letters)))

    def between(self, samples: Samples) -> tuple[Reference, ...]:
        """Who knows the strand's letters, but not their order."""
        counts = self._different(samples)[samples.counted]
        return (evenly("a letter of its strand", counts),)

    def _different(self, samples: Samples) -> NDArray[np.float64]:
        """The different letters that the strand of each predicted token has had: its period."""
        answers = samples.ids[:, 1:]
        found = np.zeros(answers.shape)
        for strand in range(self._strands):
            own = answers[:, strand :: self._strands]
            ordered = np.sort(own, axis=1)
            found[:, strand :: self._strands] = 1 + (np.diff(ordered, axis=1) > 0).sum(1)[:, None]
        return found

    def _followed(self, samples: Samples) -> NDArray[np.bool_]:
        """Of each query the earlier letters of the next token's strand that the last one led to."""
        tokens = samples.ids[:, :-1]
        at = np.arange(tokens.shape[1])
        query = np.roll(tokens, self._strands - 1, axis=1)  # the last letter of the next's strand
        key = np.roll(tokens, self._strands, axis=1)  # the letter before, in the key's own strand
        same = query[:, :, None] == key[:, None, :]
        turn = (at[:, None] + 1 - at) % self._strands == 0
        there = (at >= self._strands)[:, None] & (at > self._strands) & (at < at[:, None])
        return np.asarray(same & turn & there)
