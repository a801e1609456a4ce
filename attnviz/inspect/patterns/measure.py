"""Scores texts while a model runs over them, in batches of one length."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.capture import Probing
from attnviz.engine.device_sizes import sizes
from attnviz.engine.observer import BlockFacts, Reduce, on_host, sums_or_maps, to_numpy
from attnviz.errors import UsageError
from attnviz.inspect.patterns.probes import ProbeText, batches, measures_of
from attnviz.measures.reduced import EvenRows, ReducedLayer, summed_parts
from attnviz.measures.registry import View, of_family
from attnviz.measures.rows import (
    AttentionRows,
    Conditions,
    RowBlock,
    Rows,
    TextFacts,
    all_on_host,
    centre_rows,
    counted,
    summed,
)
from attnviz.measures.rows import on_host as rows_on_host
from attnviz.measures.sinks import even_weights, norm_weighted, rescaled
from attnviz.records import Bools, Kind

Array = NDArray[np.float64]
Place = tuple[int, int]
Weights = NDArray[np.floating]
Scores = dict[str, Array]

_AnyRows = TypeVar("_AnyRows", bound=AttentionRows)

SHUFFLES = 8
"""The number of token orders whose mean is the base rate of scores that ask if tokens are equal."""

_UNKNOWN = np.array([np.nan])
_STILL = 1e-9
"""A variance of the attended places below which a head attends to one place for all queries."""


@dataclass(frozen=True, eq=False)
class TextScores:
    """The pattern scores of some heads over one text; the last axis of each array is that of heads.

    places: the (layer, head) of each. scores: (head,) by name, NaN where the text cannot show one;
        of an annotated sentence by the index of a word pair, see ``WordView.find``.
    base: the same by chance: over shuffled tokens if a score asks whether tokens are equal, else of
        even attention over the keys that the layer lets a query see.
    reach: the share of the queries that could show each score; a window may hide it from most.
    delimiters: by token, how much more attention of the mean query it gets than by even attention.
    beside: what else was measured, (head, …) by name.
    lost: the heads with attention weights that are NaN.
    """

    places: tuple[Place, ...]
    scores: Mapping[Any, Array]
    base: Mapping[Any, Array]
    reach: Mapping[Any, Array] = field(default_factory=dict)
    delimiters: Mapping[int, Array] = field(default_factory=dict)
    beside: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    lost: frozenset[Place] = frozenset()


def joined(parts: Sequence[TextScores], lost: Iterable[Place]) -> TextScores:
    """Return the scores of all heads over a text, from those of groups. lost: heads with NaN."""
    heads = [head for part in parts for head in part.places]
    order = sorted(range(len(heads)), key=lambda at: heads[at])
    own = dict[str, Any]()
    for name in ("scores", "base", "reach", "delimiters", "beside"):
        arrays = [getattr(part, name) for part in parts]
        keys = arrays[0] if arrays else ()
        own[name] = {key: np.concatenate([of[key] for of in arrays])[order] for key in keys}
    return TextScores(tuple(heads[at] for at in order), **own, lost=frozenset(lost))


def in_view(view: View, weights: Weights, norms: Weights | None) -> Weights:
    """Return attention weights (head, rows, keys) after a weight transform.

    Rows sum to one, or are zero. norms: (head, key), the norm of each key's value; only
    ``norm-weighted`` needs them. A row is zero in ``without-first`` if it attends to the first key
    alone.
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


_Measured = tuple[Mapping[str, tuple[Array, NDArray[np.int64]]], Mapping[str, Array]]
"""Of some rows the sum and the number of each measure, and further sums by name."""

Evens = dict[object, tuple[Any, _Measured]]
"""What uniform attention adds to the sums of one text, by the rows that it is of."""


