"""Which heads of a vision-language model locate what a word speaks of, and which tokens are sinks.

Localisation heads are those of Kang et al. 2025 (arXiv 2503.06287): they give the picture much of
their weight, and what they give lies in few connected parts. Sinks are those of Kang et al. 2025
(arXiv 2503.03321), in dimensions that the model's massive activations show (Sun et al. 2024, arXiv
2402.17762).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnviz.measures.pictures import connected
from attnviz.records import Floats

FIRST_LAYER = 2
"""Layers before this one hold neither localisation heads nor sinks."""

BOTTOM = 0.05
"""A head with more of its weight on the bottom row of the picture is no localisation head."""

SINK_SIZE = 20.0
"""A token is a sink if an activation in a sink dimension is this many times the root mean square
of all."""

_MASSIVE = 100.0
"""A massive activation is larger than this, and ``_TIMES`` the median of its layer's."""

_TIMES = 1000.0


def elbow(sums: Floats) -> float:
    """Return the sum where the curve of all sums, in ascending order, has its elbow.

    That is the sum farthest below the straight line from the smallest to the largest.
    """
    ordered = np.sort(np.asarray(sums, np.float64).reshape(-1))
    line = np.linspace(ordered[0], ordered[-1], len(ordered))
    return float(ordered[np.argmax(line - ordered)])


def spatial_entropy(maps: Floats) -> Floats:
    """Return the entropy (map,) in nats of the connected parts of maps (map, row, column).

    The parts are of cells above the mean of their map; cells that touch at a side or a corner are
    connected. The entropy is that of the parts' shares of their weight. NaN counts as nothing.
    """
    weights = np.nan_to_num(np.asarray(maps, np.float64))
    parts = connected(weights > weights.mean((1, 2), keepdims=True))
    found = np.zeros(len(weights))
    for at, (own, part) in enumerate(zip(weights, parts, strict=True)):
        masses = np.bincount(part.reshape(-1), own.reshape(-1))[1:]
        shares = masses[masses > 0] / max(masses.sum(), np.finfo(float).tiny)
        found[at] = -(shares * np.log(shares)).sum()
    return found


def shuffled_entropies(maps: Floats, times: int, seed: int = 0) -> Floats:
    """Return the smallest spatial entropy (map,) of each map in random orders of its cells."""
    draw = np.random.default_rng(seed)
    cells = maps.shape[1] * maps.shape[2]
    flat = np.asarray(maps).reshape(len(maps), cells)
    orders = [draw.permutation(cells) for _ in range(times)]
    drawn = [spatial_entropy(flat[:, order].reshape(maps.shape)) for order in orders]
    least: Floats = np.min(drawn, axis=0)
    return least


class Activations(NamedTuple):
    """The large activations of the states that enter one layer.

    massive: the dimensions with a massive activation. large: for each activation of ``SINK_SIZE``
    times the root mean square of its token or more its (token, dimension).
    """

    massive: frozenset[int]
    large: frozenset[tuple[int, int]]


def activations(states: Floats) -> Activations:
    """Return the large activations of states (token, width)."""
    sizes = np.abs(np.asarray(states, np.float32))
    massive = (sizes > _MASSIVE) & (sizes > _TIMES * np.median(sizes))
    means = np.sqrt(np.square(sizes, dtype=np.float64).mean(-1, keepdims=True))
    large = np.argwhere(sizes >= SINK_SIZE * np.maximum(means, np.finfo(np.float64).tiny))
    dimensions = frozenset(np.flatnonzero(massive.any(0)).tolist())
    return Activations(
        dimensions, frozenset((token, dimension) for token, dimension in large.tolist())
    )
