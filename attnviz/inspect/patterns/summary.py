"""Summarises the scores of a head over single texts: means, base rates, agreement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.inspect.patterns.probes import AGREES_ON, NATURAL, OWN, SCORES_OF, measures_of
from attnviz.inspect.patterns.relations import FoundPair, relation_base_rate
from attnviz.inspect.patterns.sums import TextScores
from attnviz.measures.bootstrap import share_interval, student_interval
from attnviz.measures.labels import strength
from attnviz.measures.registry import DESCRIBED

Place = tuple[int, int]

_FOLDS = 10


@dataclass
class HeadSummary:
    """The pattern scores of one head over all texts, by the name of the score.

    scores, base_rate, intervals, measured, statistics: as in ``PatternScores``. single: (score,
    base rate) of each text; for a relation, of each of the ten parts of its sentences.
    """

    scores: dict[str, float | None] = field(default_factory=dict)
    base_rate: dict[str, float | None] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    measured: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(DESCRIBED))
    single: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    reach: dict[str, float] = field(default_factory=dict)
    """The share of a text's queries that could show a score, mean over texts, in [0, 1]."""
    one_delimiter: float = 0.0
    """The share of the gain of ``delimiter`` over chance that one single token gives."""
    agreeing: dict[str, float] = field(default_factory=dict)
    """For texts that are not kept in ``single``, the share of them that agrees on a label."""

    def agreement(self, label: str, threshold: float) -> float | None:
        """Return the share of single texts on which the label's strength reaches its threshold."""
        if label in self.agreeing:
            return self.agreeing[label]
        pairs = self.single.get(label, [])
        if len(pairs) < 2:
            return None
        gains = [strength(score, base) for score, base in pairs]
        return sum(gain is not None and gain >= threshold for gain in gains) / len(pairs)


class Stack(NamedTuple):
    """The scores of heads over some texts; NaN where a text cannot show a score.

    names: of the scores. places: the (layer, head) of each head.
    scores, base, reach: (text, score, head), the score, its base rate, the share of the queries
        that could show it. gained: by token, (text, head), see ``LayerScores.delimiters``.
    """

    names: Sequence[str]
    places: Sequence[Place]
    scores: NDArray[np.float64]
    base: NDArray[np.float64]
    reach: NDArray[np.float64]
    gained: Mapping[int, NDArray[np.float64]]


def stacked(results: Sequence[TextScores], names: Sequence[str]) -> Stack:
    """Return the scores of the same heads over several texts. names: of the scores."""
    places = [(at, head) for at, layer in results[0].layers.items() for head in layer.heads]
    shape = len(results), len(names), len(places)
    scores, base, reach = (np.full(shape, np.nan) for _ in range(3))
    gained: dict[int, NDArray[np.float64]] = {}
    for text, result in enumerate(results):
        first = 0
        for layer in result.layers.values():
            own = slice(first, first := first + len(layer.heads))
            for row, name in enumerate(names):
                if name in layer.scores:
                    scores[text, row, own] = layer.scores[name]
                    base[text, row, own] = layer.shuffled.get(name, layer.uniform.get(name, np.nan))
                    reach[text, row, own] = layer.reach.get(name, 1.0)
            for token, values in layer.delimiters.items():
                gained.setdefault(token, np.zeros(shape[::2]))[text, own] = values
    if "delimiter" in names:
        measured = ~np.isnan(scores[:, names.index("delimiter")])
        gained = {token: np.where(measured, values, 0) for token, values in gained.items()}
    return Stack(names, places, scores, base, reach, gained)


def summaries(results: Sequence[TextScores], relations: Sequence[str]) -> dict[Place, HeadSummary]:
    """Return the summary of the pattern scores of each head by (layer, head), in that order.

    results: the scores over each text. relations: the names of the annotated ones.
    """
    layers = [(at, layer.heads) for result in results for at, layer in result.layers.items()]
    places = sorted({(at, head) for at, heads in layers for head in heads})
    found = {place: HeadSummary() for place in places}
    for probe in dict.fromkeys(result.text.probe for result in results):
        if probe in SCORES_OF:
            own = [result for result in results if result.text.probe == probe]
            _enter_probe(found, probe, stacked(own, measures_of(probe)))
    tested = _tested(results)
    for (layer, head), summary in found.items():
        for relation in relations:
            _enter_relation(summary, relation, tested.get((relation, layer)), head)
    return found


