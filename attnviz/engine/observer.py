"""The one protocol by which every kind of model hands over its attention, one call at a time."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attnviz.records import Kind, LayerWeights

__all__ = ["KeepWeights", "Observer", "to_numpy"]


class Observer(Protocol):
    """Told of every attention call of a run while it passes by."""

    def wants(self, kind: Kind, layer: int) -> bool:
        """Whether the weights of this layer are to be handed over; others run at full speed."""
        ...

    def observe(self, kind: Kind, layer: int, weights: Any) -> None:
        """Take the weights (batch, heads, query, key), an array of the library that runs."""
        ...


def to_numpy(weights: Any) -> NDArray[np.floating]:
    """A torch tensor or NumPy array as NumPy, float64 kept and everything narrower as float32."""
    if hasattr(weights, "detach"):
        weights = weights.detach()
        if weights.element_size() < 4:  # NumPy has no bfloat16
            weights = weights.float()
        weights = weights.cpu().numpy()
    array: NDArray[np.floating] = np.asarray(weights)
    return array if array.dtype == np.float64 else array.astype(np.float32, copy=False)


class KeepWeights:
    """Keeps the weights of one kind of attention, of the first text of the batch.

    kind: the kind to keep.
    heads: the heads to keep of each layer; a layer that is not a key passes unseen.
        None keeps every head of every layer.
    """

    def __init__(self, kind: Kind, heads: Mapping[int, Container[int]] | None = None) -> None:
        self._kind = kind
        self._heads = heads
        self._layers: dict[int, LayerWeights] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind and (self._heads is None or layer in self._heads)

    def observe(self, kind: Kind, layer: int, weights: Any) -> None:
        if not self.wants(kind, layer):
            return
        every = range(weights.shape[1])
        kept = (
            tuple(every)
            if self._heads is None
            else tuple(head for head in every if head in self._heads[layer])
        )
        if not kept:  # layers may differ in their heads
            return
        chosen = weights[0] if len(kept) == len(every) else weights[0][list(kept)]
        self._layers[layer] = LayerWeights(layer, kept, to_numpy(chosen))

    @property
    def layers(self) -> tuple[LayerWeights, ...]:
        """What was kept, in order of the layers."""
        return tuple(self._layers[layer] for layer in sorted(self._layers))
