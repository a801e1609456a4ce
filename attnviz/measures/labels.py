"""From a head's scores and base rates to the label that names it, or none: the one place for it.

``patterns`` measures scores on thousands of tokens, and a score names a head from ``THRESHOLD`` on.
Such labels are ``KnownLabels`` for ``heads`` and ``ablate``. Where a model has none, the text at
hand names a head if ``evidence`` holds that chance did not do it; in either case the share of what
a score could gain over its base rate must reach the same threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from math import sqrt
from typing import NamedTuple

from attnviz.measures.registry import LABELS, label_named
from attnviz.records import HeadLabel, Source

THRESHOLD = 0.2
"""The share of what a score could gain over its base rate from which it names a head."""

_DEVIATIONS = 3.0
"""The least standard errors of the base rate's share that a relation must gain."""

_FALSE_LABELS = 0.01
"""How many labels chance may give to all heads of a model together."""

_PARTS = {"delimiter": ("first", "separator")}
"""Labels whose tokens contain those of a sharper one."""

_PART = 0.5
"""Of a label's score, from which a sharper label that it contains takes its place."""

SINK = "first"

_SEEKER = "induction"
"""A head that looks for repetitions rests on the first token wherever there is none (null
attention, Vig & Belinkov 2019), which in most texts is nearly everywhere: it is named for what it
seeks. Not so of ``duplicate``: where the first token comes again, resting on it looks the same."""


class KnownLabel(NamedTuple):
    """The label that thousands of tokens gave to a head.

    name: of the label; None where none reached its threshold.
    score: behind it, in [0, 1]; NaN without one.
    """

    name: str | None
    score: float


class KnownLabels(NamedTuple):
    """Labels of a model's heads that were measured before, on more than the text at hand.

    source: the card of the bundled model, or ``patterns``.
    heads: by (layer, head), both from 0.
    date: when ``patterns`` kept them, such as ``2026-11-21``; empty where that is not known.
    """

    source: Source
    heads: Mapping[tuple[int, int], KnownLabel]
    date: str = ""

    def named(self) -> dict[tuple[int, int], HeadLabel]:
        """Return the label of each head that has one, with nothing of a text."""
        return {
            place: self.label(label.name, label.score)
            for place, label in self.heads.items()
            if label.name is not None
        }

    def label(self, name: str, score: float) -> HeadLabel:
        """Return a label of this source, with nothing of a text."""
        measure = label_named(name)
        return HeadLabel(
            name=name,
            letter=measure.letter,
            score=score,
            base_rate=math.nan,
            short=measure.short,
            said=measure.said,
            source=self.source,
            date=self.date,
        )


def strength(score: float | None, *floors: float | None) -> float | None:
    """Return the share of what a score could gain over the highest of its floors that it has
    gained.

    At most 1; below 0 for a score under its floor; None where score or floors were not measured,
    or nothing can be gained.
    """
    known = [floor for floor in floors if floor is not None]
    if score is None or not known or max(known) > 1 - 1e-6:
        return None
    floor = max(known)
    return (score - floor) / (1 - floor)


def strengths(
    names: Iterable[str],
    scores: Mapping[str, float | None],
    base_rate: Mapping[str, float | None],
    floors: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Return the strength of each name that has one, over its base rate and its further floor."""
    found = {}
    for name in names:
        if base_rate.get(name) is None:
            continue
        value = strength(scores.get(name), base_rate.get(name), (floors or {}).get(name))
        if value is not None:
            found[name] = value
    return found


def clear_deviations(trials: int) -> float:
    """Return the standard errors that a score must gain where ``trials`` heads and names are tried.

    The more are tried, the further one of them strays by chance (Bonferroni's correction).
    """
    from statistics import NormalDist  # brings fractions and decimals, which a card does not need

    return max(NormalDist().inv_cdf(1 - _FALSE_LABELS / max(trials, 1)), _DEVIATIONS)


def testable(name: str, base: float | None, pairs: int, deviations: float) -> bool:
    """Return whether any score of this many pairs could name a head, so high is the base rate.

    Of what is no relation: where the threshold can be reached at all.
    """
    if base is None:
        return False
    return base < 1 - 1e-6 and _is_clear(name, 1.0, base, pairs, deviations)


def best_label(
    found: Mapping[str, float],
    scores: Mapping[str, float | None],
    base_rate: Mapping[str, float | None],
    measured: Mapping[str, int],
    threshold: float = THRESHOLD,
    deviations: float = _DEVIATIONS,
) -> str | None:
    """Return the name of the largest strength that reaches the threshold, or None.

    A relation must also lie clear of chance by so many standard errors, given how many pairs were
    looked at; a label gives way to a sharper one that explains half of it; and ``first`` to a clear
    ``induction``.
    """
    reached = {
        name: value
        for name, value in found.items()
        if value >= threshold
        and _is_clear(
            name, scores.get(name), base_rate.get(name), measured.get(name, 0), deviations
        )
    }
    for whole, parts in _PARTS.items():
        bar = _PART * (scores.get(whole) or 0.0)
        if any(part in reached and (scores.get(part) or 0.0) >= bar for part in parts):
            reached.pop(whole, None)
    label = strongest(reached)
    return _SEEKER if label == SINK and _SEEKER in reached else label


def strongest(reached: Mapping[str, float]) -> str | None:
    """Return the name of the largest strength, of equal ones the first of the registry; None of
    none.
    """
    order = list(LABELS)
    return min(
        reached,
        key=lambda name: (-reached[name], order.index(name) if name in LABELS else len(order)),
        default=None,
    )


def _is_clear(
    name: str, score: float | None, base: float | None, pairs: int, deviations: float
) -> bool:
    if label_named(name).family != "relation":
        return True
    if score is None or base is None or not pairs:
        return False
    return score - base >= deviations * sqrt(base * (1 - base) / pairs)
