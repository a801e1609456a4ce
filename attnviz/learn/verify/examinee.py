"""The interface of a model that is verified, and functions that compare two runs."""

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
"""The attention weights (head, query, key) by kind of attention and layer."""

Difference: TypeAlias = tuple[float, str]
"""The largest absolute difference, and the head of it."""

Side = Literal["right", "left"]

Outputs: TypeAlias = NDArray[np.float64]
"""The last hidden states or logits of one text: (token, width)."""


_Found = TypeVar("_Found")

PADDED = 3
"""Number of padding tokens in the padding check."""


class KeepAll:
    """An observer that records the attention of all layers and kinds, for the first text."""

    norms = False

    def __init__(self) -> None:
        self.maps: dict[tuple[Kind, int], NDArray[np.floating]] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return True

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, beside: BlockFacts
    ) -> None:
        # A copy, as the model may change its array in place later.
        if text == 0:
            self.maps[kind, layer] = np.array(to_numpy(weights))


def apart(one: Maps, other: Maps) -> Difference:
    """Return the largest difference between the attention weights of two runs, and its head.

    It is infinite if layers or shapes differ.
    """
    if set(one) != set(other):
        return math.inf, "other layers"
    return furthest((place, differences(one[place], other[place])) for place in one)


def differences(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """Return absolute differences of two arrays; a single infinite one if the shapes differ."""
    if one.shape != other.shape:
        return np.full(1, math.inf)
    difference: NDArray[np.float64] = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return difference


def furthest(found: Iterable[tuple[tuple[Kind, int], NDArray[Any]]]) -> Difference:
    """Return the largest number in all arrays, and the name of its head; NaN counts as largest.

    found: pairs of (kind of attention, layer) and an array (head, ...) of absolute numbers.
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
    """Return an estimate of how far attention scores differ, at least 1.

    It is −ln of the smallest attention weight above 0. maps: the weights (head, query, key) by
    (kind of attention, layer). An error of a score becomes a relative error of its weight, and
    larger scores round more.
    """
    least = [float(w[w > 0].min()) for w in maps.values() if bool((w > 0).any())]
    return max(1.0, -math.log(min(least, default=1.0)))


@dataclass(frozen=True, eq=False)
class ReferenceRun(Generic[_Found]):
    """The attention weights or the outputs of the same run, computed in another way.

    name: of that way. exact: whether its operations are the same, so that no bit may differ.
    found: the weights or outputs.
    """

    name: str
    exact: bool
    found: _Found


@dataclass(frozen=True, eq=False)
class Padded:
    """The results of a run over a text with padding, for its real tokens only.

    side: where the padding stood, left or right. maps, outputs: of the real tokens.
    on_padding: the largest attention weight of a real token on padding, and its head.
    """

    side: Side
    maps: Maps
    outputs: Outputs
    on_padding: Difference

    @classmethod
    def of_run(cls, side: Side, maps: Maps, outputs: Outputs, real: slice) -> Padded:
        """Return the results of a padded run for its ``real`` tokens.

        side: of the padding. maps: the attention weights of the whole run. outputs: of the real
            tokens already. real: the positions of the real tokens.
        """
        # Queries of these kinds are of the padded text; a decoder's own text is not padded.
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
    """A model to be verified, with the ways to run it; a base class.

    root: the model's torch module, or the torch twin of a NumPy model.
    passage: the token ids of the text.
    kinds: the kinds of attention of a run. causal: those that must not see later tokens.
    rounds_in: the dtype of its least exact steps, from which tolerances are derived.
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
        """Return the largest dropout probability that the model has in training."""
        return dropout_of(self.root)

    @property
    def parameters(self) -> int:
        """Return the number of parameters, tied ones counted once."""
        return sum(weight.numel() for weight in self.root.parameters())

    @abstractmethod
    def capture(self, passage: Input) -> Maps:
        """Return the attention weights of a run over a passage, as attnviz observes them."""

    @abstractmethod
    def outputs(self, passage: Input) -> Outputs:
        """Return the outputs of a run over a passage while its attention is observed."""

    @abstractmethod
    def references(self) -> tuple[ReferenceRun[Maps], ...]:
        """Return the attention weights over ``self.passage``, computed in other ways."""

    @abstractmethod
    def unobserved(self) -> tuple[ReferenceRun[Outputs], ...]:
        """Return the outputs over ``self.passage`` of runs without observation."""

    def sinks(self) -> Maps:
        """Return the attention share of learned sinks for each query, (head, query, 1).

        The keys are (kind, layer). The result is empty for a model without learned sinks.
        """
        return {}

    @abstractmethod
    def head_sums(self) -> tuple[tuple[HeadSum, ...], str]:
        """Return the sum of the heads' outputs for each attention module, as ``HeadSum``.

        Also returns why other modules have no sum, or "".
        """

    def padded(self) -> tuple[tuple[Padded, ...], str]:
        """Return the runs over the text with padding on its left and on its right.

        Also returns why a side has no run, or "".
        """
        if self._context is not None and len(self.passage.ids) + PADDED > self._context:
            return (), "the text fills the context: there is no room for padding"
        sides, reason = self.sides()
        return tuple(self.run_padded(side) for side in sides), reason

    def sides(self) -> tuple[tuple[Side, ...], str]:
        """Return the sides of the text, left and right, on which padding is possible.

        Also returns why the other side is left out, or "".
        """
        return ("right", "left"), ""

    @abstractmethod
    def run_padded(self, side: Side) -> Padded:
        """Return a run over the text with padding on one side."""

    def with_padding(self, padding: tuple[int, ...], side: Side) -> tuple[tuple[int, ...], slice]:
        """Return the text's ids with padding on one side, and the positions of the real ones.

        padding: the ids to add. side: left or right.
        """
        ids = self.passage.ids
        if side == "right":
            return (*ids, *padding), slice(0, len(ids))
        return (*padding, *ids), slice(len(padding), len(padding) + len(ids))

    @abstractmethod
    def other_ids(self, count: int) -> tuple[int, ...]:
        """Return ``count`` token ids of the vocabulary that can replace those of a text."""

    @contextmanager
    def training(self) -> Iterator[None]:
        """Put the model in training mode while the context is open."""
        modes = [(module, module.training) for module in self.root.modules()]
        self.root.train()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

    def state(self) -> dict[str, str]:
        """Return a digest, by name, of each part of the model that observing must not change."""
        return module_state(self.root)
