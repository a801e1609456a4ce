"""Each head's scores over one text, and the trait that names it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.measures import scores as measures
from attnviz.measures.labels import THRESHOLD, not_resting, strength
from attnviz.measures.records import LABELS
from attnviz.records import NO_TRAIT, AttentionRecord, HeadScores, Trait

__all__ = ["MEASURES", "TRAITS", "head_scores", "telling_heads"]

_NAMED = ("previous", "first", "self", "next", "duplicate", "induction")
_TRAITLESS = {"spread": "-", "peaked": "^"}

TRAITS = {name: LABELS[name].letter for name in _NAMED} | _TRAITLESS
"""Every trait's name and letter: of the labels, those that one short text can show."""

MEASURES = (
    "previous",
    "first",
    "self",
    "next",
    "duplicate",
    "induction",
    "entropy",
    "normalised_entropy",
    "distance",
    "confidence",
)
"""Every score's name, in the order in which they are reported."""

_STANDS_OUT = 0.1
"""The share of what a score could gain over its base rate from which it names the head."""

_REPEATS = 2
"""The tokens over which ``induction`` must have been measured to name a head before ``first``."""

_EVEN = 0.6
"""The normalised entropy from which a head without another trait is called spread."""


def _scores(
    weights: NDArray[np.floating], record: AttentionRecord
) -> dict[str, NDArray[np.floating]]:
    """Every measure of weights (..., query, key), one number a head."""
    values = {
        "first": measures.first(weights),
        "entropy": measures.entropy(weights),
        "normalised_entropy": measures.normalised_entropy(weights, record.causal),
        "confidence": measures.confidence(weights, record.queries.special),
    }
    if record.kind != "cross":  # queries and keys of cross attention are different texts
        ids = record.queries.ids
        values |= {
            "previous": measures.previous(weights),
            "self": measures.self_share(weights, record.causal),
            "duplicate": measures.duplicate(weights, ids),
            "induction": measures.induction(weights, ids),
            "distance": measures.distance(weights),
        }
        if not record.causal:
            values["next"] = measures.next_token(weights)
    return values


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _named(
    scores: dict[str, float | None], base: dict[str, float | None], repeats: int
) -> Trait | None:
    """The score that has gained the largest share of what it could over uniform attention, or None.

    In the place of ``first`` stands a clear ``induction``: see ``labels.not_resting``.
    """
    gains: dict[Trait, float] = {}
    for name in _NAMED:
        score, rate = scores.get(name), base.get(name)
        gain = strength(score, rate)
        if score is not None and rate is not None and gain is not None and gain > _STANDS_OUT:
            gains[Trait(name, TRAITS[name], score, rate)] = gain
    best = max(gains, key=gains.__getitem__, default=None)
    if best is None or repeats < _REPEATS:
        return best
    clear = {trait.name: trait for trait, gain in gains.items() if gain >= THRESHOLD}
    return clear.get(not_resting(best.name, clear), best)


def _repeats(ids: Sequence[int]) -> int:
    """The tokens that have an earlier copy whose next token they are not themselves."""
    seen: set[int] = set()
    found = 0
    for earlier, token in zip(ids, ids[2:], strict=False):
        seen.add(earlier)
        found += token in seen
    return found


def _trait(scores: dict[str, float | None], base: dict[str, float | None], repeats: int) -> Trait:
    """What names a head.

    ``NO_TRAIT`` where its weights are not all numbers. Where nothing else does: ``spread`` with its
    normalised entropy if attention is nearly even, else ``peaked`` with its mean largest weight.
    """
    if scores["entropy"] is None:
        return NO_TRAIT
    best = _named(scores, base, repeats)
    if best is not None:
        return best
    peak, even = scores["confidence"], base["confidence"]
    evenness = scores["normalised_entropy"] or 0.0
    if peak is None or even is None or evenness >= _EVEN:
        return Trait("spread", TRAITS["spread"], evenness, 1.0)
    return Trait("peaked", TRAITS["peaked"], peak, even)


def head_scores(record: AttentionRecord) -> tuple[HeadScores, ...]:
    """The scores and the trait of every kept head, in the order of the record."""
    uniform = measures.uniform_weights(len(record.queries), len(record.keys), record.causal)
    base = {name: _number(float(value)) for name, value in _scores(uniform, record).items()}
    repeats = _repeats(record.queries.ids)
    found = []
    for layer in record.layers:
        values = _scores(layer.weights, record)
        for index, head in enumerate(layer.heads):
            scores = {
                name: _number(float(values[name][index])) if name in values else None
                for name in MEASURES
            }
            found.append(HeadScores(layer.layer, head, scores, _trait(scores, base, repeats)))
    return tuple(found)


def telling_heads(heads: Sequence[HeadScores], count: int) -> tuple[tuple[int, int], ...]:
    """The ``count`` heads worth a full map: each trait's strongest first, then the next ones.

    Heads that look elsewhere come before those that look at their own token, and heads without a
    trait last, the most peaked first.
    """

    def clarity(entry: HeadScores) -> float:
        trait = entry.trait
        if trait is NO_TRAIT:
            return -math.inf
        if trait.name in _TRAITLESS:
            return trait.score - 1 if trait.name == "peaked" else -1 - trait.score
        return strength(trait.score, trait.base_rate) or 0.0

    ranked = sorted(heads, key=clarity, reverse=True)
    leaders: dict[str, HeadScores] = {}
    for entry in ranked:
        leaders.setdefault(entry.trait.name, entry)
    elsewhere = leaders.keys() - {"self", *_TRAITLESS}
    first = [entry for name, entry in leaders.items() if name in elsewhere]
    ordered = dict.fromkeys(
        (entry.layer, entry.head) for entry in [*first, *leaders.values(), *ranked]
    )
    return tuple(ordered)[:count]
