"""Batches of plain text and of sequences that repeat, the same for the same seed and position.

Induction heads form where tokens repeat (Olsson et al. 2022). Uniform random tokens leave nothing
else to predict from, so their loss counts only where an earlier copy says what comes next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attnviz.errors import UsageError
from attnviz.train.recipe import Phase

__all__ = ["KIND_WORDS", "Batch", "Sampler", "SequenceKind", "text_too_short"]

SequenceKind = Literal["text", "repeated_tokens", "repeated_passages", "recalled_pairs"]

KIND_WORDS: Mapping[str, str] = {
    "text": "text",
    "repeated_tokens": "uniform random tokens that repeat",
    "repeated_passages": "passages of the text that repeat",
    "recalled_pairs": "pairs of uniform random tokens that come again in another order",
}
"""What a model learns from, in words, by the names that recipes have for it."""

_WINDOWS, _SEQUENCES = 1, 2
"""What a stream of random numbers is for, so that two purposes never share one."""


@dataclass(frozen=True)
class Batch:
    """Sequences to learn from.

    ids: (sequence, token), the first one the beginning of a text. Token i + 1 is predicted at i.
    weights: (sequence, token − 1), of each prediction's loss; 0 where it does not count.
    kinds: number of sequences by kind.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    kinds: Counter[str]


class Sampler:
    """Draws the batches of a run.

    tokens: the training text's ids, (token,). vocabulary: ids are below it. beginning: the id
    that starts every sequence, never drawn at random.
    position: batches drawn; all that a resumed run needs to go on with the same ones, beside
    ``windows``, the windows of text that were drawn.
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
        """The next batch; UsageError where the text is shorter than a sequence."""
        random = np.random.default_rng((self._seed, _SEQUENCES, self.position))
        self.position += 1
        rows = [self._sequence(phase, random) for _ in range(phase.batch)]
        return Batch(
            np.stack([ids for ids, _, _ in rows]),
            np.stack([weights for _, weights, _ in rows]),
            Counter(kind for _, _, kind in rows),
        )

    def _sequence(
        self, phase: Phase, random: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], SequenceKind]:
        draw = random.random()
        shares: tuple[tuple[SequenceKind, float], ...] = (
            ("repeated_tokens", phase.repeated_tokens),
            ("repeated_passages", phase.repeated_passages),
            ("recalled_pairs", phase.recalled_pairs),
        )
        for kind, share in shares:
            if draw < share:
                ids, weights = self._synthetic(kind, phase, random)
                return self._begun(ids), weights, kind
            draw -= share
        return self._begun(self._window(phase.length)), np.ones(phase.length, np.float32), "text"

    def _synthetic(
        self, kind: SequenceKind, phase: Phase, random: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """A sequence that is no plain text, and the weight of each of its tokens' prediction."""
        period = int(random.integers(phase.period[0], phase.period[1], endpoint=True))
        if kind == "recalled_pairs":
            return self._recalling(max(1, period // 2), phase, random)
        weights = np.ones(phase.length, np.float32)
        if kind == "repeated_passages":
            return np.resize(self._passage(period, random), phase.length), weights
        # The beginning of a text predicts the first token, so the copy's first prediction is made
        # at index period; nothing tells there that the stretch has ended.
        weights[: period + 1] = phase.surprise
        return np.resize(self._random_tokens(period, random), phase.length), weights

    def _recalling(
        self, count: int, phase: Phase, random: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Pairs of random tokens in rounds, each round in another order.

        Only the first token of a pair tells the second one; what came before it misleads.
        """
        pairs = self._random_tokens(2 * count, random).reshape(count, 2)
        rounds = -(-phase.length // (2 * count))
        order = np.concatenate([random.permutation(count) for _ in range(rounds)])
        weights = np.full(phase.length, phase.surprise, np.float32)
        weights[2 * count + 1 :: 2] = 1
        return pairs[order].ravel()[: phase.length], weights

    def _random_tokens(self, count: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Uniform over all ids but the token that begins a text."""
        drawn = random.integers(0, self._vocabulary - 1, count)
        return drawn + (drawn >= self._beginning)

    def _passage(self, count: int, random: np.random.Generator) -> NDArray[np.int64]:
        self._demand(count)
        start = int(random.integers(0, len(self._tokens) - count, endpoint=True))
        return self._tokens[start : start + count].astype(np.int64)

    def _window(self, length: int) -> NDArray[np.int64]:
        """The next window of the text; all of them come once before any comes again."""
        self._demand(length)
        count = len(self._tokens) // length
        epoch, index = divmod(self.windows, count)
        self.windows += 1
        start = self._starts(epoch, length)[index]
        return self._tokens[start : start + length].astype(np.int64)

    def _starts(self, epoch: int, length: int) -> NDArray[np.int64]:
        """Where the windows of an epoch begin: side by side from a random offset, shuffled."""
        if self._order is None or self._order[0] != (epoch, length):
            random = np.random.default_rng((self._seed, _WINDOWS, epoch))
            count = len(self._tokens) // length
            offset = random.integers(0, len(self._tokens) - count * length, endpoint=True)
            self._order = (epoch, length), offset + length * random.permutation(count)
        return self._order[1]

    def _begun(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([[self._beginning], ids])

    def _demand(self, length: int) -> None:
        if len(self._tokens) < length:
            raise text_too_short(len(self._tokens), length)


def text_too_short(tokens: int, needed: int) -> UsageError:
    """For a training text of fewer tokens than a sequence."""
    return UsageError(
        f"the training text has {tokens:,} tokens, a sequence needs {needed:,}: give more text, "
        "or a config with a smaller length"
    )
