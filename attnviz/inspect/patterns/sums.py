"""The pattern scores of one layer of a text, from sums over its rows or over blocks of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnviz.inspect.patterns.probes import ProbeText
from attnviz.inspect.patterns.relations import FoundPair
from attnviz.measures.reduced import EvenRows, ReducedLayer, SummedRows
from attnviz.measures.regions import RegionSums
from attnviz.measures.registry import View, of_family
from attnviz.measures.rows import (
    AttentionRows,
    RowBlock,
    Rows,
    TextFacts,
    centre_rows,
    counted,
    on_host,
    summed,
)
from attnviz.measures.sinks import sink_keys
from attnviz.measures.uniform import even_weights, norm_weighted, rescaled
from attnviz.records import Bools

Weights = NDArray[np.floating]
Scores = dict[str, NDArray[np.float64]]

_AnyRows = TypeVar("_AnyRows", bound=AttentionRows)
Name = TypeVar("Name")

SHUFFLES = 8
"""The number of token orders whose mean is the base rate of scores that ask if tokens are equal."""

_STILL = 1e-9
"""A variance of the attended places below which a head attends to one place for all queries."""


def in_view(view: View, weights: Weights, norms: Weights | None) -> Weights:
    """Return attention weights (head, rows, keys) after a weight transform.

    Rows sum to one, or are zero. view: the transform. norms: (head, key), the norm of each key's
    value; only ``norm-weighted`` needs them. A row is zero in ``without-first`` if it attends to
    the first key alone.
    """
    if view == "raw":
        return weights
    if view == "without-first":
        kept = weights.copy()
        kept[..., 0] = 0
        return rescaled(kept)
    if norms is None:
        raise ValueError("the norms of what is moved are needed to weigh by them")
    return norm_weighted(weights, norms)


_Measured = tuple[
    Mapping[str, tuple[NDArray[np.float64], NDArray[np.int64]]], NDArray[np.float64] | None
]
"""Of a block the sum and the number of each measure, and the moments of its centres or None."""


class _Totals:
    """What is summed over the rows of one text so far, by measure."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
        self._moments: NDArray[np.float64] | float = 0.0

    def take(self, measured: _Measured) -> None:
        """Add what ``_measured`` returned for a block of rows."""
        sums, moments = measured
        for name, (total, number) in sums.items():
            before = self._sums.get(name, (0.0, 0))
            self._sums[name] = before[0] + total, before[1] + number
        if moments is not None:
            self._moments = self._moments + moments

    def scores(self) -> Scores:
        """Return each pattern score by name, (head,); NaN if the text cannot show it."""
        scores = {}
        for name, (total, number) in self._sums.items():
            mean = _divided(total, number)
            scores[name] = mean[:, 0] if mean.ndim == 2 else mean
        if not isinstance(self._moments, float):
            scores["monotone"] = _correlation(*self._moments)
        return scores

    def reach(self, queries: int) -> dict[str, float]:
        """Return by name of a score the share of the queries that it is measured on, in [0, 1]."""
        return {name: float(number.flat[0]) / queries for name, (_, number) in self._sums.items()}

    def shuffled(self) -> Scores:
        """Return by name the mean scores (head,) with the tokens in several random orders."""
        return {
            name: _divided(total[:, 1:].sum(-1), number[:, 1:].sum(-1))
            for name in of_family("identity")
            if name in self._sums
            for total, number in [self._sums[name]]
        }


class Evens(NamedTuple):
    """What uniform attention adds to the sums of one text, and its weight on each mark.

    blocks: by the start and shape of a block without a mask of its own. ranges: by the range of the
    keys that each query sees, next to the rows of uniform attention over them.
    """

    blocks: dict[tuple[int, ...], tuple[NDArray[np.float64], _Measured]]
    ranges: dict[bytes, tuple[EvenRows, _Measured]]