def _enter_probe(found: Mapping[Place, HeadSummary], probe: str, stack: Stack) -> None:
    names, further = SCORES_OF[probe], AGREES_ON.get(probe, ())
    gains = {token: values.sum(0) for token, values in stack.gained.items()}
    for column, place in enumerate(stack.places):
        summary = found[place]
        for row, measure in enumerate(stack.names):
            at = ~np.isnan(stack.scores[:, row, column]), row, column
            scores = stack.scores[at].tolist()
            pairs = list(zip(scores, stack.base[at].tolist(), strict=True))
            name = names.get(measure, measure)
            if measure in names:
                bases = [base for _, base in pairs if not math.isnan(base)]
                summary.scores[name], summary.base_rate[name] = _mean(scores), _mean(bases)
                summary.measured[name] = len(pairs)
                if pairs:
                    summary.reach[name] = math.fsum(stack.reach[at]) / len(pairs)
                interval = student_interval(scores)
                if interval is not None:
                    summary.intervals[name] = interval
            if measure in names or measure in further:
                summary.single.setdefault(name, []).extend(pairs)
            if measure in DESCRIBED and probe in (NATURAL, OWN):
                summary.statistics[measure] = _mean(scores)
        own = [float(values[column]) for values in gains.values()]
        if "delimiter" in names and sum(own) > 0:
            summary.one_delimiter = max(own) / sum(own)


class _Tested(NamedTuple):
    """The tests of one relation in one layer, over all annotated sentences.

    heads: those that were tested. pairs: the word pairs. hits: (pair, head) as in ``FoundPair``.
    folds: the pairs of each fold of the sentences, by their indices.
    base: the base rate of all pairs.
    """

    heads: Sequence[int]
    pairs: Sequence[FoundPair]
    hits: NDArray[np.float64]
    folds: Sequence[NDArray[np.intp]]
    base: float


def _tested(results: Sequence[TextScores]) -> dict[tuple[str, int], _Tested]:
    """Return the tests of each relation in each layer, by the relation's name and the layer."""
    pairs: dict[tuple[str, int], list[tuple[int, FoundPair]]] = {}
    heads: dict[int, Sequence[int]] = {}
    sentences = (result for result in results if result.text.words is not None)
    for number, result in enumerate(sentences):
        for layer, scores in result.layers.items():
            heads[layer] = scores.heads
            for pair in scores.found:
                pairs.setdefault((pair.relation, layer), []).append((number % _FOLDS, pair))
    tested = {}
    for (relation, layer), some in pairs.items():
        numbers, own = zip(*some, strict=True)
        folds = [np.flatnonzero(np.array(numbers) == fold) for fold in dict.fromkeys(numbers)]
        hits = np.stack([pair.hits for pair in own])
        base = relation_base_rate(own)
        tested[relation, layer] = _Tested(heads[layer], own, hits, folds, base)
    return tested


def _enter_relation(summary: HeadSummary, relation: str, tested: _Tested | None, head: int) -> None:
    folds: list[list[float]] = []
    measured, base = 0, 0.0
    if tested is not None and head in tested.heads:
        hits = tested.hits[:, tested.heads.index(head)]
        known = ~np.isnan(hits)
        folds = [hits[rows][known[rows]].tolist() for rows in tested.folds]
        folds = [fold for fold in folds if fold]
        measured, base = int(known.sum()), tested.base
        if measured < len(known):
            base = relation_base_rate(list(compress(tested.pairs, known)))
    mean = _mean([hit for fold in folds for hit in fold])
    summary.scores[relation] = mean
    summary.base_rate[relation] = base if measured else None
    summary.measured[relation] = measured
    interval = share_interval(mean or 0.0, measured)
    if interval is not None:
        summary.intervals[relation] = interval
    summary.single[relation] = [(sum(fold) / len(fold), base) for fold in folds]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
