"""Run one text through a model: each head's weights and outputs, and the predictions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from attnviz.attention.functional import Array
from attnviz.engine.observer import BlockFacts, KeepWeights
from attnviz.errors import UnsupportedError
from attnviz.measures.reduced import ReducedLayer
from attnviz.records import Floats, Input, Kind, LayerWeights, ModelInfo

ReadLayer = TypeVar("ReadLayer")

Head: TypeAlias = tuple[int, int]
"""Layer and head, from 0."""

Heads: TypeAlias = Collection[Head]
Rows: TypeAlias = Sequence[int] | None
"""The queries of a text that are read without the others; None for all of them."""


@dataclass(frozen=True, eq=False)
class HeadRun:
    """The result of running a model on one text, with what its heads did, by layer.

    weights: (head, query, key). outputs: (head, query, dim), before the output projection; empty if
    unseen. logits: (token, vocab), maybe on a GPU, or None. norms: (head, key), ‖v_j W_O^h‖. masks:
    (query, key) where known.
    """

    weights: Mapping[int, Floats]
    outputs: Mapping[int, Floats]
    logits: Array | None
    norms: Mapping[int, Floats] = field(default_factory=dict)
    masks: Mapping[int, Any] = field(default_factory=dict)


class Run(Protocol):
    """A function that runs a model over one text."""

    def __call__(
        self, given: Input, removed: Heads = (), norms: bool = False, rows: Rows = None
    ) -> HeadRun:
        """Run the model on ``given`` with the outputs of the ``removed`` heads set to zero.

        norms: True also measures the norms of the values. rows: the queries to which weights,
            outputs and logits are limited; no whole matrix is then held. None for all of them.
        Raises UnsupportedError if heads cannot be removed, norms cannot be observed, or some rows
        not read without the others.
        """


def unseen_outputs(
    observe: Callable[..., None], info: ModelInfo, kind: Kind, lacks: Exception
) -> tuple[Run, tuple[str, ...]]:
    """Return a ``Run`` for a model that shows only its attention weights, and a note about that.

    observe: the method of ``Backend``. info: names the model. kind: the attention to observe.
    lacks: the error that says why outputs and predictions cannot be observed.
    """

    def run(given: Input, removed: Heads = (), norms: bool = False, rows: Rows = None) -> HeadRun:
        if rows is not None:
            raise UnsupportedError(f"no rows of {info.name!r} are read without the others: {lacks}")
        if removed:
            raise UnsupportedError(f"heads of {info.name!r} cannot be removed: {lacks}")
        keep = KeepWeights(kind)
        observe(keep, [given], cells=None)
        moved = norms_of(observe, kind, given) if norms else {}
        weights, masks = by_layer(keep.layers)
        return HeadRun(weights, {}, None, moved, masks)

    return run, (f"outputs of heads and predictions are not shown: {lacks}",)


def by_layer(layers: Iterable[LayerWeights]) -> tuple[dict[int, Floats], dict[int, Any]]:
    """Return the attention weights and the masks of layers, by the index of the layer."""
    kept = {layer.layer: layer for layer in layers}
    return {at: own.weights for at, own in kept.items()}, {at: own.mask for at, own in kept.items()}


def norms_of(observe: Callable[..., None], kind: Kind, given: Input) -> dict[int, Floats]:
    """Return the norms (head, key) of each layer's values, from a separate pass in blocks."""
    keep = KeepNorms(kind)
    observe(keep, [given])
    return keep.norms_of


class KeepLayers(Generic[ReadLayer]):
    """A reader that keeps what a function returns of each layer of one kind of attention."""

    def __init__(self, kind: Kind, read: Callable[[ReducedLayer], ReadLayer]) -> None:
        self._kind, self._read = kind, read
        self.layers: dict[int, ReadLayer] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind

    def sums(self, text: int, kind: Kind, layer: int, attention: ReducedLayer) -> None:
        self.layers[layer] = self._read(attention)


class KeepNorms:
    """An observer that records only the norms of the values, of one kind of attention."""

    norms = True

    def __init__(self, kind: Kind, weights: KeepWeights | None = None) -> None:
        self._kind, self._weights = kind, weights
        self.norms_of: dict[int, Floats] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, beside: BlockFacts
    ) -> None:
        if beside.norms is not None:
            self.norms_of[layer] = beside.norms
        if self._weights is not None:
            self._weights.observe(text, kind, layer, start, weights, beside)