class LayerSums:
    """Computes the pattern scores of one layer of a text, and those of uniform attention.

    Uniform attention is even over the keys that the layer lets each query see. The input is blocks
    of attention rows, in any order; only one of them is in memory, and in the end the scores equal
    the measures of the whole matrix.
    evens: shared by the layers of one text, which then measure uniform attention once.
    names: of the measures; None for all that can be measured.
    """

    def __init__(
        self, text: TextFacts, evens: Evens | None = None, names: Collection[str] | None = None
    ) -> None:
        self._text = text
        self._evens = Evens({}, {}) if evens is None else evens
        self._own, self._formulas = _Totals(), text.attention.formulas(names)
        self._even, self._even_formulas = _Totals(), text.attention.even_formulas(names)
        self._regions = None
        if text.keys.regions:
            sink = sink_keys(text.keys, text.attention.causal)
            self._regions = RegionSums(text.queries, text.keys, sink)
        self._marks = np.flatnonzero(text.delimiters)
        self._kinds, kind = np.unique(np.asarray(text.keys.ids)[self._marks], return_inverse=True)
        self._is_kind = np.eye(len(self._kinds))[kind]  # (mark, kind of mark)
        self._gained: NDArray[np.float64] = np.zeros((1, len(self._kinds)))

    def add(self, weights: Weights, start: int, mask: Bools | None = None) -> None:
        """Add a block of attention weights (head, rows, keys).

        start: its first query. mask: see ``RowBlock``.
        """
        block = RowBlock(self._text, weights, start, mask)
        self._own.take(_measured(block, self._formulas))
        if self._regions is not None:
            self._regions.add(weights, start, block.seen)
        there = self._marks < weights.shape[-1]
        marks = self._marks[there]
        key = (start, *weights.shape[-2:])
        known = self._evens.blocks.get(key) if mask is None else None
        if known is None:
            even = even_weights(block.seen)
            evenly = _measured(RowBlock(self._text, even[None], start, mask), self._even_formulas)
            known = even[:, marks].sum(0, dtype=np.float64), evenly
            if mask is None:
                self._evens.blocks[key] = known
        gained = weights[..., marks].sum(-2, dtype=np.float64) - known[0]
        self._gained = self._gained + gained @ self._is_kind[there]
        self._even.take(known[1])

    def add_sums(
        self, layer: ReducedLayer, heads: Sequence[int], buckets: int | None = None
    ) -> SummedRows:
        """Add and return all rows of a layer; the arguments are those of ``SummedRows``."""
        marked = np.zeros((len(self._text.keys), len(self._kinds)))
        marked[self._marks] = self._is_kind
        key = layer.first.tobytes() + layer.past.tobytes()
        if key not in self._evens.ranges:
            even = EvenRows(self._text, layer.first, layer.past)
            even.mixed(marked)
            if self._regions is not None:
                self._regions.add_sums(None, even)
            self._evens.ranges[key] = even, _measured(even, self._even_formulas)
        even, evenly = self._evens.ranges[key]
        rows = SummedRows(self._text, layer, even, heads, buckets)
        self._own.take(_measured(rows, self._formulas))
        self._even.take(evenly)
        if self._regions is not None:
            self._regions.add_sums(rows, even)
        on_marks = on_host(summed(rows.mixed(marked), 1))
        self._gained = self._gained + on_marks - even.mixed(marked).sum(1)
        return rows

    def scores(self, heads: tuple[int, ...]) -> LayerScores:
        """Return the scores of the layer. heads: the indices of the heads in the blocks."""
        queries = len(self._text.queries)
        gained = self._gained / max(queries, 1)
        return LayerScores(
            heads,
            self._own.scores(),
            self._own.shuffled(),
            {name: float(values[0]) for name, values in self._even.scores().items()},
            self._even.reach(queries),
            delimiters={int(kind): gained[:, at] for at, kind in enumerate(self._kinds)},
            regions=None if self._regions is None else self._regions.sums(),
        )


