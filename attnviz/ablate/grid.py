"""From a report to the map's cells: measured removals, or the gradient's estimates."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from attnviz.ablate.effect_map import EffectGrid
from attnviz.ablate.metrics import METRICS
from attnviz.ablate.names import cell_of, column_name
from attnviz.ablate.numbers import NumberScale
from attnviz.engine.effects import AblationReport

__all__ = ["effect_grid", "gradient_grid"]


def effect_grid(report: AblationReport, index_base: int) -> EffectGrid | None:
    """The metric of every removal that has a place; None where none has."""
    metric = METRICS[report.metric]
    values = {}
    for effect in report.effects:
        place, value = cell_of(report, effect.variant), effect.metric(report.metric)
        if place is not None and value is not None and math.isfinite(value):
            values[place] = value * metric.factor
    percent = report.metric == "flip_rate"
    return _grid(report, values, metric.signed, percent, index_base)


def gradient_grid(report: AblationReport, index_base: int) -> EffectGrid | None:
    """The first-order importance of every head; None where it was not asked for."""
    return _grid(report, report.gradients, False, False, index_base)


def _grid(
    report: AblationReport,
    values: Mapping[tuple[int, int], float],
    signed: bool,
    percent: bool,
    index_base: int,
) -> EffectGrid | None:
    if not values:
        return None
    layers = sorted({layer for layer, _ in {**values, **report.gradients}})
    heads = report.gradients if report.unit == "head" else ()  # what a budget left out stays blank
    columns = sorted({column for _, column in [*values, *heads]})
    cells = np.full((len(layers), len(columns)), np.nan)
    for (layer, column), value in values.items():
        cells[layers.index(layer), columns.index(column)] = value
    names = [column_name(report, column, index_base) for column in columns]
    scale = NumberScale(float(np.nanmax(np.abs(cells))), signed, percent)
    return EffectGrid(cells, [f"L{layer + index_base}" for layer in layers], names, scale)