class _Totals:
    """What is summed over the rows of one text so far: measures, and further sums."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Array, NDArray[np.int64]]] = {}
        self.further: dict[str, Array] = {}

    def take(self, measured: _Measured) -> None:
        """Add what ``_measured`` returned for a block of rows."""
        sums, further = measured
        for name, (total, number) in sums.items():
            before = self._sums.get(name, (0.0, 0))
            self._sums[name] = before[0] + total, before[1] + number
        for name, total in further.items():
            self.further[name] = self.further.get(name, 0.0) + total

    def scores(self) -> Scores:
        """Return each pattern score by name, (head,); NaN if the text cannot show it."""
        scores = {}
        for name, (total, number) in self._sums.items():
            mean = _divided(total, number)
            scores[name] = mean[:, 0] if mean.ndim == 2 else mean
        if "moments" in self.further:
            scores["monotone"] = _correlation(*self.further["moments"])
        return scores

    def reach(self, queries: int) -> dict[str, float]:
        """Return by name of a score the share of the queries that it is measured on, in [0, 1]."""
        return {name: float(number.flat[0]) / queries for name, (_, number) in self._sums.items()}

    def shuffled(self) -> Scores:
        """Return by name the mean scores (head,) with the tokens in several random orders."""
        return {
            name: _divided(total[:, 1:].sum(-1), number[:, 1:].sum(-1))
            for name, (total, number) in self._sums.items()
            if name in of_family("identity")
        }


class LayerSums:
    """Computes the pattern scores of one layer of a text, and those of uniform attention.

    Uniform attention is even over the keys that the layer lets each query see. The input is blocks
    of attention rows, in any order; only one of them is in memory, and in the end the scores equal
    the measures of the whole matrix.
    evens: a cache of uniform attention's scores, shared by the layers of one text.
    """

    def __init__(
        self, text: TextFacts, evens: Evens | None = None, names: Collection[str] | None = None
    ) -> None:
        self._text = text
        self._evens = {} if evens is None else evens
        self._own, self._formulas = _Totals(), text.attention.formulas(names)
        self._even, self._even_formulas = _Totals(), text.attention.even_formulas(names)
        self._kinds, self._marked = text.marks

    def add(self, weights: Weights, start: int, mask: Bools | None = None) -> None:
        """Add a block of attention weights (head, rows, keys)."""
        block = RowBlock(self._text, weights, start, mask)
        key = object() if mask is not None else (start, *weights.shape[-2:])
        if key not in self._evens:
            even = RowBlock(self._text, even_weights(block.seen)[None], start, mask)
            self._evens[key] = None, self._measured(even, self._even_formulas)
        self._own.take(self._measured(block, self._formulas))
        self._even.take(self._evens[key][1])

    def add_sums(
        self, layer: ReducedLayer, heads: Sequence[int], buckets: int | None = None
    ) -> Bools:
        """Add all rows of a layer to the sums of this text; return which heads are no numbers."""
        key = layer.first.tobytes() + layer.past.tobytes()
        if key not in self._evens:
            even = EvenRows(self._text, layer.first, layer.past)
            self._evens[key] = even, self._measured(even, self._even_formulas)
        even, evenly = self._evens[key]
        order, parts, lost = list[int](), list[_Measured](), list[Bools]()
        for places, _, rows in summed_parts(self._text, layer, even, heads, buckets):
            order += places.values()
            parts.append(self._measured(rows, self._formulas))
            lost.append(np.isnan(rows_on_host(rows.entropy.sum(-1))))
        self._own.take(_of_all(parts, order))
        self._even.take(evenly)
        return np.concatenate(lost)[np.argsort(order)]

    def scores(self, places: Sequence[Place]) -> TextScores:
        """Return the scores of the heads. places: the (layer, head) of each head in the blocks."""
        queries, every = len(self._text.queries), np.ones(len(places))
        scores, chance = self._own.scores(), self._own.shuffled()
        evens, reach = self._even.scores(), self._even.reach(queries)
        gained = (self._own.further["marks"] - self._even.further["marks"]) / max(queries, 1)
        return TextScores(
            tuple(places),
            scores,
            {name: chance.get(name, every * evens.get(name, _UNKNOWN)[0]) for name in scores},
            {name: every * reach.get(name, 1.0) for name in scores},
            {int(kind): gained[:, at] for at, kind in enumerate(self._kinds)},
        )

    def _measured(
        self, rows: _AnyRows, formulas: Mapping[str, Callable[[_AnyRows], Rows]]
    ) -> _Measured:
        """Return what rows add to the sums: of measures, of weight on marks, of centres."""
        marks = summed(rows.mixed(self._marked), -2)
        # Without key 0, a row that attended to key 0 alone has no weight left to score.
        alive = None if rows.text.attention.view == "raw" else rows.total != 0
        totals, numbers = [], []
        for formula in formulas.values():
            values, counts = formula(rows)
            if alive is not None:
                counts = counts & (alive if values.ndim == 2 else alive[:, None])
            totals.append(summed(counted(values, counts)))
            numbers.append(np.broadcast_to(counts.sum(-1), tuple(totals[-1].shape)))
        (marked, *arrays) = all_on_host([marks, *totals])
        sums = dict(zip(formulas, zip(arrays, numbers, strict=True), strict=True))
        further = {"marks": marked}
        if rows.text.attention.kind == "cross":
            y, x = centre_rows(rows.weights).astype(np.float64), rows.queries.astype(np.float64)
            ones = np.ones_like(y)
            moments = np.stack([ones, x * ones, x * x * ones, y, y * y, x * y]).sum(-1)
            further["moments"] = np.asarray(moments)
        return sums, further


def _of_all(parts: Sequence[_Measured], heads: Sequence[int]) -> _Measured:
    """Return what rows of all heads add, from those of some; heads: the index of each of these."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(heads)

    def joined(arrays: Any) -> Any:
        return np.concatenate(arrays)[order]

    sums = {
        name: (joined([of[name][0] for of, _ in parts]), joined([of[name][1] for of, _ in parts]))
        for name in parts[0][0]
    }
    return sums, {name: joined([more[name] for _, more in parts]) for name in parts[0][1]}


