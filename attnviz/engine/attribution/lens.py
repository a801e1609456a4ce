"""What is read inside a model: the logit lens after each block, what heads write, single neurons.

After each block the residual stream is read as at the end: by the final norm, with the scale that
the stream has there, and by the unembedding (nostalgebraist 2020, "interpreting GPT: the logit
lens"). After the last block that is the model's own prediction; before it the reading may mislead
(Belrose et al. 2023, "Eliciting Latent Predictions"), and KL says how far it is from the end.

What a head writes is decoded with the final norm's scale of this run, as in ``parts``: a change of
every logit, less its mean over the vocabulary. Differences of two words are those of ``Part``.

A feed-forward block puts out Σ_i a_i · W_down[:, i] + b. So neuron i contributes
a_i · ⟨∂logit/∂output, W_down[:, i]⟩, and all of them and the bias add up to the block's part in the
logit (Geva et al. 2022, "Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in
the Vocabulary Space"). The activation a is f(x), or f(x) · up with a gate (Shazeer 2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import NEARLY_ZERO, Array, Floats, namespace
from attnviz.engine.device_sizes import widest
from attnviz.engine.likely import log_softmax
from attnviz.records import HeadKey

Logits = NDArray[np.float64]

TOP = 5
"""The most words that are listed of a prediction, and of what a head raises or lowers."""


class BlockReading(NamedTuple):
    """The prediction that is read from the stream behind a block, or before the first (None).

    probability, rank: of the answer; the likeliest word has rank 1. kl: KL(end ‖ here) in nats.
    top: the likeliest words there as (id, probability).
    """

    block: int | None
    probability: float
    rank: int
    kl: float
    top: tuple[tuple[int, float], ...]


class HeadReading(NamedTuple):
    """What one head adds to the logits, minus the mean of what it adds over the vocabulary.

    head: (kind of attention, layer, head). answer: the change of the answer's logit.
    raises, lowers: the words whose logits it changes most, as (id, change in logits); only those
        that it really raises, or lowers.
    """

    head: HeadKey
    answer: float
    raises: tuple[tuple[int, float], ...]
    lowers: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class LensReading:
    """What is read from the residual stream of one token: after each block, and from each head.

    position: the token that predicts. answer: the id of the followed word; of question answering,
    whose words are tokens, a token's index, of the answer's start or ``end`` (0, 1). blocks: the
    last is the model's own prediction. apart: the largest difference of summed parts and logits, at
    most ``tolerance``. softcap: whether logits are capped; heads are then read before that.
    """

    position: int
    answer: int
    blocks: tuple[BlockReading, ...]
    heads: tuple[HeadReading, ...]
    apart: float
    tolerance: float
    softcap: bool = False
    notes: tuple[str, ...] = ()
    end: int | None = None

    @property
    def tallies(self) -> bool:
        """Return True if all parts add up to every logit within the tolerance."""
        return self.apart <= self.tolerance  # False for NaN


def block_readings(logits: Logits, answer: int) -> tuple[BlockReading, ...]:
    """Return the prediction before the first block and after each, from logits (place, vocab)."""
    logs = log_softmax(logits)
    end = np.exp(logs[-1])
    found = []
    for at, (row, log) in enumerate(zip(logits, logs, strict=True)):
        order = np.argsort(-row, kind="stable")[:TOP].tolist()
        there = end > 0
        found.append(
            BlockReading(
                block=at - 1 if at else None,
                probability=float(np.exp(log[answer])),
                rank=1 + int((row > row[answer]).sum()),
                kl=float((end[there] * (logs[-1] - log)[there]).sum()),
                top=tuple((word, float(np.exp(log[word]))) for word in order),
            )
        )
    return tuple(found)


def head_readings(
    written: Iterable[tuple[Sequence[HeadKey], Array]], answer: int
) -> tuple[HeadReading, ...]:
    """Return which words heads raise and lower, from what they add to each logit (head, vocab)."""
    found = []
    for heads, added in written:
        xp = namespace(added)
        changes = widest(added)
        changes = changes - xp.mean(changes, axis=-1, keepdims=True)
        order = xp.argsort(-changes, axis=-1, stable=True)
        ends = xp.concat([order[:, :TOP], xp.flip(order[:, -TOP:], axis=-1)], axis=-1)
        most = ends.shape[1] // 2
        moved = xp.concat(
            [xp.take_along_axis(changes, ends, axis=-1), changes[:, [answer]]], axis=-1
        )
        for head, words, values in zip(heads, ends.tolist(), moved.tolist(), strict=True):
            pairs = [*zip(words, values, strict=False)]
            found.append(
                HeadReading(
                    head,
                    values[-1],
                    raises=tuple((word, change) for word, change in pairs[:most] if change > 0),
                    lowers=tuple((word, change) for word, change in pairs[most:] if change < 0),
                )
            )
    return tuple(found)


# The neurons of a feed-forward block --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class NeuronReading:
    """The neurons of one feed-forward block over a text, and what they write towards one logit.

    activation: the name of f. active: (token, neuron), f(x); both None if not known. up: f(x)'s
    factor; None without a gate. values: (token, neuron), a. written: (neuron,), contributions,
    ``bias`` beside them; ``part``, that of the whole block, is at most ``tolerance`` away. In
    logits.
    """

    layer: int
    position: int
    activation: str | None
    active: Floats | None
    up: Floats | None
    values: Floats
    written: Floats
    bias: float
    part: float
    tolerance: float

    @property
    def tallies(self) -> bool:
        """Return whether the neurons and the bias add up to the block's part in the logit."""
        return abs(float(self.written.sum()) + self.bias - self.part) <= self.tolerance

    @property
    def order(self) -> NDArray[np.int64]:
        """Return the indices of the neurons, the largest contribution of either sign first."""
        return np.argsort(-np.abs(self.written), kind="stable")

    @property
    def half(self) -> int:
        """Return how many neurons have half of all contributions, in absolute value."""
        sizes = np.sort(np.abs(self.written))[::-1].cumsum()
        return int(np.searchsorted(sizes, sizes[-1] / 2)) + 1

    def off(self, *, everywhere: bool = False) -> float | None:
        """Return the share of neurons with f(x) ≤ 0, here or everywhere; None if f is not known."""
        active = self._active(everywhere)
        return None if active is None else float((active <= 0).mean())

    def nearly_off(self, *, everywhere: bool = False) -> float | None:
        """Return the share of neurons with f(x) closer to 0 than ``NEARLY_ZERO``; see ``off``."""
        active = self._active(everywhere)
        return None if active is None else float((np.abs(active) < NEARLY_ZERO).mean())

    def _active(self, everywhere: bool) -> Floats | None:
        if everywhere or self.active is None:
            return self.active
        return self.active[self.position]

    def fires(self, neuron: int, most: int) -> list[tuple[int, float]]:
        """Return the tokens with the largest activation of a neuron, by size, as (index, a)."""
        own = self.values[:, neuron]
        order = np.argsort(-np.abs(own), kind="stable")[:most]
        return [(int(at), float(own[at])) for at in order if own[at]]
