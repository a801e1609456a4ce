"""What ``attnviz ablate`` found: the effect of each ablation, in order and by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.numbers import NumberScale
from attnviz.draw.report import Report
from attnviz.engine.effects import (
    METRICS,
    Method,
    Metric,
    MetricInfo,
    Mode,
    Positions,
    Unit,
    Variant,
)
from attnviz.records import NO_LABEL, HeadLabel, HeadsReport, Kind, ModelInfo, Provenance, Tokens

if TYPE_CHECKING:
    from attnviz.draw.document import Document

Head = tuple[int, int]
"""A head as (layer, head), both counted from 0."""

_MOST_LISTED = 4

_SIGNIFICANT = 0.05
"""The chance that any ablation at all is called significant where none does anything."""


@dataclass(frozen=True)
class Effect:
    """What one ablation costs, over one text or as the mean over several.

    texts: over how many texts.
    values: of each metric that the model and the texts have.
    intervals: ends of the 95% bootstrap-t interval of the mean, by metric; empty where there are
        fewer than five texts.
    errors: standard error over the draws of other texts that stood in, by metric; mostly empty.
    token_losses: for each text (tokens,) as in ``Scores``; empty where it was not asked for.
    adjusted: by metric of two signs, the two-sided p of the mean over texts, adjusted for all
        ablations that were tried; empty where there are fewer than five texts.
    """

    variant: Variant
    texts: int = 1
    values: Mapping[Metric, float] = field(default_factory=dict)
    intervals: Mapping[Metric, tuple[float, float]] = field(default_factory=dict)
    errors: Mapping[Metric, float] = field(default_factory=dict)
    token_losses: tuple[NDArray[np.floating], ...] = ()
    adjusted: Mapping[Metric, float] = field(default_factory=dict)

    @property
    def head(self) -> Head | None:
        """Return the head that was ablated; None where it was several."""
        return self.variant.heads[0] if len(self.variant.heads) == 1 else None

    def shown(self, name: Metric) -> float:
        """Return a metric in the unit that is shown; NaN where it is not known."""
        return self.values.get(name, math.nan) * METRICS[name].factor

    def unclear(self, name: Metric) -> bool:
        """Return whether its 95% interval includes zero; not where there is no interval."""
        low, high = self.intervals.get(name, (1.0, 1.0))
        return METRICS[name].signed and low <= 0 <= high

    def significant(self, name: Metric) -> bool:
        """Return whether it differs from zero though many ablations were tried."""
        return not self.unclear(name) and self.adjusted.get(name, 1.0) <= _SIGNIFICANT


class Ranking(NamedTuple):
    """The two ends of the order by a metric: what matters most, and what does clear harm."""

    matter: tuple[Effect, ...]
    harm: tuple[Effect, ...]


def scale_of(effects: Sequence[Effect], name: Metric) -> NumberScale:
    """Return how the values of one metric are written over these effects."""
    values = (effect.shown(name) for effect in effects)
    return NumberScale.over(values, METRICS[name].signed, METRICS[name].percent)


@dataclass(frozen=True, repr=False)
class AblationReport(Report, Provenance):
    """What one run found, and in what surroundings.

    model: where the numbers come from.
    kind: the attention whose heads were ablated.
    texts: the tokens of each text; of an encoder–decoder what its encoder read.
    effects: of every ablation that was measured, in the order in which they were asked for.
    targets: the decoder's tokens of each text; empty for other models.
    mode, unit, method, positions: how heads were ablated and what was measured.
    metric: the one that ranks and colours.
    baseline: the clean model's own numbers, mean over the texts; ``loss`` in nats per token.
    control: what it costs to remove a random direction of the norm of the named ablation instead.
    gradients: first-order importance |dL/dξ| of each (layer, head), mean over the texts; empty
        where it was not asked for.
    rank_correlation: Spearman's, between ``gradients`` and the exact metric; None unless both ran.
    reference: what the replacement values come from, in words; None for zero.
    draws: how many other texts stood in for each text.
    texts_wanted: how many texts there were to scan; more than there are where it was cut off.
    target: what the decoder of an encoder–decoder read with the first text, safe or not.
    answer, foil: the tokens whose logits are compared, safe or not.
    patterns: the attention of the ranked heads over the first text, for their labels and small
        maps; None where it was not observed.
    top: heads in the ranking.
    by_token: show where in the first text the ablations hurt.
    """

    model: ModelInfo
    kind: Kind
    texts: tuple[Tokens, ...]
    effects: tuple[Effect, ...]
    targets: tuple[Tokens, ...] = ()
    mode: Mode = "zero"
    unit: Unit = "head"
    method: Method = "exact"
    positions: Positions = "all"
    metric: Metric = "loss_delta"
    baseline: Mapping[str, float] = field(default_factory=dict)
    control: tuple[Effect, ...] = ()
    gradients: Mapping[Head, float] = field(default_factory=dict)
    rank_correlation: float | None = None
    reference: str | None = None
    draws: int = 1
    texts_wanted: int = 1
    target: str | None = None
    answer: str | None = None
    foil: str | None = None
    patterns: HeadsReport | None = None
    top: int = 8
    by_token: bool = False

    command = "ablate"
    lists = ("heads", "together")

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.ablate.data import ablation_data

        return ablation_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.ablate.data import ablation_rows

        return iter(ablation_rows(self))

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.ablate.document import ablation_document

        return ablation_document(self, explain=explain, hints=hints)

    @property
    def ranked_by(self) -> MetricInfo:
        """Return the metric that ranks and colours."""
        return METRICS[self.metric]

    @property
    def singles(self) -> list[Effect]:
        """Return the ablations that have a place in the map."""
        return [effect for effect in self.effects if self.cell(effect.variant) is not None]

    @property
    def joint(self) -> list[Effect]:
        """Return those of heads together that no cell of the map stands for."""
        return [effect for effect in self.effects if self.cell(effect.variant) is None]

    @cached_property  # asked for by every ablation
    def labels(self) -> Mapping[Head, HeadLabel]:
        """Return the label of each head whose attention was observed, and that has one."""
        heads = self.patterns.heads if self.patterns is not None else ()
        return {
            (scores.layer, scores.head): scores.label
            for scores in heads
            if scores.label is not NO_LABEL
        }

    @property
    def ranks(self) -> bool:
        """Return whether the order says something about the heads: several texts, and trained
        weights.
        """
        bounded = any(self.metric in effect.intervals for effect in self.effects)
        return bounded and self.model.weights != "random"

    @property
    def by_gradient(self) -> list[Head]:
        """Return every head with a gradient, the most important first."""
        return sorted(self.gradients, key=lambda head: -self.gradients[head])

    def ranking(self, top: int | None = None) -> Ranking:
        """Return the ``top`` ablations that matter most, and half as many that do significant harm.

        Where the order is no ranking, those with the largest effects of either sign. What is no
        number has no place among them.
        """
        top = self.top if top is None else top
        metric = self.ranked_by
        found = [e for e in self.singles if math.isfinite(e.shown(self.metric))]
        found = [e for e in found if e.values[self.metric] or not metric.signed]
        if not self.ranks:
            found.sort(key=lambda effect: -abs(effect.values[self.metric]))
            return Ranking(tuple(found[:top]), ())
        found.sort(key=lambda effect: -metric.matters * effect.values[self.metric])
        matter = [e for e in found if e.values[self.metric] * metric.matters >= 0]
        harm = [
            e
            for e in reversed(found)
            if e.values[self.metric] * metric.matters < 0 and e.significant(self.metric)
        ]
        return Ranking(tuple(matter[:top]), tuple(harm[: (top + 1) // 2]))

    def metrics_aside(self, effects: Sequence[Effect] | None = None) -> list[Metric]:
        """Return the metrics with a column behind the one that ranks, in the table of these
        effects.
        """
        shown = self.effects if effects is None else effects
        return [
            name
            for name, metric in METRICS.items()
            if metric.aside and name != self.metric and any(name in e.values for e in shown)
        ]

    def cell(self, variant: Variant) -> tuple[int, int] | None:
        """Return its place (layer, column) in the map: its head, key/value head, or column 0 of a
        layer.

        None for heads that were ablated together beyond the report's unit.
        """
        layer, head = variant.heads[0]
        heads = variant.in_layer(layer)
        if len(variant.layers) > 1 or variant.name is not None:
            return None
        if self.unit == "layer":
            return (layer, 0) if len(heads) == self.model.heads else None
        if self.unit == "kv-head":
            group = self.model.heads // self.model.kv_heads
            whole = tuple(range(head, head + group))
            return (layer, head // group) if heads == whole and head % group == 0 else None
        return (layer, head) if len(heads) == 1 else None

    def column(self, column: int) -> str:
        """Return the name over a column of the map."""
        if self.unit == "layer":
            return "layer"
        return f"{'KV' if self.unit == 'kv-head' else 'H'}{column + self.index_base}"

    def name(self, variant: Variant, index_base: int | None = None) -> str:
        """Such as ``L2H5``, ``L2KV1``, ``L2``, or the names of heads that went together."""
        base = self.index_base if index_base is None else index_base
        place = self.cell(variant)
        if place is not None:
            layer, column = place[0] + base, place[1] + base
            letters = {"head": f"H{column}", "kv-head": f"KV{column}", "layer": ""}[self.unit]
            return f"L{layer}{letters}"
        if variant.name is not None:
            return variant.name
        names = [f"L{layer + base}H{head + base}" for layer, head in variant.heads]
        if len(names) <= _MOST_LISTED:
            return " ".join(names)
        return f"{' '.join(names[: _MOST_LISTED - 1])} and {len(names) - _MOST_LISTED + 1} more"
