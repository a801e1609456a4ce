"""The removals of a report in the order of its metric, and the scale that they are written on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnviz.ablate.metrics import METRICS
from attnviz.ablate.names import cell_of
from attnviz.ablate.numbers import NumberScale
from attnviz.ablate.view import AblationView
from attnviz.engine.effects import AblationReport, Effect, Metric
from attnviz.records import NO_TRAIT, Trait

__all__ = ["Order", "joint_effects", "ranked_effects", "scale_of", "singles", "traits_of"]


@dataclass(frozen=True)
class Order:
    """The two ends of the ranking."""

    matter: tuple[Effect, ...]
    harm: tuple[Effect, ...]


def singles(report: AblationReport) -> list[Effect]:
    """The removals that have a place in the map."""
    return [effect for effect in report.effects if cell_of(report, effect.variant) is not None]


def joint_effects(report: AblationReport) -> list[Effect]:
    """The removals of heads together that no cell of the map stands for."""
    return [effect for effect in report.effects if cell_of(report, effect.variant) is None]


def ranked_effects(report: AblationReport, top: int) -> Order:
    """The ``top`` removals that matter most, and half as many that do the most harm.

    What is no number has no place among them.
    """
    metric = METRICS[report.metric]
    found = [
        effect
        for effect in report.ranked()
        if cell_of(report, effect.variant) is not None
        and math.isfinite(effect.metric(report.metric) or 0.0)
    ]
    if metric.matters < 0:
        found.reverse()
    if not metric.signed:
        return Order(tuple(found[:top]), ())

    def sign(effect: Effect) -> float:
        return (effect.metric(report.metric) or 0.0) * metric.matters

    matter = [effect for effect in found if sign(effect) > 0]
    harm = [effect for effect in reversed(found) if sign(effect) < 0]
    return Order(tuple(matter[:top]), tuple(harm[: (top + 1) // 2]))


def scale_of(effects: Sequence[Effect], name: Metric) -> NumberScale:
    """How the values of one metric are written over these effects."""
    metric = METRICS[name]
    values = [effect.metric(name) for effect in effects]
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value)]
    return NumberScale(max(sizes, default=0.0) * metric.factor, metric.signed, name == "flip_rate")


def traits_of(view: AblationView) -> Mapping[tuple[int, int], Trait]:
    """The trait of each head whose attention was observed."""
    heads = view.patterns.heads if view.patterns is not None else ()
    return {
        (scores.layer, scores.head): scores.trait
        for scores in heads
        if scores.trait is not NO_TRAIT
    }