def _divided(total: Array, number: NDArray[np.int64]) -> Array:
    return np.divide(total, number, out=np.full_like(total, np.nan), where=number > 0)


def _correlation(*moments: Array) -> Array:
    """Return Pearson's correlation of query positions and mean key positions.

    It is NaN if one is constant. moments: sums over rows of 1, x, x², y, y² and xy.
    """
    n, x, xx, y, yy, xy = moments
    across, up = xx / n - (x / n) ** 2, yy / n - (y / n) ** 2
    moves = (across > _STILL) & (up > _STILL)
    spread = np.sqrt(np.where(moves, across * up, 1))
    return np.where(moves, (xy / n - x * y / n**2) / spread, np.nan)


Selection = Mapping[int, Container[int]]

Beside = Callable[[Weights, Bools | None], Mapping[str, NDArray[Any]]]
"""Returns what else is measured of whole matrices (head, query, key) under a mask, or None for the
plain one: arrays that begin with the axis of heads, by name."""

_TOGETHER = 4_000_000
"""The most attention weights that wait until all layers of their text are scored at once."""

_WHOLE = 2**40
"""More weights than a batch of annotated sentences has, which are read as whole matrices."""


def measure(
    probing: Probing,
    texts: Sequence[ProbeText],
    attention: Conditions,
    heads: Selection | None,
    work: Callable[[float], None] = lambda cells: None,
    reduce: Reduce = "auto",
    beside: Callable[[ProbeText], Beside] | None = None,
) -> tuple[TextScores, ...]:
    """Run the model over every text; return the pattern scores, in the order of ``texts``.

    heads: those to score in each layer; None scores all. work: is told the number of query–key
        pairs done.
    reduce: how running text is read; annotated sentences are read whole. beside: returns what else
        is measured of a text, which is then read whole, too.
    Raises UsageError if this attention or view cannot be read so.
    """
    summable = attention.view == "raw" and attention.kind != "cross"
    if reduce == "fused" and not summable:
        raise UsageError(
            "--reduce fused sums the weights of one text as they are: leave it out with --kind "
            "cross, --without-first and --norm-weighted"
        )
    info, scores = probing.model.info, dict[int, TextScores]()
    at_once = sizes(info.device)
    # Processes that share a model send each other what is read, and sums are small. So they are
    # beside maps that a GPU would send to the processor, except for the shortest texts.
    least = 0 if info.processes > 1 else at_once.sums_from

    def scored(batch: list[ProbeText], run: Any, **way: Any) -> list[TextScores]:
        observer = _Scoring(batch, attention, heads, beside)
        run(observer, [text.passage for text in batch], **way)
        return observer.results()

    for batch in batches(texts, at_once.batch_tokens):
        size, annotated = len(batch[0].passage.queries(attention.kind)), batch[0].words is not None
        maps = partial(scored, batch, probing.run, held="auto" if reduce == "fused" else reduce)
        if annotated or beside is not None:
            results = scored(batch, probing.run, cells=_WHOLE if annotated else None)
        elif summable:
            sums = partial(scored, batch, probing.read_sums)
            short = reduce == "auto" and least is not None and size >= least
            results = sums_or_maps(info, size, reduce, sums, maps, short=short)
        else:
            results = maps()
        for text, own in zip(batch, results, strict=True):
            scores[id(text)] = own
            work(cells_of(text, probing.kind))
    return tuple(scores[id(text)] for text in texts)


def cells_of(text: ProbeText, kind: Kind) -> int:
    """Return the work for a text: its number of query–key pairs. kind: of attention."""
    return len(text.passage.queries(kind)) * len(text.passage.keys(kind))


