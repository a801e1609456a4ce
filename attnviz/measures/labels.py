"""The rules by which scores and base rates give a head a label or no label.

``patterns`` measures scores on thousands of tokens and labels a head if its strength reaches
``THRESHOLD``. These labels are ``KnownLabels`` for ``heads`` and ``ablate``. For a model without
them a single text labels a head if ``evidence`` excludes chance and the strength reaches the same
threshold. The strength is the share of the possible gain over the base rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from attnviz.measures.registry import LABELS, label_named
from attnviz.records import SINKS, HeadLabel, Source

THRESHOLD = 0.2  # the least strength, a share of the possible gain, that gives a label
LOCAL = "local"  # the broadest label: it is given only where no other one is
_OF_LOCAL = 0.3  # the least strength of ``local``: most heads give nearby tokens more
_DEVIATIONS = 3.0  # standard errors by which a relation's score must exceed its base rate
_FALSE_LABELS = 0.01  # the labels that chance is expected to give to all heads of a model

# Labels, and more specific ones whose tokens they include.
_PARTS = {"delimiter": ("first", "separator")}
_PART = 0.5  # the share of a label's score from which a more specific label replaces it
SINK = "first"

_SEEKER = "induction"
"""An induction head rests on the first token if there is no repetition (null attention, Vig &
Belinkov 2019), in most texts nearly everywhere: it is named after what it seeks. This does not hold
for ``duplicate``: if the first token is repeated, resting on it looks the same."""


class KnownLabel(NamedTuple):
    """The label of a head measured before on thousands of tokens, and its score; None and NaN."""

    name: str | None
    score: float


class KnownLabels(NamedTuple):
    """Labels of a model's heads that were measured before, on more than the present text.

    source: the card of the bundled model, or ``patterns``. heads: by (layer, head), both from 0.
    date: when ``patterns`` stored them, such as ``2026-11-21``; empty if unknown.
    """

    source: Source
    heads: Mapping[tuple[int, int], KnownLabel]
    date: str = ""

    def named(self) -> dict[tuple[int, int], HeadLabel]:
        """Return by (layer, head) the label of each head that has one, without a text's measure."""
        labels = self.heads.items()
        return {head: self.label(name, score) for head, (name, score) in labels if name is not None}

    def label(self, name: str, score: float) -> HeadLabel:
        """Return a head's label from this source, with its score there and none on this text."""
        return label_of(name, score, source=self.source, date=self.date)


def label_of(name: str, score: float, base_rate: float = math.nan, **more: Any) -> HeadLabel:
    """Return a head's label of this name, with its measure's letter and words, and ``more``."""
    measure = label_named(name)
    words = {"short": measure.short, "said": measure.said, **more}
    return HeadLabel(name, measure.letter, score, base_rate, **words)


def strength(score: float | None, *floors: float | None) -> float | None:
    """Return the strength of a score: (score − floor) / (1 − floor), a share of the possible gain.

    floors: lower ends such as base rates, of which the highest counts. The strength is at most 1;
        below 0 for a score under its floor; None if score or floors were not measured, or if
    the floor is 1.
    """
    floor = max((floor for floor in floors if floor is not None), default=1.0)
    if score is None or floor > 1 - 1e-6:
        return None
    return (score - floor) / (1 - floor)


def least_strength(name: str) -> float:
    """Return the least strength with which a head gets the label of this name."""
    return _OF_LOCAL if name == LOCAL else THRESHOLD


def strengths(
    names: Iterable[str],
    scores: Mapping[str, float | None],
    base_rate: Mapping[str, float | None],
    floors: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Return the strength of each measured score by name, see ``strength``."""
    values = {
        name: strength(scores.get(name), base_rate.get(name), (floors or {}).get(name))
        for name in names
        if base_rate.get(name) is not None
    }
    return {name: value for name, value in values.items() if value is not None}


def clear_deviations(trials: int) -> float:
    """Return how many standard errors above its base rate a score must be to be significant.

    trials: the number of tested heads times labels; more need a larger gain (Bonferroni).
    """
    from statistics import NormalDist  # imports fractions and decimals, which a card does not need

    return max(NormalDist().inv_cdf(1 - _FALSE_LABELS / max(trials, 1)), _DEVIATIONS)


def testable(name: str, base: float | None, pairs: int, deviations: float) -> bool:
    """Return True if even the highest possible score can give this label."""
    return base is not None and base < 1 - 1e-6 and _is_clear(name, 1.0, base, pairs, deviations)


def best_label(
    gains: Mapping[str, float],
    scores: Mapping[str, float | None],
    base_rate: Mapping[str, float | None],
    measured: Mapping[str, int],
    threshold: float = THRESHOLD,
    deviations: float = _DEVIATIONS,
) -> str | None:
    """Return the name of the largest strength that reaches the threshold, or None.

    gains: the strengths by name. scores, base_rate: of the head, and of uniform attention.
    measured: number of word pairs of each relation. A relation must also lie ``deviations``
        standard errors above its base rate. A label gives way to a more specific one that has half
        its score, ``first`` gives way to ``induction``, and ``local`` to every other label.
    """
    reached = {}
    for name, value in gains.items():
        score, base, pairs = scores.get(name), base_rate.get(name), measured.get(name, 0)
        least = max(threshold, least_strength(name))
        if value >= least and _is_clear(name, score, base, pairs, deviations):
            reached[name] = value
    for whole, parts in _PARTS.items():
        bar = _PART * (scores.get(whole) or 0.0)
        if any(part in reached and (scores.get(part) or 0.0) >= bar for part in parts):
            reached.pop(whole, None)
    label = strongest(reached)
    return _SEEKER if label == SINK and _SEEKER in reached else label


def strongest(reached: Mapping[str, float]) -> str | None:
    """Return the strongest name, the first of equals, ``local`` only if alone; None if empty."""
    ranks = {name: rank for rank, name in enumerate(LABELS)}
    order = {
        name: (name == LOCAL, -value, ranks.get(name, len(ranks)))
        for name, value in reached.items()
    }
    return min(order, key=order.__getitem__, default=None)


def _is_clear(
    name: str, score: float | None, base: float | None, pairs: int, deviations: float
) -> bool:
    if label_named(name).family != "relation":
        return True
    if score is None or base is None or not pairs:
        return False
    return score - base >= deviations * math.sqrt(base * (1 - base) / pairs)


def label_look(label: HeadLabel) -> tuple[str, str]:
    """Return a label's words and its colour, RRGGBB; empty for a description or a sink."""
    coloured = label.is_finding and label.name not in SINKS
    return label.said, label_named(label.name).colour if coloured else ""
