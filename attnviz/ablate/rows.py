"""A row a removal: bar and value, its doubt, the pattern of the head, the other metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnviz.ablate.metrics import METRICS
from attnviz.ablate.names import variant_name
from attnviz.ablate.numbers import NumberScale
from attnviz.ablate.order import scale_of, traits_of
from attnviz.ablate.view import AblationView
from attnviz.draw.blocks import Block
from attnviz.draw.labels import visible
from attnviz.draw.provenance import trait_text
from attnviz.draw.table import Column, table
from attnviz.draw.theme import Theme
from attnviz.engine.effects import AblationReport, Effect, Metric

__all__ = ["effect_rows", "metrics_beside"]

_TRAIT_ROOM = 14
_BESIDE: tuple[Metric, ...] = ("loss_delta", "kl", "flip_rate", "output_mse", "logit_diff")


def effect_rows(
    report: AblationReport,
    rows: Sequence[Effect],
    among: Sequence[Effect],
    view: AblationView,
    theme: Theme,
    room: int,
) -> Block:
    """The table of some effects, written on the scale of ``among``."""
    names = [
        visible(variant_name(report, effect.variant, view.index_base), theme.encoding)
        for effect in rows
    ]
    metric = METRICS[report.metric]
    scale = scale_of(among, report.metric)
    values = [(effect.metric(report.metric) or 0.0) * metric.factor for effect in rows]
    columns = [_metric_column(rows, among, report.metric)]
    columns += _doubt_columns(report, rows, scale)
    traits = traits_of(view)
    shown = [traits.get(effect.variant.heads[0]) for effect in rows]
    if any(len(effect.variant.heads) == 1 for effect in rows) and any(shown):
        cells = [trait_text(trait, _TRAIT_ROOM) if trait else "" for trait in shown]
        columns.append(Column("pattern", cells, left=True))
    columns += [_metric_column(rows, among, name) for name in metrics_beside(report, rows)]
    return table(names, values, scale.limit, columns, theme, room)


def metrics_beside(report: AblationReport, rows: Sequence[Effect]) -> list[Metric]:
    """The metrics that have a column behind the one that the rows are ranked by."""
    return [
        name
        for name in _BESIDE
        if name != report.metric and any(effect.metric(name) is not None for effect in rows)
    ]


def _metric_column(rows: Sequence[Effect], among: Sequence[Effect], name: Metric) -> Column:
    metric, scale = METRICS[name], scale_of(among, name)
    cells = []
    for effect in rows:
        value = effect.metric(name)
        percent = "%" if name == "flip_rate" else ""
        if value is None or not math.isfinite(value):
            cells.append("-")
        else:
            cells.append(scale.text(value * metric.factor) + percent)
    power = f" x 1e{scale.power}" if scale.power else ""
    return Column(metric.label + power, cells)


def _doubt_columns(
    report: AblationReport, rows: Sequence[Effect], scale: NumberScale
) -> list[Column]:
    """The interval over texts, else the error over draws; and the control."""
    name, factor = report.metric, METRICS[report.metric].factor
    columns = []
    if any(name in effect.ci_low for effect in rows):
        cells = [
            f"[{scale.text(effect.ci_low[name] * factor)}, "
            f"{scale.text(effect.ci_high[name] * factor)}]"
            if name in effect.ci_low
            else ""
            for effect in rows
        ]
        columns.append(Column("95 % interval", cells))
    elif any(name in effect.errors for effect in rows):
        plain = NumberScale(scale.limit, False, scale.percent)
        cells = [
            plain.text(effect.errors[name] * factor) if name in effect.errors else ""
            for effect in rows
        ]
        columns.append(Column("std error", cells))
    controls = {effect.variant.heads: effect.metric(name) for effect in report.control}
    found = [controls.get(effect.variant.heads) for effect in rows]
    if any(value is not None for value in found):
        cells = ["" if value is None else scale.text(value * factor) for value in found]
        columns.append(Column("random", cells))
    return columns
