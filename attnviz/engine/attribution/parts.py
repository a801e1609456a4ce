"""Direct logit attribution: a logit as the exact sum of what each part of a model wrote towards it.

Every block adds to the residual stream, and a logit is linear in the stream if the norms keep the
scale that they have in this run. A part's contribution is ⟨∂logit/∂part, part⟩, in logits, and the
contributions add up to the logit: Elhage et al. 2021, "A Mathematical Framework for Transformer
Circuits"; Wang et al. 2022, "Interpretability in the Wild", section 3. A head's contribution is the
sum over source tokens j of α_ij ⟨∂logit/∂z_i, v_j⟩. Effects through later parts are left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from attnviz.attention.functional import Array
from attnviz.errors import UsageError
from attnviz.records import HeadKey, Input, Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from attnviz.engine.attribution.lens import LensReading, NeuronReading
    from attnviz.engine.likely import AnswerSpan

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

    def __post_init__(self) -> None:
        heads = self.heads
        if not set(self.rows) | set(self.maps) <= set(heads):
            raise ValueError("a row or a map belongs to a head that is no part")
        if len(heads) != sum(part.kind == "head" for part in self.parts):
            raise ValueError("a head is a part twice")
        if (self.softcap is None) != (self.uncapped is None):
            raise ValueError("a softcap and the difference before it come together")

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
        self, texts: Sequence[Input], place: int, hidden: Sequence[int] = ()
    ) -> Array:
        """Return the logits (text, vocab) at ``place`` of texts of one length, in float64.

        Of question answering they are ln p of the answer's start and end among the context's
        tokens. hidden: for each text the token to which no other attends. Raises UnsupportedError
        if it cannot be.
        """


def place_of(position: int | None, tokens: int, default: int) -> int:
    """Return a typed position as an index below ``tokens``; UsageError if there is no such one."""
    place = default if position is None else position + tokens * (position < 0)
    if not 0 <= place < tokens:
        raise UsageError(
            f"no position {position}: the text has tokens 0 to {tokens - 1} (or -{tokens} to -1 "
            "from the end)"
        )
    return place
