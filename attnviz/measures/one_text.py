"""Each head's scores over one text, and the label that names it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attnviz.measures.labels import ONE_TEXT, best_label, strength, strengths
from attnviz.measures.registry import OF_ONE_TEXT, UNLABELLED, label_named, of_family
from attnviz.measures.rows import Conditions, TextFacts, uniform_weights, whole_scores
from attnviz.records import NO_LABEL, AttentionRecord, HeadLabel, HeadScores

_EVEN = 0.6
"""The normalised entropy from which a head without another label is called spread."""

Scores = Mapping[str, float | None]


def head_scores(record: AttentionRecord) -> tuple[HeadScores, ...]:
    """The scores and the label of every kept head, in the order of the record."""
    text = TextFacts(record.queries, record.keys, Conditions(record.kind, record.causal))
    uniform = uniform_weights(len(record.queries), len(record.keys), record.causal)
    even = whole_scores(text, uniform, OF_ONE_TEXT)
    base = {name: _number(float(value)) for name, value in even.items()}
    repeats = _repeats(record.queries.ids)
    found = []
    for layer in record.layers:
        values = whole_scores(text, layer.weights, OF_ONE_TEXT)
        for index, head in enumerate(layer.heads):
            scores = {
                name: _number(float(values[name][index])) if name in values else None
                for name in OF_ONE_TEXT
            }
            found.append(HeadScores(layer.layer, head, scores, _label(scores, base, repeats)))
    return tuple(found)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _repeats(ids: Sequence[int]) -> int:
    """The tokens that have an earlier copy whose next token they are not themselves."""
    seen: set[int] = set()
    found = 0
    for earlier, token in zip(ids, ids[2:], strict=False):
        seen.add(earlier)
        found += token in seen
    return found


def _label(scores: Scores, base: Scores, repeats: int) -> HeadLabel:
    """What names a head.

    ``NO_LABEL`` where its weights are not all numbers. Where nothing else does: ``spread`` with its
    normalised entropy if attention is nearly even, else ``peaked`` with its mean largest weight.
    """
    if scores["entropy"] is None:
        return NO_LABEL
    found = strengths(of_family("position", "identity"), scores, base)
    name = best_label(found, scores, base, {"induction": repeats}, ONE_TEXT)
    if name is not None:
        return _named(name, scores[name], base[name])
    peak, even = scores["confidence"], base["confidence"]
    evenness = scores["normalised_entropy"] or 0.0
    if peak is None or even is None or evenness >= _EVEN:
        return _named("spread", evenness, 1.0)
    return _named("peaked", peak, even)


def _named(name: str, score: float | None, base: float | None) -> HeadLabel:
    known = math.nan if score is None else score, math.nan if base is None else base
    measure = label_named(name)
    return HeadLabel(name, measure.letter, *known, measure.short, measure.said)


def notable_heads(heads: Sequence[HeadScores], count: int) -> tuple[tuple[int, int], ...]:
    """The ``count`` heads worth a full map: each label's strongest first, then the next ones.

    Heads that look elsewhere come before those that look at their own token, and heads without a
    label last, the most peaked first.
    """

    def clarity(entry: HeadScores) -> float:
        label = entry.label
        if label is NO_LABEL:
            return -math.inf
        if label.name in UNLABELLED:
            return label.score - 1 if label.name == "peaked" else -1 - label.score
        return strength(label.score, label.base_rate) or 0.0

    ranked = sorted(heads, key=clarity, reverse=True)
    leaders: dict[str, HeadScores] = {}
    for entry in ranked:
        leaders.setdefault(entry.label.name, entry)
    elsewhere = leaders.keys() - {"self", *UNLABELLED}
    first = [entry for name, entry in leaders.items() if name in elsewhere]
    ordered = dict.fromkeys(
        (entry.layer, entry.head) for entry in [*first, *leaders.values(), *ranked]
    )
    return tuple(ordered)[:count]
