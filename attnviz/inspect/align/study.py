"""What heads are asked: examples that they align, and how far what they say is from the truth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.capture import capture
from attnviz.errors import UsageError
from attnviz.inspect.align.report import AlignedWord
from attnviz.models.model import TwoStackModel
from attnviz.records import Floats, Tokens

Head = tuple[int, int]
Heads = Sequence[int]
"""A set of heads: their indices, layer by layer."""


@dataclass(frozen=True)
class Example(ABC):
    """A clip or a sentence pair, whose words heads align with the other side.

    name: of the clip, or the line of the pair. scores: (head, row, column), whose mean over a set
    of heads is read.
    """

    name: str
    scores: NDArray[np.float32]

    def mean(self, sets: Sequence[Heads]) -> NDArray[np.float32]:
        """Return the mean of the scores of each set of heads: (set, row, column)."""
        shares = np.zeros((len(sets), len(self.scores)), np.float32)
        for at, heads in enumerate(sets):
            shares[at, list(heads)] = 1 / len(heads)
        flat = shares @ self.scores.reshape(len(self.scores), -1)
        return flat.reshape(len(sets), *self.scores.shape[1:])

    @abstractmethod
    def read(self, sets: Sequence[Heads]) -> NDArray[Any]:
        """Return what each set of heads says of each word, seconds or source words: (set, word)."""

    @abstractmethod
    def guess(self) -> NDArray[Any]:
        """Return the same (1, word) without attention: the last control."""

    @abstractmethod
    def facts(self, read: NDArray[Any]) -> Floats:
        """Return what ``HeadStudy.further`` tells more of. read: (set, word)."""

    @abstractmethod
    def wrong(self, read: NDArray[Any]) -> Floats:
        """Return how much is wrong, and of how much: (set, 2). read: (set, word)."""

    @abstractmethod
    def words(self, read: NDArray[Any]) -> Sequence[AlignedWord]:
        """Return each word beside the truth. read: (word,)."""


class HeadStudy(NamedTuple):
    """Examples, and what is told of them.

    heads: (layer, head) of each score, layer by layer. readings: by name the same examples, their
    scores taken from other rows; those with the least error are chosen. further: returns numbers
    by name from the facts of all examples, joined along their last axis. guess: the name of the
    control without attention. frame: in seconds, None for pairs. published: a list of heads that
    others chose. notes: on how the examples were read.
    """

    heads: Sequence[Head]
    readings: Mapping[str, Sequence[Example]]
    further: Callable[[Floats], Mapping[str, float]]
    guess: str
    frame: float | None = None
    published: Sequence[Head] = ()
    notes: Sequence[str] = ()


def cross_weights(
    model: TwoStackModel, tokens: Tokens, target: Tokens, name: str
) -> tuple[list[Head], NDArray[np.float32]]:
    """Return the heads of cross attention, and their weights (head, query, key) over an example.

    Raises UsageError for a target that is too long, and for weights that are not numbers.
    """
    limit = model.target_context
    if limit is not None and len(target) > limit:
        raise UsageError(
            f"{name!r} has {len(target):,} tokens, the decoder takes {limit:,}: cut it there"
        )
    layers = capture(model, tokens, kind="cross", target=target).layers
    weights = np.concatenate([layer.weights for layer in layers])
    if not np.isfinite(weights).all():
        raise UsageError(f"the attention over {name!r} has weights that are not numbers (NaN)")
    return [(layer.layer, head) for layer in layers for head in layer.heads], weights
