"""From measures of many matrices to means, their standard errors, and one histogram."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.queries_keys import softmaxed
from attnviz.scaling.measures import histogram, matrix_measures
from attnviz.scaling.records import BIN_EDGES, MEASURES, Estimate, Softened

__all__ = ["Side"]

Floats = NDArray[np.floating]


class Side:
    """Collects what the softmax makes of bare scores times one scale.

    scale: what they are multiplied with.
    """

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self._values: dict[str, list[Floats]] = {name: [] for name in MEASURES}
        self._histogram = np.zeros(len(BIN_EDGES) - 1, np.int64)

    def add(
        self, products: Floats, bias: Floats | None = None, rows: NDArray[np.bool_] | None = None
    ) -> None:
        """Take in matrices of bare scores (..., query, key).

        bias: (query, key), added before the softmax, -inf where a key is hidden.
        rows: the queries that count; None for all.
        """
        weights = softmaxed(products, self.scale, bias)
        scores = products * self.scale
        visible = None
        if rows is not None:
            scores, weights = scores[..., rows, :], weights[..., rows, :]
        if bias is not None:
            visible = bias > -np.inf
            visible = visible if rows is None else visible[rows]
        for name, value in matrix_measures(scores, weights, visible).items():
            self._values[name].append(np.ravel(value))
        self._histogram += histogram(weights if visible is None else weights[..., visible])

    def result(self, d_k: int, independent: bool) -> Softened:
        """The means over all matrices; with standard errors where these are independent."""
        joined = {name: np.concatenate(parts) for name, parts in self._values.items()}
        return Softened(
            self.scale,
            {name: _estimate(values, independent) for name, values in joined.items()},
            tuple(self._histogram.tolist()),
            self.scale**2 * d_k,
        )


def _estimate(values: Floats, independent: bool) -> Estimate:
    """The mean of one number a matrix, its error the deviation of these over √matrices."""
    mean = float(values.mean())
    if not independent or len(values) < 2:
        return Estimate(mean)
    return Estimate(mean, float(values.std(ddof=1)) / math.sqrt(len(values)))
