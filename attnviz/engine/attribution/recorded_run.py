"""A recorded NumPy pass, in which norms are linear maps with fixed scales."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnviz.attention.functional import project
from attnviz.attention.numpy_stack import NumpyStack, held_norm, held_norm_back
from attnviz.records import Floats


class RecordedRun(NumpyStack):
    """One recorded pass, in which each norm is a linear map of fixed scale.

    ids: a text, or several of one length, (..., token). embedded: the residual stream before the
        first layer. end: the one after the last.
    reads: the input of each layer's attention. given: the input of each norm, by its name.
    outputs: of the heads of each layer, (..., head, token, dim). weights: (..., head, query, key),
        of each layer. fed: what each layer's feed-forward block added.
    layers: how many layers run; None for all.
    """

    def __init__(self, stack: NumpyStack, ids: ArrayLike, layers: int | None = None) -> None:
        shape = stack.shape if layers is None else replace(stack.shape, layers=layers)
        super().__init__(shape, {}, stack.dtype)
        self.tensors = stack.tensors
        self.ids = np.asarray(ids)
        self.given: dict[str, Floats] = {}
        self.reads: list[Floats] = []
        self.outputs: list[Floats] = []
        self.weights: list[Floats] = []
        self.fed: list[Floats] = []
        self.end = self.run_outputs(self.ids, self._observe)
        self.finite = bool(np.isfinite(self.end).all())

    def moved(self, name: str, change: Floats) -> Floats:
        """Return the change of a norm's output for a ``change`` of its input, (token, width).

        name: of the norm. It divides by the same numbers as in this run.
        """
        return held_norm(self, name, self.given[name], change)

    def moved_back(self, name: str, slope: Floats) -> Floats:
        """Return the gradient at a norm's input (..., width) from ``slope``, that at its output.

        name: of the norm. It divides by the same numbers as in this run.
        """
        return held_norm_back(self, name, self.given[name], slope)

    def embedded_since(self, clean: RecordedRun) -> Floats:
        """Return the clean run's embedding minus this run's, as the input of the first layer.

        clean: the run over the clean text.
        """
        if (name := "embedding_norm") not in self.given:
            return clean.embedded - self.embedded
        return self.embedding_of(clean.given[name] - self.given[name])

    def embedding_of(self, rows: Floats) -> Floats:
        """Return what rows of the tables of embeddings, (token, width), become before layer 0."""
        if "embedding_norm" in self.given:
            rows = self.moved("embedding_norm", rows)
        weight = self.tensors.optional("embedding_projection.weight")
        return rows if weight is None else project(rows, weight)

    def _observe(self, layer: int, weights: Floats, outputs: Floats) -> None:
        self.weights.append(weights)
        self.outputs.append(outputs)

    def embed(self, ids: NDArray[np.integer], start: int = 0) -> Floats:
        self.embedded = super().embed(ids, start)
        return self.embedded

    def read(self, layer: int, residual: Floats) -> Floats:
        self.reads.append(super().read(layer, residual))
        return self.reads[-1]

    def _norm(self, name: str, residual: Floats) -> Floats:
        self.given[name] = residual
        return super()._norm(name, residual)

    def _feed_forward(self, layer: int, read: Floats) -> Floats:
        self.fed.append(super()._feed_forward(layer, read))
        return self.fed[-1]
