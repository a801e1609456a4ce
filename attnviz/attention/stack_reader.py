"""A reader of a growing text over a causal stack: tokens read before are not computed again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnviz.attention.functional import Floats
from attnviz.attention.key_values import KeyValues
from attnviz.attention.numpy_stack import NumpyStack

_HELD = 2**24
"""The most attention weights of a layer that are in memory at once."""


class StackReader:
    """Runs texts through one NumPy model; tokens shared with the previous text come from a cache.

    Raises ValueError for a model whose queries see later keys.
    """

    def __init__(self, stack: NumpyStack) -> None:
        if not stack.shape.causal:
            raise ValueError("a query that sees later keys changes as the text grows")
        self._stack = stack
        self._past = [KeyValues() for _ in range(stack.shape.layers)]
        self._ids: tuple[int, ...] = ()

    def read(self, ids: Sequence[int]) -> tuple[Floats, dict[int, Floats]]:
        """Run the model on a text.

        Return next-token logits, and its last token's attention weights.
        ids: the token ids of the text.
        The logits are (vocab,), the weights of each layer (head, token). They equal those of a
        pass over the whole text, except for the order of summation. Raises UsageError for no token,
        an unknown one, or more of them than the context holds.
        """
        text = tuple(ids)
        known = 0 if self._is_turned_anew(len(text)) else shared(text[:-1], self._ids)
        self._ids = ()  # a failed run must leave nothing cached
        for layer in self._past:
            layer.cut(known)
        rows: dict[int, Floats] = {}

        def take(layer: int, weights: Floats, outputs: Floats) -> None:
            rows[layer] = weights[:, -1].copy()

        with np.errstate(over="ignore", invalid="ignore"):
            for stop in self._stops(known, len(text)):
                residual = self._stack.run_outputs(text[:stop], take, self._past)
            scores = self._stack.unembed(residual[-1:])[0]
        self._ids = text
        return scores, rows

    def _stops(self, known: int, tokens: int) -> Sequence[int]:
        """Return up to which tokens the text is run at a time, so that few weights are held.

        known: how many tokens are in the cache. tokens: of the text. One whose rotary angles depend
        on its length is run at once.
        """
        shape = self._stack.shape
        rows = max(1, _HELD // (shape.heads * tokens))
        if shape.rotary is not None and shape.rotary.stretch is not None:
            rows = tokens
        return [*range(known + rows, tokens, rows), tokens]

    def _is_turned_anew(self, tokens: int) -> bool:
        """Return whether a text of this length needs new rotary angles for all keys.

        This is so with LongRoPE if the text exceeds the context for the first time.
        """
        shape = self._stack.shape
        if shape.rotary is None or shape.rotary.stretch is None or not self._ids:
            return False
        before, now = (
            shape.rotary.frequencies(shape.head_dim, count) for count in (len(self._ids), tokens)
        )
        return before != now


def shared(text: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens at their beginning two texts share."""
    alike = 0
    for one, two in zip(text, other, strict=False):
        if one != two:
            break
        alike += 1
    return alike
