"""Scores texts while a model runs over them: an observer that reduces each block as it comes."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.probing import Probing
from attnviz.measures.records import View
from attnviz.patterns.facts import TextFacts, text_facts
from attnviz.patterns.relations import Found
from attnviz.patterns.sums import ScoreSums, uniform_scores
from attnviz.patterns.texts import ProbeText, batches
from attnviz.patterns.views import in_view
from attnviz.records import Kind

__all__ = ["LayerScores", "TextScores", "Work", "cells_of", "measure"]

Work = Callable[[int], None]
"""Told how much more work is done, in pairs of tokens."""

Selection = Mapping[int, Container[int]]


@dataclass(frozen=True, eq=False)
class LayerScores:
    """One layer over one text.

    heads: which were scored.
    scores, shuffled: (head,) by name, and the same over shuffled tokens; empty for a sentence.
    found: of an annotated sentence.
    """

    heads: tuple[int, ...]
    scores: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    shuffled: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    found: Sequence[Found] = ()


@dataclass(frozen=True, eq=False)
class TextScores:
    """What was measured over one text.

    uniform: each score of attention spread evenly; empty for a sentence.
    layers: by index.
    lost: the heads (layer, head) of which some weights were no numbers.
    """

    text: ProbeText
    uniform: Mapping[str, float]
    layers: Mapping[int, LayerScores]
    lost: frozenset[tuple[int, int]] = frozenset()


def measure(
    probing: Probing,
    texts: Sequence[ProbeText],
    view: View,
    heads: Selection | None,
    work: Work,
) -> tuple[TextScores, ...]:
    """Run over every text and score it; in the order of ``texts``.

    heads: the heads to score of each layer; None scores all.
    """
    found: dict[int, TextScores] = {}
    ranked = probing.ranked
    for batch in batches(texts):
        observer = _Scoring(probing, batch, view, heads, ranked)
        probing.run(observer, [text.passage for text in batch])
        for text, scores in zip(batch, observer.results(), strict=True):
            found[id(text)] = scores
            work(cells_of(text, probing.kind))
    return tuple(found[id(text)] for text in texts)


def cells_of(text: ProbeText, kind: Kind) -> int:
    """Pairs of tokens that a text asks for: how much work it is."""
    return len(text.passage.queries(kind)) * len(text.passage.keys(kind))


class _Scoring:
    """Reduces what passes by of one batch of texts."""

    def __init__(
        self,
        probing: Probing,
        texts: Sequence[ProbeText],
        view: View,
        heads: Selection | None,
        ranked: bool,
    ) -> None:
        self._kind = probing.kind
        self._view: View = view
        self._selection = heads
        self._texts = texts
        self._facts = [_facts(probing, text, view, ranked) for text in texts]
        self._kept: dict[int, tuple[int, ...]] = {}
        self._sums: dict[tuple[int, int], ScoreSums] = {}
        self._matrices: dict[tuple[int, int], NDArray[np.floating]] = {}
        self._found: dict[tuple[int, int], list[Found]] = {}
        self._lost: set[tuple[int, int, int]] = set()

    @property
    def norms(self) -> bool:
        return self._view == "norm-weighted"

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind and (self._selection is None or layer in self._selection)

    def observe(
        self,
        text: int,
        kind: Kind,
        layer: int,
        start: int,
        weights: NDArray[np.floating],
        norms: NDArray[np.floating] | None,
    ) -> None:
        kept = self._heads_of(layer, weights.shape[0])
        if not kept:
            return
        if len(kept) < weights.shape[0]:
            weights = weights[list(kept)]
            norms = None if norms is None else norms[list(kept)]
        broken = np.isnan(weights).any(axis=(-2, -1))
        self._lost |= {(text, layer, head) for head, lost in zip(kept, broken, strict=True) if lost}
        shown = in_view(self._view, weights, norms)
        if self._texts[text].words is not None:
            self._collect(text, layer, start, shown)
        else:
            key = (text, layer)
            if key not in self._sums:
                self._sums[key] = ScoreSums(self._facts[text])
            self._sums[key].add(shown, start)

    def _heads_of(self, layer: int, count: int) -> tuple[int, ...]:
        if layer not in self._kept:
            chosen = None if self._selection is None else self._selection[layer]
            self._kept[layer] = tuple(
                head for head in range(count) if chosen is None or head in chosen
            )
        return self._kept[layer]

    def _collect(self, text: int, layer: int, start: int, weights: NDArray[np.floating]) -> None:
        """Sentences are short: their words are looked for once the whole matrix is there."""
        facts, words = self._facts[text], self._texts[text].words
        shape = (weights.shape[0], len(facts.queries), len(facts.keys))
        matrix = self._matrices.setdefault((text, layer), np.zeros(shape, weights.dtype))
        stop = start + weights.shape[1]
        matrix[:, start:stop, : weights.shape[2]] = weights
        if stop == shape[1] and words is not None:
            self._found[text, layer] = words.find(self._matrices.pop((text, layer)))

    def results(self) -> list[TextScores]:
        """What was measured, text by text."""
        return [self._result(number, text) for number, text in enumerate(self._texts)]

    def _result(self, number: int, text: ProbeText) -> TextScores:
        layers = {}
        for layer, heads in sorted(self._kept.items()):
            if (number, layer) in self._sums:
                sums = self._sums[number, layer]
                layers[layer] = LayerScores(heads, sums.scores(), sums.shuffled())
            elif (number, layer) in self._found:
                layers[layer] = LayerScores(heads, found=self._found[number, layer])
        uniform = uniform_scores(self._facts[number]) if text.words is None else {}
        lost = frozenset((layer, head) for place, layer, head in self._lost if place == number)
        return TextScores(text, uniform, layers, lost)


def _facts(probing: Probing, text: ProbeText, view: View, ranked: bool) -> TextFacts:
    queries, keys = text.passage.queries(probing.kind), text.passage.keys(probing.kind)
    return text_facts(queries, keys, probing.kind, probing.causal, view, ranked)
