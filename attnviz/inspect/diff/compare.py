"""Compute the numbers of a comparison: divergences over texts, the noise floor, the changed heads.

A head counts as changed if the 95 % bootstrap interval, over paired texts, of its divergence lies
above the noise floor, which is the effect of rounding alone on either model. A difference by itself
means nothing, because any change of a weight changes every head.
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
from attnviz.measures.bootstrap import LEAST_TEXTS, bootstrap_interval
from attnviz.measures.divergence import cosine, js_divergence, kl_divergence
from attnviz.measures.sinks import without_sink

Values = NDArray[np.floating]

Pair = tuple[Head, Head]
"""A head of the first model, and the head of the second that it is compared with."""

_ROUNDED = 2.0
"""The ratio of the floor to the divergence between a rounded and an exact side. If both sides are
rounded, squared errors add up, and a divergence is a squared error to first order."""

_MOST_PAIRS = 2**18
"""The most pairs of heads that are compared to find a match."""


@dataclass(frozen=True, eq=False)
class Divergences:
    """The divergences of two models' heads over each text: (text, head pair).

    Each head pair is a head of one model and one of the other. NaN is not available. js:
    Jensen–Shannon divergence of the attention rows in bits, mean over queries. no_sink: the same
    without the attention sink's keys, rows rescaled. output: 1 − cosine of the heads' outputs, mean
    over queries.
    """

    js: Values
    no_sink: Values
    output: Values


def divergences(
    first: ModelMaps, second: ModelMaps, pairs: Sequence[Pair], *, bare: bool = True
) -> Divergences:
    """Return the divergences of each pair of heads (one of each model) over each text.

    first, second: the attention maps of model A and model B over the same texts. pairs: a head of A
        and a head of B each, ((layer, head), (layer, head)). bare: False leaves out ``no_sink``,
        which a noise floor does not need.

    The first query of a causal text, which sees only itself, does not count.
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
            if bare:
                left = [
                    without_sink(each, side.sink) for each, side in zip(weights, sides, strict=True)
                ]
                found[1, number, at] = known_mean(js_divergence(*left))
            outputs = [
                side.outputs[layer][chosen][:, rows]
                for side, layer, chosen in zip(sides, layers, heads, strict=True)
                if layer in side.outputs
            ]
            if len(outputs) == 2 and outputs[0].shape == outputs[1].shape:
                found[2, number, at] = 1 - cosine(*outputs).mean(-1)
    return Divergences(*found)


