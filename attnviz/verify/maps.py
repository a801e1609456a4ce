"""Attention weights of a whole run, and how far two runs are apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.observer import to_numpy
from attnviz.records import Kind

__all__ = ["Difference", "KeepAll", "Maps", "apart", "furthest", "score_spread"]

Maps: TypeAlias = Mapping[tuple[Kind, int], NDArray[np.floating]]
"""The weights (head, query, key) of each layer of each kind of attention."""

Difference: TypeAlias = tuple[float, str]
"""A largest absolute difference, and the head where it was found."""


class KeepAll:
    """An observer that keeps every layer of every kind, of the first text of a batch."""

    norms = False

    def __init__(self) -> None:
        self.maps: dict[tuple[Kind, int], NDArray[np.floating]] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return True

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, norms: Any
    ) -> None:
        # A copy: what a model computes in place later must not change what was seen.
        if text == 0:
            self.maps[kind, layer] = np.array(to_numpy(weights))


def apart(one: Maps, other: Maps) -> Difference:
    """The largest difference of two runs; infinite where they have other layers or shapes."""
    if set(one) != set(other):
        return math.inf, "other layers"
    return furthest((place, _difference(one[place], other[place])) for place in one)


def _difference(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    if one.shape != other.shape:
        return np.full(1, math.inf)
    difference: NDArray[np.float64] = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return difference


def furthest(found: Iterable[tuple[tuple[Kind, int], NDArray[Any]]]) -> Difference:
    """The largest of absolute numbers whose first axis is the head; a NaN is larger than all."""
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
    """How far scores are apart, as the smallest weight above zero tells: -ln of it, at least one.

    An error of a score becomes a relative error of its weight, and scores round as they are large.
    """
    least = [float(w[w > 0].min()) for w in maps.values() if bool((w > 0).any())]
    return max(1.0, -math.log(min(least, default=1.0)))