class _Scoring:
    """An observer that turns the attention weights of one batch of texts into pattern scores."""

    def __init__(
        self,
        texts: Sequence[ProbeText],
        attention: Conditions,
        heads: Selection | None,
        beside: Callable[[ProbeText], Beside] | None,
    ) -> None:
        self._attention, self._selection, self._texts = attention, heads, texts
        kind = attention.kind
        self._facts = [
            TextFacts(passage.queries(kind), passage.keys(kind), attention, SHUFFLES, passing=True)
            for passage in (text.passage for text in texts)
        ]
        self._kept: dict[int, tuple[int, ...]] = {}
        self._sums: dict[tuple[int, int], LayerSums] = {}
        self._evens: list[Evens] = [{} for _ in texts]
        self._beside = None if beside is None else [beside(text) for text in texts]
        self._parts: list[list[TextScores]] = [[] for _ in texts]
        self._waiting: dict[int, dict[int, Weights]] = {}
        self._cells = 0
        self._lost: list[set[Place]] = [set() for _ in texts]

    @property
    def norms(self) -> bool:
        return self._attention.view == "norm-weighted"

    def wants(self, kind: Kind, layer: int) -> bool:
        wanted = self._selection is None or layer in self._selection
        return wanted and kind == self._attention.kind

    def observe(
        self,
        text: int,
        kind: Kind,
        layer: int,
        start: int,
        weights: NDArray[np.floating],
        beside: BlockFacts,
    ) -> None:
        weights, norms = to_numpy(weights), beside.norms
        mask = None if beside.mask is None else on_host(beside.mask)
        kept = self._heads_of(layer, weights.shape[0])
        if not kept:
            return
        if len(kept) < weights.shape[0]:
            weights = weights[list(kept)]
            norms = None if norms is None else norms[list(kept)]
        broken = np.isnan(weights).any(axis=(-2, -1))
        self._lost[text] |= {(layer, kept[at]) for at in np.flatnonzero(broken)}
        shown = in_view(self._attention.view, weights, norms)
        facts = self._facts[text]
        whole = shown.shape[1:] == (len(facts.queries), len(facts.keys))
        if whole and mask is None:
            self._waiting.setdefault(text, {})[layer] = shown.copy()
            self._cells += shown.size
            if self._cells > _TOGETHER:
                self._score_waiting()
        elif whole:
            self._parts[text].append(self._whole(text, {layer: shown}, mask))
        else:
            self._sums_of(text, layer).add(shown, start, mask)

    def sums(self, text: int, kind: Kind, layer: int, reduced: ReducedLayer) -> None:
        """Score all rows of a layer through their sums."""
        if kept := self._heads_of(layer, reduced.heads):
            broken = self._sums_of(text, layer).add_sums(reduced, kept)
            self._lost[text] |= {(layer, kept[at]) for at in np.flatnonzero(broken)}

    def _sums_of(self, text: int, layer: int) -> LayerSums:
        if (text, layer) not in self._sums:
            self._sums[text, layer] = self._new_sums(text)
        return self._sums[text, layer]

    def _new_sums(self, text: int) -> LayerSums:
        names = measures_of(self._texts[text].probe)
        return LayerSums(self._facts[text], self._evens[text], names)

    def _heads_of(self, layer: int, count: int) -> tuple[int, ...]:
        if layer not in self._kept:
            chosen = None if self._selection is None else self._selection[layer]
            self._kept[layer] = tuple(
                head for head in range(count) if chosen is None or head in chosen
            )
        return self._kept[layer]

    def _score_waiting(self) -> None:
        """Score the whole matrices that wait, all layers of a text as if they were one."""
        for text, by_layer in self._waiting.items():
            self._parts[text].append(self._whole(text, by_layer, None))
        self._waiting, self._cells = {}, 0

    def _whole(self, text: int, by_layer: Mapping[int, Weights], mask: Bools | None) -> TextScores:
        """Return the scores of whole matrices (head, query, key) of some layers."""
        places = [(layer, head) for layer in by_layer for head in self._kept[layer]]
        layers = [*by_layer.values()]
        weights = layers[0] if len(layers) == 1 else np.concatenate(layers)
        words = self._texts[text].words
        if words is not None:
            seen = RowBlock(self._facts[text], weights, 0, mask).seen
            return TextScores(tuple(places), *words.find(weights, seen))
        sums = self._new_sums(text)
        sums.add(weights, 0, mask)
        scores = sums.scores(places)
        if self._beside is None:
            return scores
        return replace(scores, beside=self._beside[text](weights, mask))

    def results(self) -> list[TextScores]:
        """Return the pattern scores of the batch, text by text."""
        self._score_waiting()
        for (text, layer), sums in self._sums.items():
            places = [(layer, head) for head in self._kept[layer]]
            self._parts[text].append(sums.scores(places))
        return [joined(*of_text) for of_text in zip(self._parts, self._lost, strict=True)]
