"""The logit lens: what a model would predict without its later blocks, and what each head writes.

After each block the residual stream is read as at the end: by the final norm, with the scale that
the stream has there, and by the unembedding (nostalgebraist 2020, "interpreting GPT: the logit
lens"). After the last block that is the model's own prediction; before it the reading may mislead
(Belrose et al. 2023, "Eliciting Latent Predictions"), and KL says how far it is from the end.

What a head writes is decoded with the final norm's scale of this run, as in ``parts``: a change of
every logit, less its mean over the vocabulary. Differences of two words are those of ``Part``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array, namespace
from attnviz.engine.device_sizes import widest
from attnviz.engine.likely import log_softmax
from attnviz.records import HeadKey

Logits = NDArray[np.float64]

TOP = 5
"""The most words that are listed of a prediction, and of what a head raises or lowers."""


class BlockReading(NamedTuple):
    """The prediction that is read from the residual stream at one place of the model.

    block: the index of the block before it; None before the first block.
    probability, rank: of the answer there; the likeliest word has rank 1.
    kl: KL(end ‖ here) in nats, 0 after the last block.
    top: the most likely words there as (id, probability), the likeliest first.
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

    position: the token of ``Input.predicted`` after which, or in whose place, the model predicts.
    answer: the id of the word that is followed; of a model that answers questions, whose words are
        the tokens of the context, the index of that token, as in all of ``blocks`` and ``heads``.
    end: for such a model 0 if the answer's start is followed, 1 if its end; None for others.
    blocks: before the first block and after each one; the last is the model's own prediction.
    heads: in the order of layers. apart: the largest difference, over the vocabulary, between the
        sum of all parts and the model's own logit. tolerance: how large it may be.
    softcap: whether the model limits its logits; what a head adds is then counted before that.
    notes: sentences that a reader must know about the computation.
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
    """Return the prediction before the first block and after each block.

    logits: (place, vocab), a row for each of these. answer: the id of the word that is followed.
    """
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
