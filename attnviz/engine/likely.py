"""The likeliest next tokens of a model's distribution over its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Texts = Callable[[Sequence[int]], tuple[str, ...]]
"""Returns the text of each token id."""


class Likely(NamedTuple):
    """A possible next token and its probability."""

    text: str
    id: int
    probability: float


def likeliest(logs: NDArray[np.float64], texts: Texts, count: int = 5) -> tuple[Likely, ...]:
    """Return the ``count`` most likely tokens of log-probabilities (word,), the likeliest first."""
    some = np.argpartition(-logs, min(count, len(logs)) - 1)[:count]  # sorting all takes longer
    ids = some[np.lexsort((some, -logs[some]))].tolist()
    return tuple(
        Likely(text, number, float(np.exp(logs[number])))
        for text, number in zip(texts(ids), ids, strict=True)
    )


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the log-probabilities (..., word) of logits."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide
