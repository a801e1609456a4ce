"""Measures of a head that reads a picture: how far it looks, and at which tokens it looks.

The mean attention distance is that of Dosovitskiy et al. 2021 (arXiv 2010.11929, D.7), in patches
instead of pixels and over patches alone; tokens that collect attention are those of Darcet et al.
2024 (arXiv 2309.16588).

Heads that localise are those of Kang et al. 2025 (arXiv 2503.06287): they give the picture much of
their weight, in few connected parts. Sinks of a text with a picture are those of Kang et al. 2025
(arXiv 2503.03321), in the dimensions of massive activations (Sun et al. 2024, arXiv 2402.17762).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.records import Floats
from attnviz.token_layout import TokenLayout

SHUFFLES = 19
"""The number of random orders of the patches that a head is compared with: with no structure it is
nearer than all of them in one case of twenty."""

_CONTROLLED = 256  # the most queries whose distances are measured in shuffled orders too

SINK_SHARE = 0.3  # the share of the attention of all patches from which a token is called a sink
LOCAL = 0.5  # the share of the distance of uniform attention up to which a head is called local

OUTLYING = 4.0
"""A patch has an outlying norm if it is this many times the median of all patches. Darcet et al.
draw the line where the two humps of the histogram part, at 3 to 4 times the median in DINOv2-g."""

_MASS = 0.6  # the share of the mass inside the contour, as in DINO's ``visualize_attention.py``


class PictureSums:
    """Sums over the attention rows of one layer, block by block.

    layout: the tokens. Distances between patches of different grids are not defined: such pairs
    count in no distance. windows: the edges of the tokens that see each other; patches are shuffled
    inside. All see all by default.
    """

    def __init__(self, layout: TokenLayout, heads: int, windows: Sequence[int] = ()) -> None:
        tokens = len(layout)
        self._layout = layout
        self._patches = np.asarray(layout.of_kind("patch"))
        self._centres = layout.centres()[self._patches]
        self._grids = layout.grid[self._patches]
        self.received = np.zeros((heads, tokens))
        self._queries = 0
        self._distance = np.zeros(heads)
        self._near, self._shuffled = np.zeros(heads), np.zeros((SHUFFLES, heads))
        self._controlled = 0
        draw = np.random.default_rng(0)
        edges = np.searchsorted(self._patches, windows or (0, tokens)).tolist()
        parts = [np.arange(*ends) for ends in pairwise(edges)]
        self._orders = [
            np.concatenate([draw.permutation(part) for part in parts]) for _ in range(SHUFFLES)
        ]
        step = -(-len(self._patches) // _CONTROLLED) or 1
        self._sample = set(self._patches[::step].tolist())

    def add(self, start: int, weights: Floats) -> None:
        """Add the weights (head, rows, key) of the queries from ``start`` on."""
        rows = np.arange(start, start + weights.shape[1])
        own = np.flatnonzero(np.isin(rows, self._patches))
        if not len(own):
            return
        block = np.zeros((len(weights), len(own), len(self._layout)))
        block[..., : weights.shape[-1]] = weights[:, own]
        self.received += block.sum(1)
        self._queries += len(own)
        distance = self.distances(rows[own])
        known = ~np.isnan(distance)
        inside = block[..., self._patches] * known
        apart = np.where(known, distance, 0.0)
        mass = inside.sum(-1)
        shares = np.divide(inside, mass[..., None], out=inside, where=mass[..., None] > 0)
        self._distance += (shares * apart).sum((1, 2))
        some = np.array([int(row) in self._sample for row in rows[own]])
        if some.any():
            few = shares[:, some]
            self._near += (few * apart[some]).sum((1, 2))
            self._controlled += int(some.sum())
            for at, order in enumerate(self._orders):
                self._shuffled[at] += (few * apart[some][:, order]).sum((1, 2))

    def distances(self, queries: NDArray[np.intp]) -> Floats:
        """Return the distances (query, patch) in patches; NaN between different grids."""
        at = np.searchsorted(self._patches, queries)
        between = self._centres[at, None] - self._centres[None]
        distance: Floats = np.hypot(between[..., 0], between[..., 1])
        distance[self._grids[at, None] != self._grids[None]] = np.nan
        return distance

    @property
    def distance(self) -> Floats:
        """Return the mean attention distance (head,) in patches."""
        return self._distance / max(self._queries, 1)

    @property
    def shuffled(self) -> Floats:
        """Return the distances (order, head) with shuffled patches, of the controlled queries."""
        return self._shuffled / max(self._controlled, 1)

    @property
    def near(self) -> Floats:
        """Return the distance (head,) of the controlled queries alone, to compare with theirs."""
        return self._near / max(self._controlled, 1)

    @property
    def means(self) -> Floats:
        """Return the mean weight (head, token) that the queries of all patches give a token."""
        return self.received / max(self._queries, 1)


def uniform_distance(layout: TokenLayout, windows: Sequence[int] = ()) -> float:
    """Return the mean distance in patches of equal attention inside each grid, or window of it."""
    sums, queries, centres = 0.0, 0, layout.centres()
    seen = pairwise(windows or (0, len(layout)))
    for (first, last), grid in product(seen, range(len(layout.grids))):
        patches = layout.patches(grid)
        own = centres[patches[(patches >= first) & (patches < last)]]
        for start in range(0, len(own), _CONTROLLED):
            between = own[start : start + _CONTROLLED, None] - own[None]
            sums += float(np.hypot(between[..., 0], between[..., 1]).mean(1).sum())
        queries += len(own)
    return sums / max(queries, 1)


def contour(weights: Floats) -> float:
    """Return the least of the largest weights that make up 60% of the mass; NaN without any."""
    ordered = np.sort(weights[np.isfinite(weights)])[::-1]
    total = ordered.sum()
    if not total > 0:
        return float("nan")
    reached = np.searchsorted(np.cumsum(ordered), _MASS * total)
    return float(ordered[min(reached, len(ordered) - 1)])


def outlying(norms: Floats, layout: TokenLayout) -> NDArray[np.intp]:
    """Return the indices of patches whose norm (token,) is far above the median of all patches."""
    patches = layout.of_kind("patch")
    if not len(patches):
        return patches
    return patches[norms[patches] > OUTLYING * np.median(norms[patches])]


def largest_part(weights: Floats) -> NDArray[np.bool_]:
    """Return the connected part (row, column) of positive weights with the largest sum."""
    part = connected(weights[None] > 0)[0]
    sums = np.bincount(part.reshape(-1), np.where(part > 0, weights, 0.0).reshape(-1))
    return np.asarray((part > 0) & (part == sums.argmax()))


def connected(cells: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the number of each true cell's part (map, row, column), corners count; else 0."""
    rows, columns = cells.shape[1:]
    numbers = np.arange(1, rows * columns + 1, dtype=np.int32).reshape(rows, columns)
    parts = np.where(cells, numbers, 0)
    while True:
        grown = parts.copy()
        for axis in (1, 2):  # the largest number of a cell and those around it
            first, last = (grown.swapaxes(1, axis)[:, own] for own in (slice(1, None), slice(-1)))
            before = last.copy()
            np.maximum(last, first, out=last)
            np.maximum(first, before, out=first)
        grown *= cells
        if np.array_equal(grown, parts):
            return parts
        parts = grown


