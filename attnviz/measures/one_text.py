"""Computes each head's scores over one text, and the label that names or describes it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from attnviz.measures.evidence import NAMES, Evidence, evidence
from attnviz.measures.labels import (
    SINK,
    KnownLabels,
    clear_deviations,
    label_of,
    least_strength,
    strength,
    strongest,
)
from attnviz.measures.registry import OF_ONE_TEXT, UNLABELLED, label_named
from attnviz.measures.rows import (
    BaseRates,
    Conditions,
    TextFacts,
    Weights,
    base_rates,
    whole_scores,
)
from attnviz.measures.sinks import resting_weight, sink_of, sink_weights
from attnviz.measures.uniform import even_weights
from attnviz.records import (
    NO_LABEL,
    SINKS,
    AttentionRecord,
    HeadLabel,
    HeadScores,
    LayerWeights,
    Source,
)

_EVEN = 0.6
"""A head without label is called diffuse if its normalised entropy is at least this."""

_SINK = label_named(SINK)
_NAMES = (*OF_ONE_TEXT, "separator", "delimiter")
"""The measured scores: ``OF_ONE_TEXT``, and those of labels that may be known before."""

Scores = Mapping[str, float | None]


def head_scores(
    record: AttentionRecord, known: KnownLabels | None = None
) -> tuple[HeadScores, ...]:
    """Return the pattern scores and the label of every recorded head, in the record's order.

    known: labels that were measured before; they take precedence over this text. Without them the
        text labels a head if ``evidence`` is clear, but not in a model with random weights, nor if
        the tokenizer does not know more than a tenth of the text. All other heads are described: by
        the sink, or as diffuse or peaked. A label for a sink is always such a description: its
        score is the weight on all sink tokens of this text.
    """
    text = _Text(record, known)
    return tuple(entry for layer in record.layers for entry in text.heads(layer))


class _Text:
    """Computes the scores and labels of all heads over one text; known: those measured before."""

    def __init__(self, record: AttentionRecord, known: KnownLabels | None) -> None:
        self._known = known
        self._facts = TextFacts(record.queries, record.keys, Conditions(record.kind, record.causal))
        self._record = record
        self._bases: dict[int, BaseRates] = {}
        self._sink, self._resting = sink_of(record), resting_weight(record)
        self._queries = int((~self._sink[0]).sum())
        info = record.model
        told = not (record.queries.unknown or record.keys.unknown)
        layout = record.keys.layout
        told = told and (layout is None or "text" in layout.kinds)  # patches have no word order
        self._asked = known is None and info.weights != "random" and told
        self._trials = info.layers * info.heads * NAMES

    def heads(self, layer: LayerWeights) -> Iterator[HeadScores]:
        """Yield the pattern scores and the label of each head of a layer."""
        seen = self._record.seen(layer)
        values = whole_scores(self._facts, layer.weights, _NAMES, mask=seen)
        found = evidence(self._facts, layer.weights, seen) if self._asked else {}
        sinks = sink_weights(layer.weights, *self._sink)
        even_sink = sink_weights(even_weights(seen), *self._sink)
        bases = self._bases.get(id(layer.mask)) or base_rates(self._facts, _NAMES, seen)
        self._bases[id(layer.mask)] = bases
        for place, head in enumerate(layer.heads):
            scores = {**dict.fromkeys(OF_ONE_TEXT), **_numbers(values, place)}
            label = self._label(layer.layer, head, place, scores, found, bases)
            if label is None or label.name in SINKS:
                label = self._described(scores, float(sinks[place]), float(even_sink), bases)
            reported = {name: scores[name] for name in OF_ONE_TEXT}
            yield HeadScores(layer.layer, head, reported, label)

    def _label(
        self,
        layer: int,
        head: int,
        place: int,
        scores: Scores,
        found: Mapping[str, Evidence],
        bases: BaseRates,
    ) -> HeadLabel | None:
        """Return a head's label or None; ``NO_LABEL`` if a weight is not finite.

        place: the head's index among the layer's recorded heads. bases: of uniform attention.
        """
        if scores["entropy"] is None:
            return NO_LABEL
        known = None if self._known is None else self._known.heads.get((layer, head))
        if self._known is not None and known is not None and known.name is not None:
            return self._known.label(known.name, known.score)._replace(
                on_text=_number(scores.get(known.name)),
                base_rate=_number(bases.scores.get(known.name)),
                events=bases.rows.get(known.name, 0),
            )
        gains = {
            name: strength(scores[name], bases.scores[name], float(label.control[place]))
            for name, label in found.items()
        }
        reached = {
            name: gain for name, gain in gains.items() if gain and gain >= least_strength(name)
        }
        least = clear_deviations(self._trials) if reached else 0.0
        clear = (name for name in reached if found[name].deviations[place] >= least)
        best = strongest({name: reached[name] for name in clear})
        if best is None:
            return None
        return _label(best, scores[best], bases.scores[best], "text", found[best].events)

    def _described(
        self, scores: Scores, sink: float, even_sink: float, bases: BaseRates
    ) -> HeadLabel:
        """Return the description of a head without a label: its main sink, diffuse, or peaked.

        sink, even_sink: the weight on the attention sink of the head and of uniform attention.
        """
        if sink > self._resting:
            most = max(SINKS, key=lambda name: scores.get(name) or 0.0)
            label = _label(most, sink, even_sink, events=self._queries)
            return label._replace(said=_SINK.said, short=_SINK.short)
        peak, even = scores["confidence"], bases.scores["confidence"]
        evenness = scores["normalised_entropy"] or 0.0
        if peak is None or even is None or evenness >= _EVEN:
            return _label("spread", evenness, 1.0, events=bases.rows["normalised_entropy"])
        return _label("peaked", peak, even, events=bases.rows["confidence"])


def _numbers(values: Mapping[str, Weights], place: int) -> dict[str, float | None]:
    numbers = {name: float(value[place]) for name, value in values.items()}
    return {name: None if math.isnan(value) else value for name, value in numbers.items()}


def _label(
    name: str, score: float | None, base: float | None, source: Source = "none", events: int = 0
) -> HeadLabel:
    on_text = _number(score)
    return label_of(name, on_text, _number(base), source=source, events=events, on_text=on_text)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def notable_heads(heads: Sequence[HeadScores], count: int) -> tuple[tuple[int, int], ...]:
    """Return (layer, head) of up to ``count`` heads whose maps show most, the best one first.

    The strongest head of each label comes first, then the others. Heads that attend to another
    token come before those that attend to their own; then peaked ones, sinks, the most even ones.
    """
    ranked = sorted(heads, key=_clarity, reverse=True)
    leaders: dict[str, HeadScores] = {}
    for entry in ranked:
        leaders.setdefault(entry.label.name, entry)
    elsewhere = leaders.keys() - {"self", *SINKS, NO_LABEL.name, *UNLABELLED}
    first = [entry for name, entry in leaders.items() if name in elsewhere]
    ordered = dict.fromkeys((entry.layer, entry.head) for entry in [*first, *ranked])
    return tuple(ordered)[:count]


def _clarity(entry: HeadScores) -> float:
    """Return how clearly a head fits its label: labels above 0, mere descriptions below."""
    label = entry.label
    if label is NO_LABEL:
        return -math.inf
    if label.name == "spread":
        return -3 - label.score
    score = label.score if math.isnan(label.on_text) else label.on_text
    base = 0.0 if math.isnan(label.base_rate) else label.base_rate
    gained = strength(score, base) or 0.0
    return gained - (2 if label.name in SINKS else label.name == "peaked")
