"""The likeliest next tokens of a model's distribution over its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

_Number = TypeVar("_Number", bound=np.floating)

Texts = Callable[[Sequence[int]], tuple[str, ...]]
"""Returns the text of each token id."""


class Likely(NamedTuple):
    """A possible next token and its probability in [0, 1]. text: the token. id: its number."""

    text: str
    id: int
    probability: float


def likeliest(logs: NDArray[np.float64], texts: Texts, count: int = 5) -> tuple[Likely, ...]:
    """Return the ``count`` most likely next tokens, the likeliest first.

    logs: the log-probabilities (vocab,) of all tokens. texts: returns the text of each token id.
    """
    some = np.argpartition(-logs, min(count, len(logs)) - 1)[:count]  # sorting all takes longer
    ids = some[np.lexsort((some, -logs[some]))].tolist()
    return tuple(
        Likely(text, number, float(np.exp(logs[number])))
        for text, number in zip(texts(ids), ids, strict=True)
    )


def log_softmax(logits: NDArray[_Number]) -> NDArray[_Number]:
    """Return the log-probabilities (..., vocab) of logits, in the dtype of the logits."""
    logs: NDArray[_Number] = logits - logits.max(-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    return logs
