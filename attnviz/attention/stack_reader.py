"""A causal stack that reads a text as it grows: what was read before is not computed again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.key_values import KeyValues
from attnviz.attention.numpy_stack import NumpyStack

Floats = NDArray[np.floating]


class StackReader:
    """Reads texts through one stack, each from where it differs from the one before.

    Raises ValueError for a stack whose queries see later keys.
    """

    def __init__(self, stack: NumpyStack) -> None:
        if not stack.shape.causal:
            raise ValueError("a query that sees later keys changes as the text grows")
        self._stack = stack
        self._past = [KeyValues() for _ in range(stack.shape.layers)]
        self._ids: tuple[int, ...] = ()

    def read(self, ids: Sequence[int]) -> tuple[Floats, dict[int, Floats]]:
        """Return what the last token of a whole text gives: scores of the next token, and its
        weights.

        Scores are (vocabulary,), weights of each layer (head, token). Equal to those of a pass over
        the whole text up to the order in which numbers are summed. Raises UsageError as
        ``NumpyStack.logits``.
        """
        text = tuple(ids)
        known = 0 if self._is_turned_anew(len(text)) else _common(text[:-1], self._ids)
        self._ids = ()  # nothing is known of a run that does not end
        for layer in self._past:
            layer.cut(known)
        rows: dict[int, Floats] = {}

        def take(layer: int, weights: Floats, outputs: Floats) -> None:
            rows[layer] = weights[:, -1].copy()

        with np.errstate(over="ignore", invalid="ignore"):
            residual = self._stack.run_outputs(text, take, self._past)
            scores = self._stack.unembed(residual[-1:])[0]
        self._ids = text
        return scores, rows

    def _is_turned_anew(self, tokens: int) -> bool:
        """Return whether every key is turned otherwise in a text of this length (LongRoPE)."""
        shape = self._stack.shape
        if shape.rotary is None or shape.rotary.stretch is None or not self._ids:
            return False
        before, now = (
            shape.rotary.frequencies(shape.head_dim, count) for count in (len(self._ids), tokens)
        )
        return before != now


def _common(text: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike."""
    alike = 0
    for one, two in zip(text, other, strict=False):
        if one != two:
            break
        alike += 1
    return alike