def _measured(rows: _AnyRows, formulas: Mapping[str, Callable[[_AnyRows], Rows]]) -> _Measured:
    """Return what rows add to the sums of a layer."""
    # Without key 0, a row that attended to key 0 alone has no weight left to score.
    alive = None if rows.text.attention.view == "raw" else rows.total != 0
    sums: dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
    for name, formula in formulas.items():
        values, counts = formula(rows)
        if alive is not None:
            counts = counts & (alive if values.ndim == 2 else alive[:, None])
        total = summed(counted(values, counts))
        sums[name] = total, np.broadcast_to(counts.sum(-1), total.shape)
    sums = {name: (on_host(total), number) for name, (total, number) in sums.items()}
    if rows.text.attention.kind != "cross":
        return sums, None
    return sums, _moments(centre_rows(rows.weights), rows.queries)


def _moments(centres: Weights, queries: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sums over rows of a block from which ``_correlation`` is computed.

    centres: the mean key position of each row, weighted by attention. queries: the index of each
        row's query.
    """
    y, x = centres.astype(np.float64), queries.astype(np.float64)
    ones = np.ones_like(y)
    return np.asarray(np.stack([ones, x * ones, x * x * ones, y, y * y, x * y]).sum(-1))


def _divided(total: NDArray[np.float64], number: NDArray[np.int64]) -> NDArray[np.float64]:
    nothing = np.full_like(total, np.nan)
    return np.divide(total, number, out=nothing, where=number > 0)


def _correlation(*moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Pearson's correlation of query positions and mean key positions.

    It is NaN if one is constant. moments: the sums of ``_moments``.
    """
    n, x, xx, y, yy, xy = moments
    across, up = xx / n - (x / n) ** 2, yy / n - (y / n) ** 2
    moves = (across > _STILL) & (up > _STILL)
    spread = np.sqrt(np.where(moves, across * up, 1))
    return np.where(moves, (xy / n - x * y / n**2) / spread, np.nan)


@dataclass(frozen=True, eq=False)
class LayerScores:
    """The pattern scores of one layer over one text; over a sentence, only ``heads`` and ``found``.

    heads: the indices of the heads.
    scores, shuffled: (head,) by name, over the text and over shuffled tokens.
    uniform: each score of attention spread evenly over the keys that the layer lets a query see.
    reach: the share of the queries that could show each score; a window may hide it from most.
    delimiters: by token, (head,) how much more attention of the mean query it gets than by even
        attention. found: the word pairs of an annotated sentence.
    regions: the sums of ``RegionSums``, if the text has regions. beside: what else was measured,
        (head, …) by name.
    """

    heads: tuple[int, ...]
    scores: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    shuffled: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    uniform: Mapping[str, float] = field(default_factory=dict)
    reach: Mapping[str, float] = field(default_factory=dict)
    delimiters: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    found: Sequence[FoundPair] = ()
    regions: NDArray[np.float64] | None = None
    beside: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def of(self, heads: tuple[int, ...], first: int) -> LayerScores:
        """Return the scores of some of the heads as those of a layer of their own.

        heads: their indices in that layer. first: the place of the first of them among all.
        """
        some = slice(first, first + len(heads))

        def cut(arrays: Mapping[Name, NDArray[Any]]) -> dict[Name, NDArray[Any]]:
            return {name: values[some] for name, values in arrays.items()}

        return replace(
            self,
            heads=heads,
            scores=cut(self.scores),
            shuffled=cut(self.shuffled),
            delimiters=cut(self.delimiters),
            found=[replace(pair, hits=pair.hits[some]) for pair in self.found],
            regions=None if self.regions is None else self.regions[:, some],
            beside=cut(self.beside),
        )


@dataclass(frozen=True, eq=False)
class TextScores:
    """The pattern scores of all layers over one text.

    text: the text. layers: the scores by the index of the layer.
    lost: the heads (layer, head) with attention weights that are NaN.
    """

    text: ProbeText
    layers: Mapping[int, LayerScores]
    lost: frozenset[tuple[int, int]] = frozenset()
