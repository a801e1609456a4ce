"""The map of all removals and their ranking: one above the other, or side by side."""

from __future__ import annotations

from attnviz.ablate.effect_map import EffectGrid, effect_map, map_width
from attnviz.ablate.gradients import gradient_ranking
from attnviz.ablate.grid import effect_grid, gradient_grid
from attnviz.ablate.metrics import METRICS
from attnviz.ablate.names import cell_of
from attnviz.ablate.provenance import UNIT_NAMES
from attnviz.ablate.ranking import ranking
from attnviz.ablate.view import AblationView
from attnviz.draw.blocks import Block, beside, stack, widest
from attnviz.draw.prose import wrapped
from attnviz.draw.theme import Theme
from attnviz.engine.effects import AblationReport

__all__ = ["map_and_ranking"]

_GAP = 4
_LEAST_MAP = 44
"""Columns that a map beside the ranking has at least, for its title and its legend."""


def map_and_ranking(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    """Both, side by side where the map loses nothing by it."""
    ranked = _ranking(report, view, theme, room)
    grid = _grid(report, view)
    if grid is None or grid.values.size == 1:
        return ranked
    left = room - widest(ranked.lines) - _GAP
    if ranked.lines and left >= max(map_width(grid), _LEAST_MAP):
        drawn = _map(report, grid, theme, left)
        return beside([Block(drawn.lines, left), ranked], _GAP)
    return stack([_map(report, grid, theme, room), ranked])


def _ranking(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    if report.method == "gradient":
        return gradient_ranking(report, view, theme, room)
    if any(cell_of(report, effect.variant) is not None for effect in report.effects):
        return ranking(report, view, theme, room)
    return Block((), 0)


def _grid(report: AblationReport, view: AblationView) -> EffectGrid | None:
    """The metric, or the gradient where nothing was measured."""
    if report.method == "gradient":
        return gradient_grid(report, view.index_base)
    return effect_grid(report, view.index_base)


def _map(report: AblationReport, grid: EffectGrid, theme: Theme, room: int) -> Block:
    metric = METRICS[report.metric]
    if report.method == "gradient":
        title = "First-order importance of each head: size of the loss's derivative by its gate"
        unit = "nats per token"
    else:
        title = f"What is lost when one {UNIT_NAMES[report.unit]} is removed: {metric.label}"
        unit = metric.unit or metric.label
        if report.method == "budget":
            title += ", where it was measured"
    above = wrapped([(title, True)], room, theme)
    return stack([Block(tuple(above), room), effect_map(grid, theme, room, unit)], gap=0)
