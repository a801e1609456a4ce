"""QK attribution: a head's attention scores, split by who wrote the query and who wrote the key.

In front of layer l the residual stream is a sum of writes w^a: the token's and the position's
embedding, every earlier head, every earlier feed-forward block, biases. With the scale of the norms
of this run query and key are linear in it: q_i = Σ_a q_i^a and k_j = Σ_b k_j^b, where the biases of
norm and projections are a part of their own. The score is Σ_ab scale · ⟨q_i^a, k_j^b⟩ (Elhage et
al. 2021, "A Mathematical Framework for Transformer Circuits"; over features in place of parts:
"Tracing Attention Computation Through Feature Interactions", transformer-circuits.pub 2025).

A softmax sees differences between keys alone. So the *lead* of a key j is split, over the others
that the query sees:

    Σ_ab scale · ⟨q_i^a, k_j^b − mean_v k_v^b⟩ = ln A_ij − mean_v ln A_iv,   in nats,

which the model's own weights A tell too. A softcap comes after the sum; a bias by distance (T5,
ALiBi) is one more summand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.errors import UnsupportedError
from attnviz.records import Floats, HeadKey, Input

ReadSide = Literal["query", "key"]
"""Which of the two vectors whose product is a score was written into."""

SIDES: tuple[ReadSide, ReadSide] = ("query", "key")

ROUNDING = 2e-5
"""By how much logarithms of float32 weights may differ from the sums, while these are of the order
of ten: 1.3e-5 over a text of 150 words. What is not a sum of the parts is off by much more."""

LEAST_KEYS = 2
"""The fewest keys that a query must see, so that one of them can lead over another."""

_VANISHED = 1e-30
"""Weights below this have lost the digits that their logarithm needs."""


class StreamPart(NamedTuple):
    """One part of a model that writes into the residual stream.

    kind: the token's embedding, its position's, a head, a feed-forward block, or biases.
    layer: None for embeddings and their biases. head: its number in the layer, None for no head.
    crosses: True for a decoder's head of cross attention.
    """

    kind: Literal["token", "position", "head", "mlp", "bias"]
    layer: int | None = None
    head: int | None = None
    crosses: bool = False


class AskedLink(NamedTuple):
    """A request to split one key's lead: how far its score is above that of other keys.

    head: (kind of attention, layer, head). query, key: indices of tokens.
    than: the key to compare with; None for the mean of all others that the query sees.
    """

    head: HeadKey
    query: int
    key: int
    than: int | None = None


@dataclass(frozen=True, eq=False)
class SplitScores:
    """The scores of one query of one head with all keys, as sums over parts of the model.

    parts: who wrote, in the order of the model. query: (part, dim), the query's summands.
    key: (part, key, dim), those of the keys. scale: multiplies their product.
    softcap: the c of a model that limits its scores by c·tanh(x / c), else None.
    added: (key,), what is added to each score after that: a bias by distance, −∞ for a hidden key.
    weights: (key,), the attention weights of the unobserved model.
    without: for each side (part, key), the scores before a softcap if the norm reads the stream
        without the part; NaN for parts that are not in the stream. Empty if not computed.
    sources: for some heads, (token,), the head's part of the lead by the token that it read.
    epsilon: the rounding error of the model's numbers, relative to them.
    """

    parts: Sequence[StreamPart]
    query: Floats
    key: Floats
    scale: float
    softcap: float | None
    added: Floats
    weights: Floats
    without: Mapping[ReadSide, Floats] = field(default_factory=dict)
    sources: Mapping[tuple[ReadSide, int], Floats] = field(default_factory=dict)
    epsilon: float = float(np.finfo(np.float32).eps)

    @cached_property
    def visible(self) -> list[int]:
        """Return the indices of the keys that the query sees."""
        return [int(key) for key in np.flatnonzero(self.added > -np.inf)]

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """Return the sum of the parts for each key, (key,): the scores before a softcap."""
        return self.key.sum(0) @ self.query.sum(0) * self.scale

    def limited(self, scores: Floats) -> NDArray[np.float64]:
        """Return the softmax's input for scores (..., key): these capped, plus bias and mask."""
        capped = scores if self.softcap is None else self.softcap * np.tanh(scores / self.softcap)
        return capped + self.added

    def coefficients(self, key: int, than: int | None) -> NDArray[np.float64]:
        """Return c (key,): Σ_v c_v · score_v is the key's lead over ``than``, or the others."""
        coefficients = np.zeros(len(self.weights))
        others = [other for other in self.visible if other != key] if than is None else [than]
        coefficients[others] = -1 / len(others)
        coefficients[key] += 1
        return coefficients

    def matrix(self, coefficients: Floats) -> NDArray[np.float64]:
        """Return the lead (query's part, key's part) in nats, uncapped, by keys' weights."""
        keys = np.einsum("bkd,k->bd", self.key, coefficients)
        return self.query @ keys.T * self.scale

    def lead(self, logs: Floats, coefficients: Floats) -> float:
        """Return a key's lead in nats, Σ_v c_v · logs_v over the visible keys."""
        return float(logs[self.visible] @ coefficients[self.visible])

    def by_distance(self, coefficients: Floats) -> float | None:
        """Return the lead's share from a bias by distance, in nats; None if scores have no bias."""
        has_bias = self.added[self.visible].any()
        return self.lead(self.added, coefficients) if has_bias else None

    def weight(self, scores: Floats, key: int) -> NDArray[np.float64]:
        """Return the weights (...) that one key would get from scores (..., key).

        scores: before softcap, bias and mask, which are applied. A learned sink keeps its score.
        """
        logits, own = self.limited(scores), self.limited(self.scores)
        total = _log_sum(logits[..., self.visible])
        missing = 1 - float(self.weights.sum())
        if missing > 1e-3:
            sink = _log_sum(own[self.visible]) + np.log(missing / (1 - missing))
            total = np.logaddexp(total, sink)
        return np.exp(logits[..., key] - total)

    @cached_property
    def own_logs(self) -> NDArray[np.float64]:
        """Return ln A (key,) of the model's weights; from the scores where A underflows to 0."""
        logs, sums = np.log(np.maximum(self.weights, _VANISHED)), self.limited(self.scores)
        shift = (logs - sums)[self._known].max(initial=-np.inf)
        vanished = (self.weights <= _VANISHED) & np.isfinite(self.added)
        return np.where(vanished, sums + shift, logs)

    @cached_property
    def gap(self) -> float:
        """Return how far, in nats, the summed parts miss the difference of two keys at most."""
        apart = (self.own_logs - self.limited(self.scores))[self._known]
        return float(np.ptp(apart)) if len(apart) else float("nan")

    @property
    def _known(self) -> list[int]:
        return [key for key in self.visible if self.weights[key] > _VANISHED]

    @cached_property
    def tolerance(self) -> float:
        """Return the largest ``gap`` that rounding explains; it grows with the summands' size."""
        size = np.abs(np.einsum("ad,bkd->kab", self.query, self.key)).sum((1, 2)).max() * self.scale
        single = float(np.finfo(np.float32).eps)  # a softmax is computed in float32 at most
        return ROUNDING * max(1.0, float(size) / 10) * max(1.0, self.epsilon / single)

    @property
    def tallies(self) -> bool:
        """Return True if the summed parts give the model's own weights, up to rounding."""
        return self.gap <= self.tolerance  # False for NaN