# Heads that localise a text in a picture ----------------------------------------------------------

FIRST_LAYER = 2  # layers before this one hold neither localisation heads nor sinks
BOTTOM = 0.05  # a head with more of its weight on the bottom row is no localisation head

SINK_SIZE = 20.0
"""A token is a sink if an activation in a sink dimension is this many times the root mean square
of all."""

_MASSIVE = 100.0  # a massive activation is larger, and ``_TIMES`` the median of its layer's
_TIMES = 1000.0


def elbow(sums: Floats) -> float:
    """Return the sum farthest below the line from the smallest to the largest of the sums."""
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
    entropies = np.zeros(len(weights))
    for at, (own, part) in enumerate(zip(weights, parts, strict=True)):
        masses = np.bincount(part.reshape(-1), own.reshape(-1))[1:]
        shares = masses[masses > 0] / max(masses.sum(), np.finfo(float).tiny)
        entropies[at] = -(shares * np.log(shares)).sum()
    return entropies


def shuffled_entropies(maps: Floats, times: int) -> Floats:
    """Return the smallest spatial entropy (map,) of each map in random orders of its cells."""
    draw = np.random.default_rng(0)
    cells = maps.shape[1] * maps.shape[2]
    flat = np.asarray(maps).reshape(len(maps), cells)
    orders = [draw.permutation(cells) for _ in range(times)]
    drawn = [spatial_entropy(flat[:, order].reshape(maps.shape)) for order in orders]
    return np.asarray(np.min(drawn, axis=0))


class Activations(NamedTuple):
    """The massive dimensions of a layer's states, and their (token, dimension) of ``SINK_SIZE``."""

    massive: frozenset[int]
    large: frozenset[tuple[int, int]]


def activations(states: Floats) -> Activations:
    """Return the large activations of states (token, width)."""
    sizes = np.abs(np.asarray(states, np.float32))
    massive = (sizes > _MASSIVE) & (sizes > _TIMES * np.median(sizes))
    means = np.sqrt(np.square(sizes, dtype=np.float64).mean(-1, keepdims=True))
    large = np.argwhere(sizes >= SINK_SIZE * np.maximum(means, np.finfo(np.float64).tiny))
    dimensions = frozenset(np.flatnonzero(massive.any(0)).tolist())
    return Activations(dimensions, frozenset((token, axis) for token, axis in large.tolist()))
