"""What every kind of model offers to be verified, whatever runs it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.records import Input, Kind, ModelInfo
from attnviz.verify.maps import Maps

__all__ = ["Examinee", "HeadSum", "Outputs", "Padded", "Reference", "Side"]

Side = Literal["right", "left"]

Outputs: TypeAlias = NDArray[np.float64]
"""The last hidden states or logits of one text: (token, width)."""


@dataclass(frozen=True, eq=False)
class Reference:
    """The same run made another way.

    name: of that way. exact: whether it makes the same operations, so that no bit may differ.
    """

    name: str
    exact: bool
    maps: Maps | None = None
    outputs: Outputs | None = None


@dataclass(frozen=True, eq=False)
class HeadSum:
    """One attention module's output beside what its heads add up to.

    summed: Σ_h z_h W_O^h + b_O in float64, (token, width). output: what the module puts out.
    terms: of the sum behind each number. largest: of the sums of absolute contributions.
    """

    kind: Kind
    layer: int
    summed: NDArray[np.float64]
    output: NDArray[np.float64]
    terms: int
    largest: float


@dataclass(frozen=True, eq=False)
class Padded:
    """A run over a text with padding, cut down to what is no padding.

    maps, outputs: of the real tokens. on_padding: the largest weight of a real token on padding.
    """

    side: Side
    maps: Maps
    outputs: Outputs
    on_padding: float
    where: str


class Examinee(Protocol):
    """A model to be verified, and its text.

    passage: the token ids that it reads.
    rounds_in: the dtype of the least exact of its steps, from which tolerances are reasoned.
    causal: the kinds of attention that must not see the future.
    dropout: the largest probability of dropout in training.
    """

    @property
    def info(self) -> ModelInfo: ...

    @property
    def kinds(self) -> tuple[Kind, ...]: ...

    @property
    def passage(self) -> Input: ...

    @property
    def rounds_in(self) -> str: ...

    @property
    def causal(self) -> tuple[Kind, ...]: ...

    @property
    def dropout(self) -> float: ...

    def capture(self, passage: Input) -> Maps:
        """The weights of a run, by the library's own way of observing."""
        ...

    def outputs(self, passage: Input) -> Outputs:
        """The outputs of a run while it is observed."""
        ...

    def references(self) -> tuple[Reference, ...]:
        """The weights of the same run made otherwise."""
        ...

    def unobserved(self) -> tuple[Reference, ...]:
        """The outputs of the same run while nobody observes."""
        ...

    def sinks(self) -> Maps:
        """What a learned sink takes of each row, (head, query, 1); empty where there is none."""
        ...

    def head_sums(self) -> tuple[tuple[HeadSum, ...], str]:
        """The modules whose heads can be added up, and why others cannot; empty for all."""
        ...

    def padded(self) -> tuple[tuple[Padded, ...], str]:
        """Runs over the text with padding; where there are none, why."""
        ...

    def other_ids(self, count: int) -> tuple[int, ...]:
        """Token ids to put in place of others."""
        ...

    def training(self) -> AbstractContextManager[None]:
        """While this is open, the model is in training mode, as far as it has one."""
        ...

    def state(self) -> dict[str, str]:
        """A digest of each part that observing must leave alone."""
        ...
