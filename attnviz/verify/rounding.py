"""How far rounding alone may move the numbers of a model, from its dtype and its sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.records import ModelInfo
from attnviz.verify.maps import Maps, score_spread
from attnviz.verify.records import Measure, Tolerance

__all__ = ["EPSILON", "Rounding", "exact"]

EPSILON = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
"""The machine epsilon of each dtype: the gap from 1 to the next number."""

_STORED = 12
"""Results that a layer stores one after another: norms, projections, scores, weights, sums …"""


def exact(name: str, difference: float, where: str = "", reason: str = "") -> Measure:
    """A measure of what must be equal bit for bit."""
    words = reason or "bit for bit: the same operations on the same numbers"
    return Measure(name, difference, Tolerance(0.0, 0, 0.0), words, where)


@dataclass(frozen=True)
class Rounding:
    """The roundings of one model over texts of at most ``keys`` tokens.

    dtype: in which the least exact of its steps is computed.
    stacks: 2 of an encoder–decoder, whose output went through both.

    Half-precision types sum in float32, so there only what is stored is rounded to them; in the
    wider types every term of a sum counts.
    """

    info: ModelInfo
    keys: int
    dtype: str
    stacks: int = 1

    @property
    def epsilon(self) -> float:
        return EPSILON[self.dtype]

    @property
    def _half(self) -> bool:
        return self.dtype in ("float16", "bfloat16")

    def of_sum(self, terms: int, largest: float) -> tuple[Tolerance, str]:
        """Of one sum of products, and why."""
        if self._half:
            return self._told(2, largest, "2 results stored, sums in float32")
        return self._told(terms, largest, f"a sum of {terms:,} terms")

    def of_model(self, largest: float) -> tuple[Tolerance, str]:
        """Of a number that went through all layers, and why."""
        layers, width = self.info.layers * self.stacks, self.info.heads * self.info.head_dim
        per_layer = _STORED
        if not self._half:
            # Projections in and out and a feed-forward part four times as wide.
            per_layer += 6 * width + self.info.head_dim + self.keys
        words = f"{layers} layer{'s' * (layers != 1)} × {per_layer:,} roundings"
        return self._told(layers * per_layer, largest, words)

    def of_weights(self, maps: Maps) -> tuple[Tolerance, str]:
        """Of the weights of a whole run, and why."""
        tolerance, words = self.of_model(score_spread(maps))
        return tolerance, f"{words}; scores {tolerance.largest:.3g} apart"

    def of_outputs(self, outputs: NDArray[np.float64]) -> tuple[Tolerance, str]:
        """Of the outputs of a whole run, and why."""
        tolerance, words = self.of_model(max(1.0, float(np.abs(np.nan_to_num(outputs)).max())))
        return tolerance, f"{words}; outputs up to {tolerance.largest:.3g}"

    def _told(self, roundings: int, largest: float, words: str) -> tuple[Tolerance, str]:
        return Tolerance(self.epsilon, roundings, largest), words
