"""Every score of the heads of one layer over one text, as sums over blocks of rows passing by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from attnviz.measures import rows
from attnviz.measures.rows import Place
from attnviz.patterns.facts import TextFacts

__all__ = ["BASE_ORDERS", "ScoreSums", "uniform_scores"]

Weights = NDArray[np.floating]
Scores = dict[str, NDArray[np.float64]]

BASE_ORDERS = ("duplicate", "induction")
"""Scores whose base rate is the same statistic under shuffled tokens."""

_BLOCK_CELLS = 2**17
"""Of even attention; masks of every order of the tokens stand beside them."""

_STILL = 1e-9
"""A variance of centres below which a head looks at one place, whatever the query."""


class ScoreSums:
    """Takes blocks of rows of one text, in any order, and gives the scores of each head.

    All of them in the end equal the measures of the whole matrix; no more than a block is held.
    """

    def __init__(self, facts: TextFacts) -> None:
        self._facts = facts
        self._sums: dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
        self._moments: NDArray[np.float64] | None = None

    def add(self, weights: Weights, start: int) -> None:
        """Weights (head, rows, keys) of the queries from ``start`` on, in the facts' view."""
        facts = self._facts
        place = Place(start, len(facts.queries), len(facts.keys), facts.causal, facts.without_first)
        # A row that attended to nothing but key 0 has nothing left to be scored without it.
        alive = None if facts.view == "raw" else weights.sum(-1) != 0
        for name, (values, counts) in self._rows(weights, place).items():
            if alive is not None:
                counts = counts & (alive if values.ndim == 2 else alive[:, None])
            total = np.where(counts, values, 0).sum(-1, dtype=np.float64)
            number = np.broadcast_to(counts.sum(-1), total.shape)
            before = self._sums.get(name, (0.0, 0))
            self._sums[name] = before[0] + total, before[1] + number

    def _rows(self, weights: Weights, place: Place) -> Mapping[str, rows.Rows]:
        facts = self._facts
        every = np.ones(weights.shape[-2], bool)
        entropy = rows.entropy_rows(weights)
        found = {
            "separator": rows.column_rows(weights, place, facts.separators),
            "delimiter": rows.column_rows(weights, place, facts.delimiters),
            "entropy": (entropy, every),
            "normalised_entropy": rows.normalised_entropy_rows(weights, place, entropy),
            "confidence": rows.confidence_rows(weights, place, facts.special),
        }
        if not facts.without_first:
            found["first"] = rows.first_rows(weights, place)
        if facts.kind == "cross":  # queries and keys are different texts
            found["alignment"] = rows.alignment_rows(weights, place)
            self._add_moments(rows.centre_rows(weights), place.rows(weights))
            return found
        found |= {
            "previous": rows.previous_rows(weights, place),
            "self": rows.self_rows(weights, place),
            "duplicate": rows.duplicate_rows(weights, place, facts.orders),
            "induction": rows.induction_rows(weights, place, facts.orders),
            "rare": rows.rare_rows(weights, place, facts.rare),
            "distance": (rows.distance_rows(weights, place), every),
        }
        if not facts.causal:
            found["next"] = rows.next_rows(weights, place)
            found["signed_distance"] = (rows.distance_rows(weights, place, signed=True), every)
        return found

    def _add_moments(self, centres: Weights, queries: NDArray[np.int64]) -> None:
        y, x = centres.astype(np.float64), queries.astype(np.float64)
        ones = np.ones_like(y)
        moments = np.stack([ones, x * ones, x * x * ones, y, y * y, x * y]).sum(-1)
        self._moments = moments if self._moments is None else self._moments + moments

    def scores(self) -> Scores:
        """Each score by name, (head,); NaN where the text cannot show it."""
        found = {}
        for name, (total, number) in self._sums.items():
            mean = _divided(total, number)
            found[name] = mean[:, 0] if mean.ndim == 2 else mean
        if self._moments is not None:
            found["monotone"] = _correlation(*self._moments)
        return found

    def shuffled(self) -> Scores:
        """The scores of ``BASE_ORDERS`` over shuffled tokens, (head,): the mean over orders."""
        return {
            name: _divided(total[:, 1:].sum(-1), number[:, 1:].sum(-1))
            for name, (total, number) in self._sums.items()
            if name in BASE_ORDERS
        }


def uniform_scores(facts: TextFacts) -> dict[str, float]:
    """Each score of attention that is spread evenly over what each query sees."""
    sums = ScoreSums(facts)
    queries, keys = len(facts.queries), len(facts.keys)
    step = max(1, _BLOCK_CELLS // keys)
    for start in range(0, queries, step):
        place = Place(start, queries, keys, facts.causal, facts.without_first)
        block = rows.uniform_rows(place, min(step, queries - start))
        sums.add(block[None], start)
    return {name: float(values[0]) for name, values in sums.scores().items()}


def _divided(total: NDArray[np.float64], number: NDArray[np.int64]) -> NDArray[np.float64]:
    nothing = np.full_like(total, np.nan)
    return np.divide(total, number, out=nothing, where=number > 0)


def _correlation(*moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pearson's, of the queries' places and the centres; NaN where one of them does not move."""
    n, x, xx, y, yy, xy = moments
    across, up = xx / n - (x / n) ** 2, yy / n - (y / n) ** 2
    moves = (across > _STILL) & (up > _STILL)
    spread = np.sqrt(np.where(moves, across * up, 1))
    return np.where(moves, (xy / n - x * y / n**2) / spread, np.nan)