def known_mean(values: Values) -> Values:
    """Return the mean of the finite values over the last axis; NaN if there are none."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(-1)
    means = np.full(total.shape, np.nan)
    np.divide(total, known.sum(-1), out=means, where=known.any(-1))
    return means


# The floor -----------------------------------------------------------------------------------


class Floor(NamedTuple):
    """The noise floor of a comparison: the divergence that rounding alone causes.

    js, output: as in ``Divergences``; twice the largest mean over texts of any head; one bound for
        all heads.
    """

    js: float
    output: float = math.nan


def noise_floor(noise: Divergences) -> Floor:
    """Return the noise floor that is used for all heads.

    noise: the divergences of a model from itself, computed in another number format.
    """
    return Floor(*(_ROUNDED * _largest(each) for each in (noise.js, noise.output)))


def _largest(values: Values) -> float:
    means = known_mean(values.T)
    return float(np.nanmax(means)) if np.isfinite(means).any() else math.nan


class MeansOverTexts(NamedTuple):
    """Means over texts with 95% confidence intervals, one for each column of numbers.

    mean: the means. low, high: the ends of their intervals; None for fewer than five texts.
    """

    mean: Values
    low: Values | None
    high: Values | None

    def ends(self, place: int) -> tuple[float, float] | None:
        """Return the interval (low, high) of one column, or None if it has none.

        place: the index of the column.
        """
        if self.low is None or self.high is None or not math.isfinite(self.low[place]):
            return None
        return float(self.low[place]), float(self.high[place])

    def above(self, place: int, floor: float) -> bool:
        """Return whether the interval of a column lies above ``floor``; False if either is unknown.

        place: the index of the column.
        """
        ends = self.ends(place)
        return ends is not None and ends[0] > floor


def over_texts(values: Values, seed: int, *, positive: bool = True) -> MeansOverTexts:
    """Return the mean of each column over texts, with its bootstrap interval.

    values: (text, column).
    seed: of the bootstrap. positive: no value is below zero, so no end of an interval is.
    """
    mean = values.mean(axis=0)
    if len(values) < LEAST_TEXTS:
        return MeansOverTexts(mean, None, None)
    low, high = bootstrap_interval(values, seed)
    return MeansOverTexts(mean, np.maximum(low, 0.0) if positive else low, high)


# What the models predict ---------------------------------------------------------------------


class Predictions(NamedTuple):
    """The difference of two models' next-token predictions.

    The numbers are those of llama.cpp's ``--kl-divergence``. kl: KL(A ‖ B), nats, mean over
    positions. same_top: the share of positions with the same likeliest token. kl_error,
    same_top_error: their standard errors over positions, s / √n and √(p(1 − p) / (n − 1)).
    positions: how many. largest: the highest KL of one position. outside: None if both models
        predict the same tokens; else the largest share of probability, in [0, 1], that either gives
        at one position to tokens that the other lacks: both are then rescaled without these.
    """

    kl: float
    kl_error: float
    same_top: float
    same_top_error: float
    positions: int
    largest: float
    outside: float | None = None


def predictions(first: ModelMaps, second: ModelMaps) -> Predictions | None:
    """Return how far two models' next-token predictions differ, or None.

    None if a model has no predictions, or NaN. first, second: the maps of model A and model B over
    the same texts, which both number alike: the tokens of the smaller vocabulary are compared.
    """
    apart, same, outside = [], [], None
    for one, other in zip(first.texts, second.texts, strict=True):
        p, q = one.predictions, other.predictions
        if p is None or q is None or np.isnan([p.max(), q.max()]).any():
            return None
        if (shared := min(p.shape[-1], q.shape[-1])) < max(p.shape[-1], q.shape[-1]):
            kept = [np.logaddexp.reduce(each[:, :shared], -1, keepdims=True) for each in (p, q)]
            p, q = (each[:, :shared] - all_ for each, all_ in zip((p, q), kept, strict=True))
            outside = max(outside or 0.0, *(float(-np.expm1(each.min())) for each in kept))
        apart.append(kl_divergence(p, q))
        same.append(p.argmax(-1) == q.argmax(-1))
    kl, top = np.concatenate(apart), np.concatenate(same)
    count, share = len(kl), float(top.mean())
    spare = max(count - 1, 1)
    return Predictions(
        kl=float(kl.mean()),
        kl_error=float(kl.std(ddof=min(1, count - 1)) / math.sqrt(count)),
        same_top=share,
        same_top_error=math.sqrt(share * (1 - share) / spare),
        positions=count,
        largest=float(kl.max()),
        outside=outside,
    )


class Noise(NamedTuple):
    """The effect of rounding alone on one model, or the larger effect on two models.

    floor: the noise floor. words: a description of the model that was compared with itself in
        another number format. predictions: how far that model's predictions differ in the other
        format; None if unknown.
    """

    floor: Floor
    words: str
    predictions: Predictions | None = None

    def or_more(self, other: Noise) -> Noise:
        """Return the noise of two models: of each number the larger one.

        A model stored in coarser numbers may already have lost what the other still has; then only
        the other shows the loss.
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
    """Return the heads that both models have, each as a pair of the same (layer, head) twice.

    first, second: for each layer how many heads it has, in model A and in model B.
    """
    return [
        ((layer, head), (layer, head))
        for layer in first
        if layer in second
        for head in range(min(first[layer], second[layer]))
    ]


def matched_pairs(first: ModelMaps, second: ModelMaps) -> list[Pair]:
    """Return the pairs of heads with the least sum of divergences: (head of A, head of B).

    first, second: the attention maps of model A and model B over the same texts. Heads are paired
        within layers if both models have equally many layers, else over the whole model.
    Raises UsageError if too many pairs of heads would have to be compared.
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
    """Return the divergence of each head of one model from each head of the other.

    The result is (head of A, head of B). one, other: the maps of both models over one text. first,
    second: the heads of each.
    """
    every = np.concatenate(list(other.rows.values()))
    starts = np.cumsum([0, *(len(rows) for rows in other.rows.values())])
    place = dict(zip(other.rows, starts.tolist(), strict=False))
    chosen = every[[place[layer] + head for layer, head in second]]
    return np.stack(
        [js_divergence(one.rows[layer][head], chosen).mean(-1) for layer, head in first]
    )