SideLeads: TypeAlias = tuple[Floats, Floats]
"""What each part adds to a lead in each of some texts: (text, part), of the query's side first."""


def _log_sum(logits: Floats) -> NDArray[np.float64]:
    top = logits.max(-1, keepdims=True)
    return top[..., 0] + np.log(np.exp(logits - top).sum(-1))


class ScoreSplitter(ABC):
    """The interface to split attention scores by the model's parts that wrote query and key."""

    @abstractmethod
    def split(self, given: Input, asked: AskedLink) -> SplitScores:
        """Return the asked query's scores as sums over parts; UnsupportedError if not followed."""

    @abstractmethod
    def leads(self, texts: Sequence[Input], asked: AskedLink, known: SplitScores) -> SideLeads:
        """Return what each part of query and key adds to the asked lead in other texts.

        The two results are (text, part), for the query and for the keys. texts: run together, of
            as many tokens each as the first text. known: the split of that text.
        """


def not_followed(name: str, packed: str = "") -> UnsupportedError:
    """Return the error for untraceable queries or keys. packed: words on quantised layers."""
    return UnsupportedError(
        f"what writes the queries and keys of {name!r} cannot be followed through sums and linear "
        f"maps alone{packed}: choose another model or --kind"
    )


MOST_SOURCES = 4
"""For how many heads of each side the lead is split by the token that they read."""


def largest_heads(split: SplitScores, asked: AskedLink) -> list[tuple[ReadSide, int]]:
    """Return the heads with the largest parts in a lead, on each side: (side, index of part)."""
    matrix = split.matrix(split.coefficients(asked.key, asked.than))
    largest: list[tuple[ReadSide, int]] = []
    for side, values in zip(SIDES, (matrix.sum(1), matrix.sum(0)), strict=True):
        heads = [at for at, part in enumerate(split.parts) if part.kind == "head"]
        heads.sort(key=lambda at: -abs(values[at]))
        largest += [(side, at) for at in heads[:MOST_SOURCES]]
    return largest
