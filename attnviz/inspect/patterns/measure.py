"""Scores texts while a model runs over them, in batches of one length."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.device_sizes import sizes
from attnviz.engine.observer import BlockFacts, Reduce, on_host, sums_or_maps, to_numpy
from attnviz.engine.probing import Probing
from attnviz.errors import UsageError
from attnviz.inspect.patterns.probes import ProbeText, batches, measures_of
from attnviz.inspect.patterns.sums import (
    SHUFFLES,
    Evens,
    LayerScores,
    LayerSums,
    TextScores,
    Weights,
    in_view,
)
from attnviz.measures.reduced import ReducedLayer
from attnviz.measures.rows import Conditions, RowBlock, TextFacts
from attnviz.measures.rows import on_host as rows_on_host
from attnviz.records import Bools, Kind

Work = Callable[[int], None]
"""Called with the work that was just done, in pairs of tokens."""

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
    work: Work,
    reduce: Reduce = "auto",
    beside: Callable[[ProbeText], Beside] | None = None,
) -> tuple[TextScores, ...]:
    """Run the model over every text; return the pattern scores, in the order of ``texts``.

    probing: runs the model. attention: its kind, and whether it is causal. heads: those to score in
        each layer; None scores all. work: is told the number of query–key pairs done.
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
    info, found = probing.model.info, dict[int, TextScores]()
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
        for text, scores in zip(batch, results, strict=True):
            found[id(text)] = scores
            work(cells_of(text, probing.kind))
    return tuple(found[id(text)] for text in texts)


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
        self._attention = attention
        self._selection = heads
        self._texts = texts
        self._facts = [_facts(text, attention) for text in texts]
        self._kept: dict[int, tuple[int, ...]] = {}
        self._sums: dict[tuple[int, int], LayerSums] = {}
        self._evens = [Evens({}, {}) for _ in texts]
        self._beside = None if beside is None else [beside(text) for text in texts]
        self._layers: list[dict[int, LayerScores]] = [{} for _ in texts]
        self._waiting: dict[int, dict[int, Weights]] = {}
        self._cells = 0
        self._lost: set[tuple[int, int, int]] = set()

    @property
    def norms(self) -> bool:
        return self._attention.view == "norm-weighted"

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._attention.kind and (
            self._selection is None or layer in self._selection
        )

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
        self._lost |= {(text, layer, head) for head, lost in zip(kept, broken, strict=True) if lost}
        shown = in_view(self._attention.view, weights, norms)
        facts = self._facts[text]
        whole = shown.shape[1:] == (len(facts.queries), len(facts.keys))
        if whole and mask is None:
            self._waiting.setdefault(text, {})[layer] = shown.copy()
            self._cells += shown.size
            if self._cells > _TOGETHER:
                self._score_waiting()
        elif whole:
            self._layers[text][layer] = self._whole(text, kept, shown, mask)
        else:
            self._sums_of(text, layer).add(shown, start, mask)

    def sums(self, text: int, kind: Kind, layer: int, found: ReducedLayer) -> None:
        """Score all rows of a layer through their sums."""
        kept = self._heads_of(layer, found.heads)
        if kept:
            rows = self._sums_of(text, layer).add_sums(found, kept)
            broken = np.flatnonzero(np.isnan(rows_on_host(rows.entropy.sum(-1))))
            self._lost |= {(text, layer, kept[place]) for place in broken.tolist()}

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
        """Score the whole matrices that wait, all layers of a text as if they were one.

        Most of the time of a short text is that of the calls, not of its numbers.
        """
        for text, by_layer in self._waiting.items():
            weights, first = np.concatenate(list(by_layer.values())), 0
            scores = self._whole(text, tuple(range(len(weights))), weights, None)
            for layer, own in by_layer.items():
                self._layers[text][layer] = scores.of(self._kept[layer], first)
                first += len(own)
        self._waiting, self._cells = {}, 0

    def _whole(
        self, text: int, heads: tuple[int, ...], weights: Weights, mask: Bools | None
    ) -> LayerScores:
        """Return the scores of whole matrices (head, query, key)."""
        words = self._texts[text].words
        if words is not None:
            seen = RowBlock(self._facts[text], weights, 0, mask).seen
            return LayerScores(heads, found=words.find(weights, seen))
        sums = self._new_sums(text)
        sums.add(weights, 0, mask)
        scores = sums.scores(heads)
        if self._beside is None:
            return scores
        return replace(scores, beside=self._beside[text](weights, mask))

    def results(self) -> list[TextScores]:
        """Return the pattern scores of the batch, text by text."""
        self._score_waiting()
        for (text, layer), sums in self._sums.items():
            self._layers[text][layer] = sums.scores(self._kept[layer])
        return [
            TextScores(
                text,
                dict(sorted(self._layers[number].items())),
                frozenset((layer, head) for place, layer, head in self._lost if place == number),
            )
            for number, text in enumerate(self._texts)
        ]


def _facts(text: ProbeText, attention: Conditions) -> TextFacts:
    queries, keys = text.passage.queries(attention.kind), text.passage.keys(attention.kind)
    return TextFacts(queries, keys, attention, SHUFFLES, passing=True)
