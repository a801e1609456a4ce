"""Computes each head's scores over one text, and the label that names or describes it.

A label names a key for each query: an *event* is a query with that key. The evidence compares the
head's weight on these keys with its own at other queries (a column, such as a sink, is no pattern),
and with keys drawn at random among those that each query sees. The upper tail of the random sum is
that of the gamma distribution with its mean, variance and third cumulant, converted to a normal
deviate (Wilson & Hilferty 1931, "The distribution of chi-square"): in a peaked head eight hits of
twelve are not as rare as a normal tail says. Against the exact tail the probability is one to four
times too large where labels are decided (tests/measures/test_one_text.py); of heads with random
weights at most 0.5% pass three deviations, none four (tests/benchmarks/bench_labels.py).

Repetitions of an event count once: equal tokens have nearly equal rows. The first token, separators
and other special tokens are neither queries nor keys of events.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.labels import (
    SINK,
    KnownLabels,
    clear_deviations,
    label_of,
    least_strength,
    strength,
    strongest,
)
from attnviz.measures.registry import NEAR, OF_ONE_TEXT, UNLABELLED, label_named
from attnviz.measures.rows import (
    BaseRates,
    Conditions,
    RowBlock,
    TextFacts,
    Weights,
    base_rates,
    scores_of,
)
from attnviz.measures.sinks import even_weights, resting_weight, sink_of, sink_weights
from attnviz.records import (
    NO_LABEL,
    SINKS,
    AttentionRecord,
    Bools,
    HeadLabel,
    HeadScores,
    Ints,
    LayerWeights,
    Source,
)

FEWEST_TOKENS = 8  # the fewest tokens of a text that can give a head a label
FEWEST_EVENTS = 8  # the fewest different events that can give a head a label
_MOST_EVENTS = 256  # the most events of a long text that are used, evenly spaced
_OFFSETS = {"previous": -1, "self": 0, "next": 1}
# The distance in tokens of the key from an earlier token that equals the query.
_FOLLOWING = {"duplicate": 0, "induction": 1}
_ROUNDING = 1e-8  # the least variance: equal 32-bit weights may differ this much by rounding

NAMES = len(_OFFSETS) + len(_FOLLOWING) + 1  # local
"""The number of labels that are tested for each head."""

Floats = NDArray[np.float64]


class Evidence(NamedTuple):
    """How strongly one text speaks for one label, for each head.

    events: different queries for which the label names a key. score, control: (head,), mean weight
    on these keys from their queries, and from others. deviations: (head,), the normal deviate of
    the score among random keys.
    """

    events: int
    control: Floats
    score: Floats
    deviations: Floats


def evidence(text: TextFacts, weights: Weights, seen: Bools) -> dict[str, Evidence]:
    """Return the evidence for each label with enough events in the text, by label.

    weights: attention weights (head, query, key) of self-attention, rows that sum to one.
    seen: (query, key), whether the query sees the key.
    Encoders are not tested for induction, because they see the token to predict.
    """
    causal = text.attention.causal
    if text.attention.kind == "cross" or len(text.queries) < FEWEST_TOKENS:
        return {}
    tested = {}
    for name, offset in _OFFSETS.items():
        if not (causal and offset > 0):
            tested[name] = _of_offset(text, weights, seen, offset)
    for name, behind in _FOLLOWING.items():
        if causal or not behind:
            tested[name] = _of_copies(text, weights, seen, behind)
    tested["local"] = _of_surroundings(text, weights, seen)
    return {name: label for name, label in tested.items() if label.events >= FEWEST_EVENTS}


def _of_offset(text: TextFacts, weights: Weights, seen: Bools, offset: int) -> Evidence:
    """Return the evidence for keys ``offset`` tokens away; an event is a pair of tokens."""
    ids, count = np.asarray(text.queries.ids), len(text.queries)
    plain = ~text.special
    sees = seen & plain & plain[:, None]
    queries = np.arange(count)
    keys = queries + offset
    there = (keys >= 0) & (keys < count) & (seen.sum(-1) > 1)
    there[there] &= sees[queries[there], keys[there]]
    pairs = np.stack([ids[keys[there]], ids[queries[there]]])
    _, first = np.unique(pairs, axis=1, return_index=True)
    chosen = _evenly_spaced(np.flatnonzero(there)[np.sort(first)])
    aims = keys[chosen]
    columns = np.einsum("hqk,qk->hk", weights, sees, dtype=np.float64)[:, aims]
    hits = weights[:, chosen, aims].astype(np.float64)
    others = np.maximum(sees.sum(0)[aims] - 1, 1)
    return _evidence_of(hits, (columns - hits) / others, weights[:, chosen], sees[chosen])


def _of_copies(text: TextFacts, weights: Weights, seen: Bools, behind: int) -> Evidence:
    """Return the evidence for keys ``behind`` tokens after copies; an event is a kind of token."""
    ids, count = np.asarray(text.queries.ids), len(text.queries)
    plain = ~text.special
    kinds, which = np.unique(ids, return_inverse=True)
    members = np.zeros((count, len(kinds)))  # (key, kind): the keys that a kind of token leads to
    sources = np.arange(count - behind)
    sources = sources[plain[sources] & plain[sources + behind]]
    members[sources + behind, which[sources]] = 1
    last = np.zeros(len(kinds), np.int64)
    last[which] = np.arange(count)  # if indices are equal, NumPy keeps the last
    earlier = (np.arange(count) < last[:, None]) & seen[last]
    known = (earlier @ members > 0)[np.arange(len(kinds)), np.arange(len(kinds))] & plain[last]
    chosen = np.flatnonzero(known)
    chosen = _evenly_spaced(chosen[np.argsort(last[chosen])])
    return _of_sets(weights, last[chosen], earlier[chosen], members[:, chosen], 1)


def _of_surroundings(text: TextFacts, weights: Weights, seen: Bools) -> Evidence:
    """Return the evidence for the keys around a token, itself included, by kinds of token."""
    count, plain = len(text.queries), ~text.special
    sees = seen & plain & plain[:, None]
    places = np.arange(count)
    near = sees & (np.abs(places[:, None] - places) <= NEAR)
    last = np.zeros(count, bool)
    last[count - 1 - np.unique(np.asarray(text.queries.ids)[::-1], return_index=True)[1]] = True
    chosen = _evenly_spaced(np.flatnonzero(last & (sees.sum(-1) > near.sum(-1))))
    aims = near[chosen].T.astype(np.float64)
    return _of_sets(weights, chosen, sees[chosen], aims, aims.sum(0))


def _of_sets(
    weights: Weights, queries: Ints, before: Bools, aims: Floats, least: Floats | int
) -> Evidence:
    """Return the evidence for events that name a set of keys.

    queries: (event,). before: (event, key), the keys that the query of each may be given. aims:
    (key, event), ones for the keys of each. A random draw gives a query the set of any event of
    which it sees at least ``least`` keys: a number, or one for each event.
    """
    # One head at a time, (event, key): all at once would take the memory of another layer.
    mass = np.stack([np.where(before, head[queries], 0.0) @ aims for head in weights])
    sees = before @ aims >= least  # (event, event), mass (head, event, event)
    hits = np.einsum("hee->he", mass)
    others = np.maximum(sees.sum(0) - 1, 1)
    control = (np.where(sees, mass, 0).sum(1) - hits) / others
    return _evidence_of(hits, control, mass, sees)


def _evenly_spaced(places: Ints) -> Ints:
    if len(places) <= _MOST_EVENTS:
        return places
    return places[np.linspace(0, len(places) - 1, _MOST_EVENTS).astype(np.int64)]


def _evidence_of(hits: Floats, control: Floats, choices: Weights, sees: Bools) -> Evidence:
    """Return the evidence from the attention weights on the keys of events.

    hits, control: (head, event), the weights on the event's key from its query, and from other
        queries. choices: (head, event, key), the weights from which a random draw chooses; ``sees``
        (event, key) says which of them each event has.
    """
    heads, events = hits.shape
    if not events:
        nothing = np.zeros(heads)
        return Evidence(0, nothing, nothing, nothing)
    powers = []  # (power, event) of each head
    for values in (np.where(sees, head, 0.0) for head in choices):
        squares = values**2
        powers.append(np.stack([part.sum(-1) for part in (values, squares, squares * values)]))
    mean, square, cube = np.stack(powers, axis=1) / sees.sum(-1)
    variance = np.maximum(square - mean**2, 0).sum(-1)
    third = (cube - 3 * mean * square + 2 * mean**3).sum(-1)
    above = hits.sum(-1) - mean.sum(-1)
    # The normal deviate with the tail of the gamma distribution of these three cumulants.
    deviation = np.sqrt(np.maximum(variance, _ROUNDING))
    skew = np.maximum(third / deviation**3, 0.05)  # at this skew nearly a normal distribution
    shape = 4 / skew**2
    ratio = np.maximum(1 + above / deviation / np.sqrt(shape), 0)
    deviate = np.asarray((np.cbrt(ratio) - 1 + 1 / (9 * shape)) * 3 * np.sqrt(shape))
    return Evidence(events, control.mean(-1), hits.mean(-1), deviate)


_EVEN = 0.6  # a head without label is called diffuse if its normalised entropy is at least this
_SINK = label_named(SINK)
# The measured scores: ``OF_ONE_TEXT``, and those of labels that may be known before.
_NAMES = (*OF_ONE_TEXT, "separator", "delimiter")
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
        info, layout = record.model, record.keys.layout
        told = not (record.queries.unknown or record.keys.unknown)
        told = told and (layout is None or "text" in layout.kinds)  # patches have no word order
        self._asked = known is None and info.weights != "random" and told
        self._trials = info.layers * info.heads * NAMES

    def heads(self, layer: LayerWeights) -> Iterator[HeadScores]:
        """Yield the pattern scores and the label of each head of a layer."""
        seen = self._record.seen(layer)
        values = scores_of(RowBlock(self._facts, layer.weights, mask=seen), _NAMES)
        evidences = evidence(self._facts, layer.weights, seen) if self._asked else {}
        sinks = sink_weights(layer.weights, *self._sink)
        even_sink = sink_weights(even_weights(seen), *self._sink)
        bases = self._bases.get(id(layer.mask)) or base_rates(self._facts, _NAMES, seen)
        self._bases[id(layer.mask)] = bases
        for row, head in enumerate(layer.heads):
            scores = dict[str, float | None].fromkeys(OF_ONE_TEXT)
            numbers = ((name, float(value[row])) for name, value in values.items())
            scores |= {name: number for name, number in numbers if not math.isnan(number)}
            label = self._label(layer.layer, head, row, scores, evidences, bases)
            if label is None or label.name in SINKS:
                label = self._described(scores, float(sinks[row]), float(even_sink), bases)
            reported = {name: scores[name] for name in OF_ONE_TEXT}
            yield HeadScores(layer.layer, head, reported, label)

    def _label(
        self,
        layer: int,
        head: int,
        row: int,
        scores: Scores,
        evidences: Mapping[str, Evidence],
        bases: BaseRates,
    ) -> HeadLabel | None:
        """Return the label of the layer's head at ``row``; ``NO_LABEL`` for infinite weights."""
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
            name: strength(scores[name], bases.scores[name], float(label.control[row]))
            for name, label in evidences.items()
        }
        reached = {
            name: gain for name, gain in gains.items() if gain and gain >= least_strength(name)
        }
        least = clear_deviations(self._trials) if reached else 0.0
        clear = (name for name in reached if evidences[name].deviations[row] >= least)
        best = strongest({name: reached[name] for name in clear})
        if best is None:
            return None
        return _label(best, scores[best], bases.scores[best], "text", bases.rows[best])

    def _described(
        self, scores: Scores, sink: float, even_sink: float, bases: BaseRates
    ) -> HeadLabel:
        """Return a head without a label as its main sink, diffuse or peaked."""
        if sink > self._resting:
            most = max(SINKS, key=lambda name: scores.get(name) or 0.0)
            label = _label(most, sink, even_sink, events=self._queries)
            return label._replace(said=_SINK.said, short=_SINK.short)
        peak, even = scores["confidence"], bases.scores["confidence"]
        evenness = scores["normalised_entropy"] or 0.0
        if peak is None or even is None or evenness >= _EVEN:
            return _label("spread", evenness, 1.0, events=bases.rows["normalised_entropy"])
        return _label("peaked", peak, even, events=bases.rows["confidence"])


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
