"""What every kind of model offers to be verified, whatever runs it, and how far runs are apart."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from attnviz.engine.observer import BlockFacts, to_numpy
from attnviz.learn.verify.torch_module import HeadSum, dropout_of, module_state
from attnviz.models.model import Model
from attnviz.records import Input, Kind

Maps: TypeAlias = Mapping[tuple[Kind, int], NDArray[np.floating]]
"""The weights (head, query, key) of each layer of each kind of attention."""

Difference: TypeAlias = tuple[float, str]
"""A largest absolute difference, and the head where it was found."""

Side = Literal["right", "left"]

Outputs: TypeAlias = NDArray[np.float64]
"""The last hidden states or logits of one text: (token, width)."""


_Found = TypeVar("_Found")

PADDED = 3
"""Tokens of padding that a text is tried with."""


class KeepAll:
    """An observer that keeps every layer of every kind, of the first text of a batch."""

    norms = False

    def __init__(self) -> None:
        self.maps: dict[tuple[Kind, int], NDArray[np.floating]] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return True

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, beside: BlockFacts
    ) -> None:
        # A copy: what a model computes in place later must not change what was seen.
        if text == 0:
            self.maps[kind, layer] = np.array(to_numpy(weights))


def apart(one: Maps, other: Maps) -> Difference:
    """Return the largest difference of two runs; infinite where they have other layers or
    shapes.
    """
    if set(one) != set(other):
        return math.inf, "other layers"
    return furthest((place, differences(one[place], other[place])) for place in one)


def differences(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """Absolute differences in float64; one that is infinite where the shapes differ."""
    if one.shape != other.shape:
        return np.full(1, math.inf)
    difference: NDArray[np.float64] = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return difference


def furthest(found: Iterable[tuple[tuple[Kind, int], NDArray[Any]]]) -> Difference:
    """Return the largest of absolute numbers whose first axis is the head; a NaN is larger than
    all.
    """
    worst, where = 0.0, ""
    for (kind, layer), numbers in found:
        by_head = numbers.reshape(len(numbers), -1)
        if not by_head.size:
            continue
        peaks = by_head.max(-1)
        head = int(np.argmax(np.where(np.isnan(peaks), np.inf, peaks)))
        if math.isnan(peaks[head]) or peaks[head] > worst:
            worst = float(peaks[head])
            where = f"L{layer}H{head}" + ("" if kind == "self" else f" {kind}")
            if math.isnan(worst):
                break
    return worst, where


def score_spread(maps: Maps) -> float:
    """Return how far scores are apart, as the smallest weight above zero tells: -ln of it, at least
    one.

    An error of a score becomes a relative error of its weight, and scores round as they are large.
    """
    least = [float(w[w > 0].min()) for w in maps.values() if bool((w > 0).any())]
    return max(1.0, -math.log(min(least, default=1.0)))


@dataclass(frozen=True, eq=False)
class ReferenceRun(Generic[_Found]):
    """The weights or outputs of the same run made another way.

    name: of that way. exact: whether it makes the same operations, so that no bit may differ.
    """

    name: str
    exact: bool
    found: _Found


@dataclass(frozen=True, eq=False)
class Padded:
    """A run over a text with padding, cut down to what is no padding.

    maps, outputs: of the real tokens.
    on_padding: the largest weight of a real token on padding, and its head.
    """

    side: Side
    maps: Maps
    outputs: Outputs
    on_padding: Difference

    @classmethod
    def of_run(cls, side: Side, maps: Maps, outputs: Outputs, real: slice) -> Padded:
        """Cut the maps of a padded run down to its ``real`` tokens; its outputs are."""
        # The text that is padded has the queries of these kinds; a decoder's own text is not.
        queries = {kind: real if kind in ("self", "encoder") else slice(None) for kind, _ in maps}
        padded = {place: weights for place, weights in maps.items() if place[0] != "decoder"}
        beside = furthest(
            (place, weights[:, queries[place[0]], side])
            for place, weights in padded.items()
            for side in (slice(None, real.start), slice(real.stop, None))
        )
        cut = {place: weights[:, queries[place[0]], real] for place, weights in padded.items()}
        return cls(side, {**maps, **cut}, outputs, beside)


class Examinee(ABC):
    """A model to be verified, and its text.

    root: the torch module that is it, or its twin.
    passage: the token ids that it reads.
    kinds: of attention that a run computes. causal: those that must not see the future.
    rounds_in: the dtype of the least exact of its steps, from which tolerances are reasoned.
    """

    kinds: tuple[Kind, ...]
    causal: tuple[Kind, ...]
    rounds_in: str

    def __init__(self, model: Model, root: nn.Module, passage: Input) -> None:
        self.info = model.info
        self.root = root
        self.passage = passage
        self._context = model.context

    @property
    def dropout(self) -> float:
        """Return the largest probability of dropout in training."""
        return dropout_of(self.root)

    @property
    def parameters(self) -> int:
        """Return how many numbers it has learned, tied ones once."""
        return sum(weight.numel() for weight in self.root.parameters())

    @abstractmethod
    def capture(self, passage: Input) -> Maps:
        """Return the weights of a run, by the library's own way of observing."""

    @abstractmethod
    def outputs(self, passage: Input) -> Outputs:
        """Return the outputs of a run while it is observed."""

    @abstractmethod
    def references(self) -> tuple[ReferenceRun[Maps], ...]:
        """Return the weights of the same run made otherwise."""

    @abstractmethod
    def unobserved(self) -> tuple[ReferenceRun[Outputs], ...]:
        """Return the outputs of the same run while nobody observes."""

    def sinks(self) -> Maps:
        """Return what a learned sink takes of each row, (head, query, 1); empty if there is
        none.
        """
        return {}

    @abstractmethod
    def head_sums(self) -> tuple[tuple[HeadSum, ...], str]:
        """Return the modules whose heads can be added up, and why others cannot; empty for all."""

    def padded(self) -> tuple[tuple[Padded, ...], str]:
        """Runs over the text with padding; where there are none, why."""
        if self._context is not None and len(self.passage.ids) + PADDED > self._context:
            return (), "the text fills the context: there is no room for padding"
        sides, reason = self.sides()
        return tuple(self.run_padded(side) for side in sides), reason

    def sides(self) -> tuple[tuple[Side, ...], str]:
        """Return where padding can stand, and why not elsewhere."""
        return ("right", "left"), ""

    @abstractmethod
    def run_padded(self, side: Side) -> Padded:
        """Return a run over the text with padding there."""

    def with_padding(self, padding: tuple[int, ...], side: Side) -> tuple[tuple[int, ...], slice]:
        """Return the text's ids with padding on one side, and where the real ones are."""
        ids = self.passage.ids
        if side == "right":
            return (*ids, *padding), slice(0, len(ids))
        return (*padding, *ids), slice(len(padding), len(padding) + len(ids))

    @abstractmethod
    def other_ids(self, count: int) -> tuple[int, ...]:
        """Token ids to put in place of others."""

    @contextmanager
    def training(self) -> Iterator[None]:
        """While this is open, the model is in training mode, as far as it has one."""
        modes = [(module, module.training) for module in self.root.modules()]
        self.root.train()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

    def state(self) -> dict[str, str]:
        """Return a digest of each part that observing must leave alone."""
        return module_state(self.root)
