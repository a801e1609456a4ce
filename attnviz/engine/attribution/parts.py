"""Direct logit attribution: a logit as the exact sum of what each part of a model wrote towards it.

Every block adds to the residual stream, and a logit is linear in the stream once the norms keep the
scale that they have in this run. So a part's contribution is ⟨∂logit/∂part, part⟩, in logits, and
they add up to the logit: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits";
Wang et al. 2022, "Interpretability in the Wild", section 3. A head's is the sum over source tokens
j of α_ij ⟨∂logit/∂z_i, v_j⟩. What a part does by way of later heads and blocks is not in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from attnviz.errors import UsageError
from attnviz.records import Input, Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PartKind = Literal["embedding", "head", "mlp", "bias"]
"""Embedding: what enters the first block. Mlp: all that a block adds beside its heads and biases,
be it a feed-forward network, experts or a mixer without heads."""

HeadKey: TypeAlias = tuple[Kind, int, int]
"""The kind of a head's attention, its layer and its number."""


class Part(NamedTuple):
    """Something that writes to the residual stream.

    contribution: in logits.
    layer: None for the embedding, and for the biases behind the last block.
    head: of ``layer``, None where it is no head. attention: the head's, likewise.
    """

    kind: PartKind
    contribution: float
    layer: int | None = None
    head: int | None = None
    attention: Kind | None = None


@dataclass(frozen=True, eq=False)
class Attribution:
    """The logit of one token at one position, or the difference of two tokens', as a sum of parts.

    position: the token of ``Input.predicted`` behind which, or in whose place, is predicted.
    answer, foil: token ids; without a foil the logit is the answer's own.
    top: the five most likely tokens there as (id, probability), the likeliest first.
    logit: logit(answer) − logit(foil) as the model puts it out when nobody watches it.
    parts: the embedding; layer by layer heads, mlp and bias; the bias behind the last block.
    rows: for each head its contribution by source token, (keys,), which adds up to the part's. A
        head without an entry has weights that could not be read.
    maps: for the chosen heads what every query writes towards the same tokens, (queries, keys); the
        row ``position`` is that of ``rows``.
    softcap: where the model squeezes its logits by c·tanh(x / c), that c, else None.
    uncapped: with a softcap the difference before it, which is what the parts add up to.
    tolerance: how far sum and logit may be apart, in logits: rounding of the model's dtype.
    notes: what a reader must know of how it was taken apart.
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
        """Return what the parts should add up to: the logit, before a softcap where there is
        one.
        """
        return self.logit if self.uncapped is None else self.uncapped

    @cached_property
    def sum(self) -> float:
        """Return the sum of the parts, in logits."""
        return sum(part.contribution for part in self.parts)

    @property
    def tallies(self) -> bool:
        """Return whether the parts add up to the logit but for rounding; else they say nothing."""
        return abs(self.sum - self.decomposed) <= self.tolerance  # False for NaN


class AskedLogit(NamedTuple):
    """Which logit is taken apart, as ``Attributor.attribute`` takes it."""

    position: int | None
    answer: int | None
    foil: int | None
    maps: Collection[HeadKey]

    def words(self, likeliest: int, vocabulary: int) -> tuple[int, int | None]:
        """Answer and foil; UsageError for a token that does not exist, or one that is both."""
        answer = likeliest if self.answer is None else self.answer
        for name, word in (("answer", answer), ("foil", self.foil)):
            if word is not None and not 0 <= word < vocabulary:
                raise UsageError(f"no {name} {word}: the model has tokens 0 to {vocabulary - 1}")
        if answer == self.foil:
            raise UsageError("answer and foil are the same token: their difference is always zero")
        return answer, self.foil


class Attributor(ABC):
    """A model that is ready to have its logits taken apart."""

    def attribute(
        self,
        given: Input,
        *,
        position: int | None = None,
        answer: int | None = None,
        foil: int | None = None,
        maps: Collection[HeadKey] = (),
    ) -> Attribution:
        """Take one logit apart; see ``Attribution``.

        position: from 0, negative from the end; by default the last, of a model that reads both
            ways its mask token's.
        answer: by default the likeliest token. maps: the heads whose maps are wanted.
        Raises UsageError for a position, token or head that does not exist, and where a model that
        reads both ways has no mask token there; UnsupportedError where the parts cannot be followed
        to the logit.
        """
        return self.taken_apart(given, AskedLogit(position, answer, foil, maps))

    @abstractmethod
    def taken_apart(self, given: Input, asked: AskedLogit) -> Attribution:
        """As ``attribute``."""


def place_of(position: int | None, tokens: int, default: int) -> int:
    """Return a position from 0 among so many tokens; UsageError if there is none."""
    place = default if position is None else position + tokens * (position < 0)
    if not 0 <= place < tokens:
        raise UsageError(
            f"no position {position}: the text has tokens 0 to {tokens - 1} (or -{tokens} to -1 "
            "from the end)"
        )
    return place
