"""What is read inside a model: a logit as an exact sum of parts, the logit lens, single neurons.

Every block adds to the residual stream, and a logit is linear in the stream if the norms keep the
scale that they have in this run. A part's contribution is ⟨∂logit/∂part, part⟩, in logits, and the
contributions add up to the logit: Elhage et al. 2021, "A Mathematical Framework for Transformer
Circuits"; Wang et al. 2022, "Interpretability in the Wild", section 3. A head's contribution is the
sum over source tokens j of α_ij ⟨∂logit/∂z_i, v_j⟩. Effects through later parts are left out.

After each block the residual stream is read as at the end: by the final norm, with the scale that
the stream has there, and by the unembedding (nostalgebraist 2020, "interpreting GPT: the logit
lens"). After the last block that is the model's own prediction; before it the reading may mislead
(Belrose et al. 2023, "Eliciting Latent Predictions"), and KL says how far it is from the end. What
a head writes is decoded with the final norm's scale of this run: a change of every logit, less its
mean over the vocabulary.

A feed-forward block puts out Σ_i a_i · W_down[:, i] + b. So neuron i contributes
a_i · ⟨∂logit/∂output, W_down[:, i]⟩, and all of them and the bias add up to the block's part in the
logit (Geva et al. 2022, "Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in
the Vocabulary Space"). The activation a is f(x), or f(x) · up with a gate (Shazeer 2020).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import NEARLY_ZERO, Array, Floats, namespace
from attnviz.engine.device_sizes import widest
from attnviz.engine.likely import AnswerSpan, log_softmax
from attnviz.errors import UsageError
from attnviz.records import HeadKey, Input, Kind

ONE_TOKEN_BATCH = 64
"""The texts of one token that run together."""

PartKind = Literal["embedding", "head", "mlp", "bias"]
"""The kinds of parts. ``embedding`` is what enters the first block; ``mlp`` is all that a block
adds next to its heads and biases: a feed-forward network, experts or a mixer without heads."""


class Part(NamedTuple):
    """One part of a model, such as a head, with its contribution to a logit.

    contribution: in logits. layer: None for the embedding, and for the biases after the last block.
    head, attention: the head in ``layer`` and the kind of its attention; None for other parts.
    """

    kind: PartKind
    contribution: float
    layer: int | None = None
    head: int | None = None
    attention: Kind | None = None


@dataclass(frozen=True, eq=False)
class Attribution:
    """The logit of one token at one position, or the difference of two logits, as a sum of parts.

    position: the token of ``Input.predicted`` after which, or in whose place, the model predicts.
    answer, foil: token ids; without a foil the logit is the answer's own.
    top: the five most likely tokens there as (id, probability), the likeliest first.
    logit: logit(answer) − logit(foil) of the unobserved model.
    parts: the embedding; layer by layer heads, mlp and bias; the bias after the last block.
    rows: (keys,), for each head its contribution by source token, which adds up to the part's. A
        head without an entry has attention weights that could not be observed.
    maps: (queries, keys), for the chosen heads the contribution of every query to the same tokens'
        logit; the row ``position`` is that of ``rows``.
    softcap: the c of a model that limits its logits by c·tanh(x / c), else None.
    uncapped: the difference before the softcap, to which the parts add up; None without one.
    tolerance: the allowed difference between sum and logit, in logits; it depends on the dtype.
    notes: sentences that a reader must know about the computation.
    labels: the names that stand for the token ids, if the model is a classifier; else empty.
    span: a question-answering model's answer; None for other models. ``top`` then has the
        probability, among the tokens of the context, that the answer starts, or ends, there.
    several: True if a text may have several of the labels: the probabilities are sigmoids then.
    """

    position: int
    answer: int
    foil: int | None
    top: tuple[tuple[int, float], ...]
    logit: float
    parts: tuple[Part, ...]
    rows: Mapping[HeadKey, NDArray[np.floating]]
    tolerance: float
    maps: Mapping[HeadKey, NDArray[np.floating]] = field(default_factory=dict)
    softcap: float | None = None
    uncapped: float | None = None
    notes: tuple[str, ...] = ()
    labels: Sequence[str] = ()
    span: AnswerSpan | None = None
    several: bool = False

    @cached_property
    def heads(self) -> Mapping[HeadKey, float]:
        """Return the contribution of every head, in the order of ``parts``."""
        return {
            (part.attention, part.layer, part.head): part.contribution
            for part in self.parts
            if part.attention is not None and part.layer is not None and part.head is not None
        }

    @property
    def decomposed(self) -> float:
        """Return the number that the parts should add up to: the logit before any softcap."""
        return self.logit if self.uncapped is None else self.uncapped

    @cached_property
    def sum(self) -> float:
        """Return the sum of the parts, in logits."""
        return sum(part.contribution for part in self.parts)

    @property
    def tallies(self) -> bool:
        """Return True if the parts add up to the logit; else the contributions mean nothing."""
        return abs(self.sum - self.decomposed) <= self.tolerance  # False for NaN


class AskedLogit(NamedTuple):
    """A request to split one logit into contributions.

    position: of the prediction, as typed; None for the default.
    answer, foil: the token ids whose logits are subtracted; None for the default, and for no foil.
    maps: the heads whose contribution is requested for every query.
    """

    position: int | None
    answer: int | None
    foil: int | None
    maps: Collection[HeadKey]

    def words(self, likeliest: int, vocabulary: int) -> tuple[int, int | None]:
        """Return the ids of answer and foil or None; UsageError for unknown or equal tokens."""
        answer = likeliest if self.answer is None else self.answer
        for name, word in (("answer", answer), ("foil", self.foil)):
            if word is not None and not 0 <= word < vocabulary:
                raise UsageError(f"no {name} {word}: the model has tokens 0 to {vocabulary - 1}")
        if answer == self.foil:
            raise UsageError("answer and foil are the same token: their difference is always zero")
        return answer, self.foil


class Attributor(ABC):
    """The interface to split the logits of one model into contributions of its parts.

    labels: the names of a classifier's labels, which stand for token ids then; empty for words.
    """

    labels: Sequence[str] = ()

    def attribute(
        self,
        given: Input,
        *,
        position: int | None = None,
        answer: int | None = None,
        foil: int | None = None,
        maps: Collection[HeadKey] = (),
    ) -> Attribution:
        """Return one logit, or the difference of two, as a sum over the parts of the model.

        position: negative from the end; by default the last, or the mask token's. answer: the
        likeliest token's id by default. foil: an id to subtract. maps: heads wanted for every
        query. Raises UsageError for what does not exist or is not masked, UnsupportedError if parts
        cannot be traced.
        """
        return self.taken_apart(given, AskedLogit(position, answer, foil, maps))

    @abstractmethod
    def taken_apart(self, given: Input, asked: AskedLogit) -> Attribution:
        """Return the logit that ``asked`` describes as contributions; see ``attribute``."""

    @abstractmethod
    def lens(self, given: Input, asked: AskedLogit) -> LensReading:
        """Return what blocks predict and heads add; UsageError, UnsupportedError if it cannot."""

    @abstractmethod
    def neurons(self, given: Input, asked: AskedLogit, layer: int) -> NeuronReading:
        """Return what neurons of a layer write towards a logit; errors as those of ``lens``."""

    @abstractmethod
    def logits_of_texts(
        self, texts: Sequence[Input], position: int, hidden: Sequence[int] = ()
    ) -> Array:
        """Return the logits (text, vocab) at a position of texts of one length, in float64.

        Of question answering they are ln p of the answer's start and end among the context's
        tokens. hidden: for each text the token to which no other attends. Raises UnsupportedError
        if it cannot be.
        """


def index_of(position: int | None, tokens: int, default: int) -> int:
    """Return a typed position as an index below ``tokens``; UsageError if there is no such one."""
    index = default if position is None else position + tokens * (position < 0)
    if not 0 <= index < tokens:
        raise UsageError(
            f"no position {position}: the text has tokens 0 to {tokens - 1} (or -{tokens} to -1 "
            "from the end)"
        )
    return index


# The logit lens -----------------------------------------------------------------------------------

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
    """Return the prediction before the first block and after each, from logits (block, vocab)."""
    logs = log_softmax(logits)
    end = np.exp(logs[-1])
    readings, there = [], end > 0
    for at, (row, log) in enumerate(zip(logits, logs, strict=True)):
        order = np.argsort(-row, kind="stable")[:TOP].tolist()
        readings.append(
            BlockReading(
                block=at - 1 if at else None,
                probability=float(np.exp(log[answer])),
                rank=1 + int((row > row[answer]).sum()),
                kl=float((end[there] * (logs[-1] - log)[there]).sum()),
                top=tuple((word, float(np.exp(log[word]))) for word in order),
            )
        )
    return tuple(readings)


def head_readings(
    written: Iterable[tuple[Sequence[HeadKey], Array]], answer: int
) -> tuple[HeadReading, ...]:
    """Return which words heads raise and lower, from what they add to each logit (head, vocab)."""
    readings = []
    for heads, added in written:
        xp = namespace(added)
        changes = widest(added)
        changes = changes - xp.mean(changes, axis=-1, keepdims=True)
        order = xp.argsort(-changes, axis=-1, stable=True)
        ends = xp.concat([order[:, :TOP], xp.flip(order[:, -TOP:], axis=-1)], axis=-1)
        most = ends.shape[1] // 2
        moved = xp.take_along_axis(changes, ends, axis=-1)
        moved = xp.concat([moved, changes[:, [answer]]], axis=-1)
        for head, words, values in zip(heads, ends.tolist(), moved.tolist(), strict=True):
            pairs = [*zip(words, values, strict=False)]
            raises = tuple((word, change) for word, change in pairs[:most] if change > 0)
            lowers = tuple((word, change) for word, change in pairs[most:] if change < 0)
            readings.append(HeadReading(head, values[-1], raises, lowers))
    return tuple(readings)


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
