"""The comparison by numbers alone: divergences over texts, the noise floor, what lies above it.

A head counts as changed where the 95 % bootstrap interval, over paired texts, of its divergence
lies above the noise floor: what rounding alone does to either model. That two models differ at
all says nothing: any change of a weight changes every head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.head_run import Head
from attnviz.errors import UsageError
from attnviz.inspect.diff.maps import ModelMaps, TextMaps
from attnviz.measures.assignment import cheapest_pairs
from attnviz.measures.bootstrap import LEAST_TEXTS, mean_interval
from attnviz.measures.divergence import cosine, js_divergence, kl_divergence
from attnviz.measures.sinks import without_sink

Values = NDArray[np.floating]

Pair = tuple[Head, Head]
"""A head of the first model, and the one of the second that it is compared with."""

_ROUNDED = 2.0
"""The floor over the divergence of one rounded side from an exact one: where both are rounded,
squared errors add up, and a divergence is a squared error to first order."""

_MOST_PAIRS = 2**18
"""Of heads that are compared with each other for a match."""


@dataclass(frozen=True, eq=False)
class Divergences:
    """Of each pair of heads over each text, (text, pair); NaN for what cannot be had.

    js: Jensen–Shannon divergence of the rows, bits, mean over queries. no_sink: the same without
    the sink's keys, rows rescaled. output: 1 − cosine of what the heads put out, mean over queries.
    """

    js: Values
    no_sink: Values
    output: Values


def divergences(first: ModelMaps, second: ModelMaps, pairs: Sequence[Pair]) -> Divergences:
    """Return how far the heads of each pair are apart over each text.

    The first query of a causal text, which sees nothing but itself, does not count.
    """
    found = np.full((3, len(first.texts), len(pairs)), np.nan)
    places = sorted(range(len(pairs)), key=lambda place: (pairs[place][0][0], pairs[place][1][0]))
    for number, (one, other) in enumerate(zip(first.texts, second.texts, strict=True)):
        rows = one.kept >= 1 if first.causal else np.ones(len(one.kept), bool)
        if not rows.any():
            rows[:] = True
        for layers, group in groupby(
            places, key=lambda place: (pairs[place][0][0], pairs[place][1][0])
        ):
            at = list(group)
            heads = [[pairs[place][side][1] for place in at] for side in (0, 1)]
            sides = (one, other)
            weights = [
                side.rows[layer][chosen][:, rows]
                for side, layer, chosen in zip(sides, layers, heads, strict=True)
            ]
            found[0, number, at] = js_divergence(*weights).mean(-1)
            bare = [
                without_sink(each, side.sink) for each, side in zip(weights, sides, strict=True)
            ]
            found[1, number, at] = known_mean(js_divergence(*bare))
            outputs = [
                side.outputs[layer][chosen][:, rows]
                for side, layer, chosen in zip(sides, layers, heads, strict=True)
                if layer in side.outputs
            ]
            if len(outputs) == 2 and outputs[0].shape == outputs[1].shape:
                found[2, number, at] = 1 - cosine(*outputs).mean(-1)
    return Divergences(*found)


def known_mean(values: Values) -> Values:
    """Mean over the last axis of what is a number; NaN where nothing is."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(-1)
    means = np.full(total.shape, np.nan)
    np.divide(total, known.sum(-1), out=means, where=known.any(-1))
    return means


# The floor -----------------------------------------------------------------------------------


class Floor(NamedTuple):
    """What rounding alone does, in the units of ``Divergences``.

    js, output: twice the largest mean over texts that any head has; one bound for all heads.
    """

    js: float
    output: float = math.nan


def noise_floor(noise: Divergences) -> Floor:
    """Return the floor for all heads, from one side against itself in other numbers."""
    return Floor(*(_ROUNDED * _largest(each) for each in (noise.js, noise.output)))


def _largest(values: Values) -> float:
    means = known_mean(values.T)
    return float(np.nanmax(means)) if np.isfinite(means).any() else math.nan


class Doubt(NamedTuple):
    """Means over texts (column,), and the ends of their 95 % intervals, None below five texts."""

    mean: Values
    low: Values | None
    high: Values | None

    def ends(self, place: int) -> tuple[float, float] | None:
        """Return the interval of one column; None without one."""
        if self.low is None or self.high is None or not math.isfinite(self.low[place]):
            return None
        return float(self.low[place]), float(self.high[place])

    def above(self, place: int, floor: float) -> bool:
        """Return whether the whole interval lies above a floor, which one over a single text never
        does.

        A floor that is no number is not known, and nothing lies above it.
        """
        ends = self.ends(place)
        return ends is not None and ends[0] > floor


