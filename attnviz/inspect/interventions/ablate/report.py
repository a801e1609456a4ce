"""The report of ``attnviz ablate``: the effect of each ablation, their ranking, their names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.numbers import NumberScale
from attnviz.draw.report import Report, fields_of
from attnviz.draw.signed import Place
from attnviz.draw.values import label_facts, model_facts, table_of, token_facts
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
from attnviz.errors import UsageError
from attnviz.inspect.interventions.ablate.plan import Edge
from attnviz.inspect.interventions.study import NOT_MEASURED, Mean, cell_name
from attnviz.measures.bootstrap import chance_of_largest
from attnviz.records import NO_LABEL, HeadLabel, HeadsRecord, Kind, ModelInfo, Provenance, Tokens

if TYPE_CHECKING:
    from attnviz.mergeable import CorpusRecord

_MOST_LISTED = 4  # the most heads that the name of a joint ablation lists

_OPTIONS = ("reference", "draws", "unit", "method", "positions", "metric", "seed")
"""The options that JSON repeats by their names."""

_LETTERS: Mapping[Unit, str] = {"head": "H", "kv-head": "KV"}
"""What stands before the number of each unit that a layer has several of."""

_OF_LAYER: Mapping[Unit, str] = {"attention": " attention", "ffn": " MLP", "layer": ""}
"""What stands after the number of the layer in the name of each other unit."""


@dataclass(frozen=True)
class Effect:
    """The effect of one ablation over one text, or as the mean over several texts.

    means: the mean of each metric that the model and the texts have. Its base rate is the effect of
        removing a random direction of equal norm instead.
    token_losses: (tokens,) for each text as in ``Scores``; empty if it was not requested. Of one
        text it is measured anyway.
    """

    variant: Variant
    texts: int = 1
    means: Mapping[Metric, Mean] = field(default_factory=dict)
    token_losses: tuple[NDArray[np.floating], ...] = ()

    @property
    def head(self) -> Place | None:
        """Return the (layer, head) of an ablation of one head; None for other ablations."""
        alone = len(self.variant.heads) == 1 and not self.variant.feed_forward
        return self.variant.heads[0] if alone else None

    def value(self, name: Metric) -> float:
        """Return the mean of the metric ``name``; NaN if the model does not have it."""
        return self.means.get(name, NOT_MEASURED).value

    def shown(self, name: Metric) -> Mean:
        """Return the mean of the metric ``name`` in the unit of the screen, such as percent."""
        return self.means.get(name, NOT_MEASURED).times(METRICS[name].factor)


class Ranking(NamedTuple):
    """The ends of a ranking: heads that matter most, and heads without which the loss falls."""

    matter: tuple[Effect, ...]
    harm: tuple[Effect, ...]


def scale_of(effects: Sequence[Effect], name: Metric) -> NumberScale:
    """Return the common number format of one metric for these effects. name: of the metric."""
    values = (effect.shown(name).value for effect in effects)
    return NumberScale.over(values, METRICS[name].signed, METRICS[name].percent)


@dataclass(frozen=True, repr=False)
class AblationReport(Report, Provenance):
    """The report of ``attnviz ablate``: the effect of each ablation, and the options of the run.

    texts: the tokens of each text; of an encoder–decoder those of its encoder.
    effects: of every measured ablation, in the order of the request.
    targets: the decoder's tokens of each text; empty for other models.
    metric: the one that ranks heads and colours cells. baseline: the numbers of the model with
        every head, mean over the texts; ``loss`` in nats per token. gradients: first-order
        importance |dL/dξ| of each (layer, head), mean over the texts; empty if not requested.
    rank_correlation: Spearman's, between ``gradients`` and the exact metric; None unless both ran.
    reference: a description of the source of the replacement values; None for zero.
    draws: the number of other texts whose values replaced those of each text.
    texts_wanted: the number of texts to scan; more than ``texts`` if the scan was interrupted.
    target: the decoder's text for the first text; not yet safe for a terminal.
    answer, foil: the tokens whose logits are compared; not yet safe for a terminal.
    patterns: the attention of the ranked heads over the first text, for their labels and small
        maps; None if it was not observed.
    by_token: whether the change of each token's loss in the first text is shown.
    classes: the labels of a classifier, whose loss is −ln p of the label that it predicts with
        every head; empty for other models.
    counts: of a corpus, the number of texts and of their tokens; ``texts`` then has the first one.
    edges: those that were hidden in the heads, which were not removed then. edge_draws: how many
        draws of random edges their base rates are the mean of. random_edges: the metric of the
        ablation ``leading`` for each draw that was measured.
    record: of a corpus, all numbers behind the report; it adds up with those of other shards.
        own_loss: whether the loss is a person's own function of a module's output, in a unit of its
        own.
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
    gradients: Mapping[Place, float] = field(default_factory=dict)
    rank_correlation: float | None = None
    reference: str | None = None
    draws: int = 1
    texts_wanted: int = 1
    target: str | None = None
    answer: str | None = None
    foil: str | None = None
    patterns: HeadsRecord | None = None
    top: int = 8
    by_token: bool = False
    classes: tuple[str, ...] = ()
    counts: tuple[int, int] | None = None
    edges: tuple[Edge, ...] = ()
    edge_draws: int = 0
    random_edges: tuple[float, ...] = ()
    known: Mapping[Place, HeadLabel] = field(default_factory=dict)
    record: CorpusRecord | None = None
    own_loss: bool = False

    command = "ablate"
    lists = ("heads", "together")

    def data(self) -> dict[str, Any]:
        """Return the report as one JSON object.

        ``heads`` has an entry for each ablation of a head (or other unit of the report), in the
        order of the scan, and ``together`` one for each set of heads that were ablated together.
        Heads that were not measured, because of ``--method gradient`` or a budget, have only their
        gradients in ``heads``.
        """
        report = replace(self, index_base=0)
        first = token_facts(self.texts[0]) if self.texts else {"tokens": [], "token_ids": []}
        lists = {"texts": self.texts if len(self.texts) > 1 else (), "targets": self.targets}
        return {
            "schema": "attnviz.ablate/1",
            "model": model_facts(self.model),
            "text": self.text,
            "source": self.source or None,
            "kind": self.kind,
            **first,
            **{name: [*map(token_facts, texts)] for name, texts in lists.items() if texts},
            "text_count": self.text_count,
            "mode": "edge" if self.edges else self.mode,
            **({"edges": [edge._asdict() for edge in self.edges]} if self.edges else {}),
            **fields_of(self, _OPTIONS),
            "index_base": 0,
            **fields_of(self, ("answer", "foil")),
            **({"labels": self.classes} if self.classes else {}),
            "complete": self.complete,
            "seconds": round(self.seconds, 3),
            **fields_of(self, ("notes", "baseline", "rank_correlation")),
            **({} if math.isnan(self.chance) else {"chance": self.chance}),
            "heads": [
                *(effect_entry(report, effect) for effect in report.singles),
                *(_known_of(report, head) for head in report.unmeasured),
            ],
            "together": [effect_entry(report, effect) for effect in report.joint],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each ablation, or head with a gradient alone."""
        report = replace(self, index_base=0)
        rows = [
            effect_entry(report, effect)
            | {"texts": effect.texts, "removed": " ".join(report.removed(effect.variant))}
            for effect in self.effects
        ]
        for head in self.unmeasured:
            name = dict.fromkeys(("name", "removed"), report.head_name(head))
            rows.append(_known_of(report, head) | name | {"texts": self.text_count})
        names = ("name", "layer", "head", "removed", "texts")
        return table_of((*names, *METRICS, "ci_low", "ci_high", "gradient"), rows)

    def __getitem__(self, head: str | tuple[int, int]) -> Effect:
        """Return the effect of an ablation, ``"L1H2"`` or (layer, head); UsageError if none."""
        name = head if isinstance(head, str) else self.head_name(head)
        named = {self.name(effect.variant): effect for effect in reversed(self.effects)}
        if name not in named:
            names = ", ".join(self.name(effect.variant) for effect in self.effects[:_MOST_LISTED])
            more = ", …" * (len(self.effects) > _MOST_LISTED)
            raise UsageError(f"{name} was not ablated alone here: expected one of {names}{more}")
        return named[name]

    def __iter__(self) -> Iterator[Place]:
        """Yield the (layer, head) of each ablation of one head."""
        return iter([effect.head for effect in self.effects if effect.head is not None])

    def plot(self, *, ax: Any = None) -> Any:
        """Draw the effect of each head, (layer, head), with Matplotlib, and return its axes."""
        from attnviz.draw.drawing_plot import draw_matrix

        values = np.full((self.model.layers, self.model.heads), np.nan)
        for effect in self.effects:
            if effect.head is not None:
                values[effect.head] = effect.shown(self.metric).value
        layers, heads = (range(self.index_base, size + self.index_base) for size in values.shape)
        return draw_matrix(
            values,
            [f"L{layer}" for layer in layers],
            [f"H{head}" for head in heads],
            title=self.ranked_by.label,
            palette=self.palette,
            limit=float(np.nanmax(np.abs(values), initial=0.0)) or 1.0,
            signed=self.ranked_by.signed,
            ax=ax,
        )

    @property
    def ranked_by(self) -> MetricInfo:
        """Return the facts of the metric by which heads are ranked and coloured."""
        metric = METRICS[self.metric]
        unit = metric.unit.removesuffix("/token") if self.classes else metric.unit
        return metric._replace(unit="" if self.own_loss else unit)

    @property
    def loss_unit(self) -> str:
        """Return the loss's unit, to be put behind a number; empty for a person's own loss."""
        return "" if self.own_loss else " nats" if self.classes else " nats/token"

    @property
    def singles(self) -> list[Effect]:
        """Return the ablations with a cell in the grid: of one head, or of one other unit."""
        return [effect for effect in self.effects if self.cell(effect.variant) is not None]

    @property
    def joint(self) -> list[Effect]:
        """Return the ablations of several heads together, which have no cell in the grid."""
        return [effect for effect in self.effects if self.cell(effect.variant) is None]

    @property
    def unmeasured(self) -> list[Place]:
        """Return every (layer, head) with a gradient that was not ablated alone."""
        measured = {effect.head for effect in self.effects}
        return [head for head in self.gradients if head not in measured]

    @property
    def text_count(self) -> int:
        """Return the number of texts that were measured."""
        return len(self.texts) if self.counts is None else self.counts[0]

    @property
    def token_count(self) -> int:
        """Return the number of tokens in the texts that were measured."""
        return sum(map(len, self.texts)) if self.counts is None else self.counts[1]

    @cached_property  # asked for by every ablation
    def labels(self) -> Mapping[Place, HeadLabel]:
        """Return the label of each observed head that has one."""
        known = self.known
        if self.patterns is not None:
            known = {(scores.layer, scores.head): scores.label for scores in self.patterns.heads}
        return {head: label for head, label in known.items() if label != NO_LABEL}

    @property
    def ranks(self) -> bool:
        """Return whether the order of heads has a meaning: many texts, trained parameters."""
        bounded = any(effect.shown(self.metric).interval for effect in self.effects)
        return bounded and self.model.weights != "random"

    @cached_property
    def chance(self) -> float:
        """Return the p-value of the largest change of loss over one text, given all ablations.

        See ``chance_of_largest``, which compares all ablations that were measured. The result is
        NaN if the loss of each token is not known, and for another metric, several texts, or hidden
        edges, which have a control.
        """
        losses = [effect.token_losses for effect in self.effects]
        apart = self.metric != "loss_delta" or self.texts_wanted != 1 or bool(self.edges)
        if apart or not losses or not all(losses):
            return math.nan
        return chance_of_largest(np.array([text for (text,) in losses]))

    @property
    def by_gradient(self) -> list[Place]:
        """Return every (layer, head) with a gradient, the most important first."""
        return sorted(self.gradients, key=lambda head: -self.gradients[head])

    def ranking(self, top: int | None = None) -> Ranking:
        """Return the ablations that matter most, and those that do significant harm.

        top: how many matter; half as many that do harm. If the order is not meaningful, the largest
            effects of either sign are returned. Effects that are not finite are left out.
        """
        top, metric = self.top if top is None else top, self.ranked_by
        sizes = [(effect.value(self.metric) * metric.matters, effect) for effect in self.singles]
        kept = [own for own in sizes if math.isfinite(own[0]) and (own[0] or not metric.signed)]
        kept.sort(key=lambda entry: -entry[0] if self.ranks else -abs(entry[0]))
        if not self.ranks:
            return Ranking(tuple(effect for _, effect in kept[:top]), ())
        matter = [effect for size, effect in kept if size >= 0]
        harm = [
            effect
            for size, effect in reversed(kept)
            if size < 0 and effect.shown(self.metric).significant
        ]
        return Ranking(tuple(matter[:top]), tuple(harm[: (top + 1) // 2]))

    @property
    def leading(self) -> Effect:
        """Return the effect that a finding on edges names: hidden in all heads, or the largest."""
        return (*self.joint, *self.ranking(1).matter, *self.effects)[0]

    def metrics_aside(self, effects: Sequence[Effect] | None = None) -> list[Metric]:
        """Return the metrics that get a table column besides the one that ranks the heads."""
        shown = self.effects if effects is None else effects
        return [
            name
            for name, metric in METRICS.items()
            if metric.aside and name != self.metric and any(name in e.means for e in shown)
        ]

    def cell(self, variant: Variant) -> Place | None:
        """Return an ablation's cell, (layer, head or 0), or key/value head; None for several."""
        layer = variant.layer
        heads = variant.in_layer(layer)
        if len(variant.layers) > 1 or variant.name is not None:
            return None
        if self.unit in _OF_LAYER:
            return (layer, 0) if len(heads) in (0, self.model.heads) else None
        head = heads[0]
        if self.unit == "kv-head":
            group = self.model.heads // self.model.kv_heads
            whole = tuple(range(head, head + group))
            return (layer, head // group) if heads == whole and head % group == 0 else None
        return (layer, head) if len(heads) == 1 else None

    def removed(self, variant: Variant) -> list[str]:
        """Return the names of all heads and feed-forward blocks that an ablation takes away."""
        blocks = [f"L{layer + self.index_base} MLP" for layer in variant.feed_forward]
        return [*map(self.head_name, variant.heads), *blocks]

    def missing(self, variant: Variant) -> str:
        """Return what an ablation takes away as a name; for an edge ``it → cat in L2H5``."""
        edges = ", ".join(edge.name for edge in self.edges)
        return f"{edges} in {self.name(variant)}" if edges else self.name(variant)

    def edge_weight(self, variant: Variant) -> float:
        """Return the edges' weight, summed over keys, mean over queries and heads; else NaN."""
        seen, pairs = self.patterns, np.array(variant.edges)
        known = set() if seen is None else {(scores.layer, scores.head) for scores in seen.heads}
        if seen is None or not pairs.size or not known.issuperset(variant.heads):
            return math.nan
        weights = [seen.weights(*head)[pairs[:, 0], pairs[:, 1]].sum() for head in variant.heads]
        return float(np.mean(weights)) / len(set(pairs[:, 0].tolist()))

    def column(self, column: int) -> str:
        """Return the name over a column of the grid. column: its index, from 0."""
        if self.unit in _OF_LAYER:
            return _OF_LAYER[self.unit].strip() or "layer"
        return f"{_LETTERS[self.unit]}{column + self.index_base}"

    def name(self, variant: Variant) -> str:
        """Return an ablation's name: ``L2H5``, ``L2KV1``, ``L2 MLP``, or those of several parts."""
        cell = self.cell(variant)
        if cell is not None:
            name = cell_name(cell, _LETTERS.get(self.unit, ""), self.index_base)
            return name + _OF_LAYER.get(self.unit, "")
        if variant.name is not None:
            return variant.name
        names = self.removed(variant)
        if len(names) <= _MOST_LISTED:
            return " ".join(names)
        return f"{' '.join(names[: _MOST_LISTED - 1])} and {len(names) - _MOST_LISTED + 1} more"


def effect_entry(report: AblationReport, effect: Effect) -> dict[str, Any]:
    """Return the JSON object of one ablation: its heads and its metrics."""
    variant, head, means = effect.variant, effect.head, effect.means
    entry: dict[str, Any] = {
        "layer": variant.layer if len(variant.layers) == 1 else None,
        "head": head[1] if head else None,
        "name": report.name(variant),
        "removed": [*map(list, variant.heads)],
        **({"feed_forward": variant.feed_forward} if variant.feed_forward else {}),
        **{name: effect.value(name) for name in METRICS},
    }
    if effect.texts > 1:  # of few texts there is no interval
        ends = {name: list(mean.interval) for name, mean in means.items() if mean.interval}
        entry["ci_low"], entry["ci_high"] = ends.get(report.metric, (None, None))
        entry["intervals"] = ends
    adjusted = effect.shown(report.metric).adjusted
    if adjusted is not None:
        entry["adjusted_p"] = adjusted
    errors = {name: mean.error for name, mean in means.items() if mean.error is not None}
    if errors:
        entry["standard_errors"] = errors
    if head is not None:
        entry |= _known_of(report, head)
    bases = {name: mean.base_rate for name, mean in means.items() if mean.base_rate is not None}
    if bases:
        control = "random_edges" if report.edges else "random_direction"
        entry[control] = {name: bases.get(name) for name in METRICS}
    if report.edges:
        entry["edge_weight"] = report.edge_weight(variant)
    if report.by_token and effect.token_losses:
        entry["token_loss_deltas"] = list(effect.token_losses)
    return entry


def _known_of(report: AblationReport, head: Place) -> dict[str, Any]:
    entry: dict[str, Any] = dict(zip(("layer", "head"), head, strict=True))
    if head in report.gradients:
        entry["gradient"] = report.gradients[head]
    label = report.labels.get(head)
    return entry if label is None else {**entry, "trait": label_facts(label)}
