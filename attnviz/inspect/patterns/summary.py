"""Summarises the scores of a head over single texts: means, base rates, agreement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.inspect.patterns.probes import COPIES, NATURAL, OWN, PREFIX
from attnviz.inspect.patterns.relations import FoundPair, relation_base_rate
from attnviz.inspect.patterns.sums import TextScores
from attnviz.measures.bootstrap import share_interval, student_interval
from attnviz.measures.labels import strength
from attnviz.measures.registry import DESCRIBED, of_family

ON_TEXT = "text_"
"""The prefix of scores on natural text if their label is given on random tokens."""

_POSITION, _IDENTITY = of_family("position"), of_family("identity")
_RUNNING = of_family("position", "content", "alignment")

SCORES_OF: Mapping[str, Mapping[str, str]] = {
    NATURAL: {name: name for name in _RUNNING} | {name: ON_TEXT + name for name in _IDENTITY},
    COPIES: {name: name for name in _IDENTITY},
    PREFIX: {"induction": "prefix_matching"},
    OWN: {name: name for name in (*_RUNNING, *_IDENTITY)},
}
"""For each probe, the measures taken from it, and the names of the scores they give."""

_AGREES_ON: Mapping[str, tuple[str, ...]] = {COPIES: _POSITION, PREFIX: _POSITION}
"""Measures that further probes confirm, but that are not averaged over them."""

_FOLDS = 10


def measures_of(probe: str) -> tuple[str, ...]:
    """Return the names of the measures whose scores over a text of this probe are used."""
    described = DESCRIBED if probe in (NATURAL, OWN) else ()
    return (*SCORES_OF.get(probe, ()), *_AGREES_ON.get(probe, ()), *described)


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
    statistics: dict[str, float | None] = field(default_factory=dict)
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
        found = [strength(score, base) for score, base in pairs]
        return sum(value is not None and value >= threshold for value in found) / len(pairs)


def summaries(
    results: Sequence[TextScores], relations: Sequence[str]
) -> dict[tuple[int, int], HeadSummary]:
    """Return the summary of the pattern scores of each head by (layer, head), in that order.

    results: the scores over each text. relations: the names of the annotated ones.
    """
    places = sorted(
        {
            (layer, head)
            for result in results
            for layer, scores in result.layers.items()
            for head in scores.heads
        }
    )
    tested = _tested(results)
    return {place: _summary(results, relations, tested, *place) for place in places}


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
            for found in scores.found:
                pairs.setdefault((found.relation, layer), []).append((number % _FOLDS, found))
    tested = {}
    for (relation, layer), some in pairs.items():
        numbers, found_pairs = zip(*some, strict=True)
        folds = [np.flatnonzero(np.array(numbers) == fold) for fold in dict.fromkeys(numbers)]
        hits = np.stack([pair.hits for pair in found_pairs])
        base = relation_base_rate(found_pairs)
        tested[relation, layer] = _Tested(heads[layer], found_pairs, hits, folds, base)
    return tested


def _summary(
    results: Sequence[TextScores],
    relations: Sequence[str],
    tested: Mapping[tuple[str, int], _Tested],
    layer: int,
    head: int,
) -> HeadSummary:
    summary = HeadSummary()
    values: dict[str, list[tuple[float, float]]] = {}
    described: dict[str, list[float]] = {}
    reach: dict[str, list[float]] = {}
    delimiters: dict[int, float] = {}
    for result in results:
        probe = result.text.probe
        names, agreeing = SCORES_OF.get(probe, {}), _AGREES_ON.get(probe, ())
        for measure, score, base in _measures(result, layer, head):
            if measure in names:
                values.setdefault(names[measure], []).append((score, base))
                reach.setdefault(names[measure], []).append(
                    result.layers[layer].reach.get(measure, 1.0)
                )
            if measure in names or measure in agreeing:
                summary.single.setdefault(names.get(measure, measure), []).append((score, base))
                if names.get(measure) == "delimiter":
                    in_layer = result.layers[layer]
                    place = in_layer.heads.index(head)
                    for token, gained in in_layer.delimiters.items():
                        delimiters[token] = delimiters.get(token, 0.0) + float(gained[place])
            if measure in DESCRIBED and probe in (NATURAL, OWN):
                described.setdefault(measure, []).append(score)
    for probe in dict.fromkeys(result.text.probe for result in results):
        for name in SCORES_OF.get(probe, {}).values():
            _enter(summary, name, values.get(name, []))
    for relation in relations:
        _enter_relation(summary, relation, tested.get((relation, layer)), head)
    summary.reach = {name: math.fsum(shares) / len(shares) for name, shares in reach.items()}
    every = sum(delimiters.values())
    if every > 0:
        summary.one_delimiter = max(delimiters.values()) / every
    summary.statistics = {name: _mean(described.get(name, [])) for name in DESCRIBED}
    return summary


def _measures(result: TextScores, layer: int, head: int) -> Iterator[tuple[str, float, float]]:
    """Yield (name, score, base rate) of each pattern score that this text can show for a head."""
    scores = result.layers.get(layer)
    if scores is None or head not in scores.heads:
        return
    place = scores.heads.index(head)
    for name, values in scores.scores.items():
        score = float(values[place])
        base = (
            float(scores.shuffled[name][place])
            if name in scores.shuffled
            else scores.uniform.get(name, math.nan)
        )
        if not math.isnan(score):
            yield name, score, base


def _enter(summary: HeadSummary, name: str, values: Sequence[tuple[float, float]]) -> None:
    summary.scores[name] = _mean([score for score, _ in values])
    summary.base_rate[name] = _mean([base for _, base in values if not math.isnan(base)])
    summary.measured[name] = len(values)
    interval = student_interval([score for score, _ in values])
    if interval is not None:
        summary.intervals[name] = interval


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