def over_texts(values: Values, seed: int, *, positive: bool = True) -> Doubt:
    """Return the mean of (text, column) over texts, by the bootstrap.

    positive: no value is below zero, so no end of an interval is.
    """
    mean = values.mean(axis=0)
    if len(values) < LEAST_TEXTS:
        return Doubt(mean, None, None)
    low, high = mean_interval(values, seed)
    return Doubt(mean, np.maximum(low, 0.0) if positive else low, high)


# What the models predict ---------------------------------------------------------------------


class Predictions(NamedTuple):
    """Two models' predictions of the next token, as llama.cpp's ``--kl-divergence`` has them.

    kl: KL(A ‖ B), nats, mean over positions. same_top: the share of them with the same likeliest
    token. Errors are standard errors over positions: s / √n, and √(p(1 − p) / (n − 1)).
    positions: how many. largest: the highest KL of one.
    """

    kl: float
    kl_error: float
    same_top: float
    same_top_error: float
    positions: int
    largest: float


def predictions(first: ModelMaps, second: ModelMaps) -> Predictions | None:
    """Return how far the predictions are apart; None where a side has none, other words, or NaN."""
    apart, same = [], []
    for one, other in zip(first.texts, second.texts, strict=True):
        p, q = one.predictions, other.predictions
        if p is None or q is None or p.shape != q.shape or np.isnan([p.max(), q.max()]).any():
            return None
        apart.append(kl_divergence(p, q))
        same.append(p.argmax(-1) == q.argmax(-1))
    kl, top = np.concatenate(apart), np.concatenate(same)
    count, share = len(kl), float(top.mean())
    spare = max(count - 1, 1)
    return Predictions(
        float(kl.mean()),
        float(kl.std(ddof=min(1, count - 1)) / math.sqrt(count)),
        share,
        math.sqrt(share * (1 - share) / spare),
        count,
        float(kl.max()),
    )


class Noise(NamedTuple):
    """What rounding alone does to one model, or to either of two.

    floor: above it lies what rounding does not do. words: which model was compared with itself,
    and in which numbers. predictions: how far apart they are there.
    """

    floor: Floor
    words: str
    predictions: Predictions | None = None

    def or_more(self, other: Noise) -> Noise:
        """Return the noise of two models: of each number the larger one.

        The model with the coarser numbers may have lost in its file what the other one still has.
        Then only the other one shows what was lost.
        """
        if self.words == other.words:
            return self
        known = [each for each in (self.predictions, other.predictions) if each is not None]
        return Noise(
            Floor(*(float(np.fmax(*pair)) for pair in zip(self.floor, other.floor, strict=True))),
            f"{self.words}, {other.words}",
            max(known, key=lambda each: each.kl, default=None),
        )


# Which head is compared with which ------------------------------------------------------------


def pairs_by_index(first: Mapping[int, int], second: Mapping[int, int]) -> list[Pair]:
    """Return the heads that both models have, by layer and place; the arguments are heads by
    layer.
    """
    return [
        ((layer, head), (layer, head))
        for layer in first
        if layer in second
        for head in range(min(first[layer], second[layer]))
    ]


def matched_pairs(first: ModelMaps, second: ModelMaps) -> list[Pair]:
    """Return the pairs with the least sum of divergences.

    Within layers where both models have as many of them, else over the whole model. Raises
    UsageError where that would hold too many heads against each other.
    """
    heads, others = first.heads, second.heads
    groups = [(heads, others)]
    if len(heads) == len(others):
        layers = zip(heads, others, strict=True)
        groups = [({a: heads[a]}, {b: others[b]}) for a, b in layers]
    tried = sum(sum(a.values()) * sum(b.values()) for a, b in groups)
    if tried > _MOST_PAIRS:
        raise UsageError(
            f"--match would hold {tried:,} pairs of heads against each other, at most "
            f"{_MOST_PAIRS:,} are: leave it out"
        )
    found: list[Pair] = []
    for a, b in groups:
        lefts, rights = ([(at, head) for at in each for head in range(each[at])] for each in (a, b))
        table = np.zeros((len(lefts), len(rights)))
        for one, other in zip(first.texts, second.texts, strict=True):
            table += _table(one, other, lefts, rights)
        found += [(lefts[left], rights[right]) for left, right in cheapest_pairs(table)]
    return sorted(found)


def _table(one: TextMaps, other: TextMaps, first: Sequence[Head], second: Sequence[Head]) -> Values:
    """Return the divergence of each head's rows from each other one's over one text, (first,
    second).
    """
    every = np.concatenate(list(other.rows.values()))
    starts = np.cumsum([0, *(len(rows) for rows in other.rows.values())])
    place = dict(zip(other.rows, starts.tolist(), strict=False))
    chosen = every[[place[layer] + head for layer, head in second]]
    return np.stack(
        [js_divergence(one.rows[layer][head], chosen).mean(-1) for layer, head in first]
    )
