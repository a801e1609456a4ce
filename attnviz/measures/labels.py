"""From a head's scores and base rates to the label that names it, or none: the one place for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from attnviz.measures.registry import LABELS, label_named
from attnviz.records import Source

THRESHOLD = 0.2
"""The share of what a score could gain over its base rate from which it names a head."""

_DEVIATIONS = 3.0
"""The least standard errors of the base rate's share that a relation must gain."""

_FALSE_LABELS = 0.01
"""How many labels of relations chance may give to all heads of a model together."""

_PARTS = {"delimiter": ("first", "separator")}
"""Labels whose tokens contain those of a sharper one."""

_PART = 0.5
"""Of a label's score, from which a sharper label that it contains takes its place."""

_SINK, _SEEKER = "first", "induction"
"""A head that looks for repetitions rests on the first token wherever there is none (null
attention, Vig & Belinkov 2019), which in most texts is nearly everywhere: it is named for what it
seeks. Not so of ``duplicate``: where the first token comes again, resting on it looks the same."""


@dataclass(frozen=True)
class Rule:
    """When a score names a head.

    threshold: the strength from which it does.
    seeking: the strength from which ``induction`` does so in the place of ``first``.
    repeats: how often ``induction`` must have been measured for that.
    deviations: standard errors that a relation must lie clear of chance.
    """

    threshold: float = THRESHOLD
    seeking: float = THRESHOLD
    repeats: int = 0
    deviations: float = _DEVIATIONS


ONE_TEXT = Rule(threshold=0.1, repeats=2)
"""For the few tokens of one text, of which a name is a hint and no proof."""


def strength(score: float | None, *floors: float | None) -> float | None:
    """The share of what a score could gain over the highest of its floors that it has gained.

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
    """The strength of each name that has one, over its base rate and its further floor."""
    found = {}
    for name in names:
        if base_rate.get(name) is None:
            continue
        value = strength(scores.get(name), base_rate.get(name), (floors or {}).get(name))
        if value is not None:
            found[name] = value
    return found


def clear_deviations(trials: int) -> float:
    """The standard errors that a relation must gain where ``trials`` heads and relations are tried.

    The more are tried, the further one of them strays by chance (Bonferroni's correction).
    """
    from statistics import NormalDist  # brings fractions and decimals, which one text does not need

    return max(NormalDist().inv_cdf(1 - _FALSE_LABELS / max(trials, 1)), _DEVIATIONS)


def best_label(
    found: Mapping[str, float],
    scores: Mapping[str, float | None],
    base_rate: Mapping[str, float | None],
    measured: Mapping[str, int],
    rule: Rule,
) -> str | None:
    """The name of the largest strength that reaches the rule's threshold, or None.

    A relation must also lie clear of chance, given how many pairs were looked at; a label gives way
    to a sharper one that explains half of it; and ``first`` to a clear ``induction``.
    """
    reached = {
        name: value
        for name, value in found.items()
        if value >= rule.threshold and _clear(name, scores, base_rate, measured, rule.deviations)
    }
    for whole, parts in _PARTS.items():
        bar = _PART * (scores.get(whole) or 0.0)
        if any(part in reached and (scores.get(part) or 0.0) >= bar for part in parts):
            reached.pop(whole, None)
    order = list(LABELS)
    label = min(
        reached,
        key=lambda name: (-reached[name], order.index(name) if name in LABELS else len(order)),
        default=None,
    )
    if label == _SINK and reached.get(_SEEKER, -math.inf) >= rule.seeking:
        return _SEEKER if measured.get(_SEEKER, 0) >= rule.repeats else label
    return label


def _clear(
    name: str,
    scores: Mapping[str, float | None],
    base_rate: Mapping[str, float | None],
    measured: Mapping[str, int],
    deviations: float,
) -> bool:
    if label_named(name).family != "relation":
        return True
    score, base, pairs = scores.get(name), base_rate.get(name), measured.get(name, 0)
    if score is None or base is None or not pairs:
        return False
    return score - base >= deviations * math.sqrt(base * (1 - base) / pairs)


class KnownLabel(NamedTuple):
    """The label that thousands of tokens gave to a head.

    name: of the label; None where none reached its threshold.
    score: behind it, in [0, 1]; NaN without one.
    """

    name: str | None
    score: float


@dataclass(frozen=True)
class KnownLabels:
    """Labels of a model's heads that were measured before, on more than the text at hand.

    source: the card of the bundled model, or ``patterns``.
    heads: by (layer, head), both from 0.
    """

    source: Source
    heads: Mapping[tuple[int, int], KnownLabel]
