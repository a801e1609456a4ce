"""A scan as a page: the map, the bars of the ranking, the maps, every number in a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attnviz.ablate.effect_map import EffectGrid
from attnviz.ablate.gradients import gradient_order
from attnviz.ablate.grid import effect_grid, gradient_grid
from attnviz.ablate.metrics import METRICS
from attnviz.ablate.names import variant_name
from attnviz.ablate.order import joint_effects, ranked_effects, scale_of, traits_of
from attnviz.ablate.provenance import UNIT_NAMES, doubts, scan_words
from attnviz.ablate.ranking import ranking_titles
from attnviz.ablate.view import AblationView
from attnviz.draw.diverging import diverging_steps
from attnviz.draw.drawing import Cells, Drawing, Item, Label, Tip
from attnviz.draw.legend_figure import legend_drawing
from attnviz.draw.map_figure import map_drawing
from attnviz.draw.page import Page, Section, Table
from attnviz.draw.palette import DIVERGING, colour_table, contrasting, to_hex
from attnviz.draw.provenance import trait_text
from attnviz.engine.effects import METRICS as NAMES
from attnviz.engine.effects import AblationReport, Effect, Metric

__all__ = ["ablation_page", "bars_drawing", "effect_drawing", "power_words"]

_LEFT, _TOP = 44.0, 26.0
_TALL = 24.0
_WIDE, _NARROW = 58.0, 18.0
_MOST_WIDE = 16
_LINE = 22.0
_BAR = 220.0
_TRAIT_ROOM = 16
_SHADES = {True: 215, False: 40}
_LEGEND_STEPS = 128


def power_words(grid: EffectGrid, unit: str) -> str:
    """The unit of the numbers in the cells."""
    return f"{unit} x 1e{grid.scale.power}" if grid.scale.power else unit


def effect_drawing(grid: EffectGrid, title: str, unit: str) -> Drawing:
    """A cell a removal, its value in it where heads are few, else in a tip; a colour bar below."""
    rows, columns = grid.values.shape
    cell = _WIDE if columns <= _MOST_WIDE else _NARROW
    steps = diverging_steps(grid.values, grid.scale.limit)
    width, height = columns * cell, rows * _TALL
    items: list[Item] = [Cells(_LEFT, _TOP, width, height, steps, DIVERGING)]
    every = 1 if cell == _WIDE else 2
    items += [
        Label(_LEFT + (column + 0.5) * cell, _TOP - 8, grid.columns[column], "axis", "middle")
        for column in range(0, columns, every)
    ]
    items += [
        Label(_LEFT - 8, _TOP + (row + 0.65) * _TALL, name, "axis", "end")
        for row, name in enumerate(grid.rows)
    ]
    items += _values(grid, steps.tolist(), cell)
    items += _legend(grid, _TOP + height + 14, unit)
    return Drawing(title, max(_LEFT + width + 8, 460), _TOP + height + 52, tuple(items))


def _values(grid: EffectGrid, steps: list[list[int]], cell: float) -> Iterator[Item]:
    table = colour_table(DIVERGING)
    for row, values in enumerate(grid.values.tolist()):
        for column, value in enumerate(values):
            x, y = _LEFT + column * cell, _TOP + row * _TALL
            if np.isnan(value):
                continue
            if cell == _WIDE:
                ink = to_hex(contrasting(table[steps[row][column]]))
                text = grid.scale.text(value)
                yield Label(x + cell / 2, y + 16, text, "value", "middle", ink=ink)
            name = f"{grid.rows[row]}{grid.columns[column]}: {value:.6g}"
            yield Tip(x, y, cell, _TALL, name)


def _legend(grid: EffectGrid, y: float, unit: str) -> Iterator[Item]:
    """The colour bar: both signs, the same range both ways."""
    limit = grid.scale.limit
    first = -1.0 if grid.scale.signed else 0.0
    roots = np.linspace(first, 1.0, _LEGEND_STEPS)
    values = np.sign(roots) * roots**2 * limit
    length = 256.0
    yield Cells(_LEFT, y, length, 12, diverging_steps(values[None], limit), DIVERGING)
    for factor in (-1.0, -0.25, 0.0, 0.25, 1.0):
        if factor >= first:
            root = np.sign(factor) * abs(factor) ** 0.5
            x = _LEFT + length * (root - first) / (1 - first)
            text = grid.scale.text(factor * limit) if factor else "0"
            yield Label(x, y + 26, text, "faint", "middle")
    words = f"{power_words(grid, unit)}, colour: √size"
    yield Label(_LEFT + length + 24, y + 10, words, "faint")


def bars_drawing(
    report: AblationReport, view: AblationView, rows: Sequence[Effect], title: str
) -> Drawing:
    """A row a removal: its name, its bar, its value with the interval, its pattern."""
    metric, scale = METRICS[report.metric], scale_of(report.effects, report.metric)
    traits = traits_of(view)
    names = [variant_name(report, effect.variant, view.index_base) for effect in rows]
    left = 12 + 8.0 * max(map(len, names), default=0)
    items: list[Item] = []
    for place, (name, effect) in enumerate(zip(names, rows, strict=True)):
        y = place * _LINE
        value = (effect.metric(report.metric) or 0.0) * metric.factor
        long = max(_BAR * min(abs(value) / (scale.limit or 1), 1.0), 1.0)
        step = np.array([[_SHADES[value >= 0]]])
        items.append(Label(0, y + 15, name, "name"))
        items.append(Cells(left, y + 3, long, _LINE - 7, step, DIVERGING))
        words = [_with_interval(report, effect, value)]
        trait = traits.get(effect.variant.heads[0])
        if trait is not None and len(effect.variant.heads) == 1:
            words.append(trait_text(trait, _TRAIT_ROOM))
        items.append(Label(left + _BAR + 14, y + 15, " · ".join(words), "text"))
    return Drawing(title, left + _BAR + 320, len(rows) * _LINE, tuple(items))


def _with_interval(report: AblationReport, effect: Effect, value: float) -> str:
    metric = METRICS[report.metric]
    scale = scale_of(report.effects, report.metric)
    power = f" x 1e{scale.power}" if scale.power else ""
    words = f"{scale.text(value)}{power}"
    if report.metric in effect.ci_low:
        low, high = (
            scale.text(ends[report.metric] * metric.factor)
            for ends in (effect.ci_low, effect.ci_high)
        )
        words += f" [{low}, {high}]"
    return words


_MAPPED = 4


def ablation_page(report: AblationReport, view: AblationView, palette: str) -> Page:
    """Facts, map and ranking, the attention of the first heads, and a table of every removal."""
    sections = [Section(title, "", (drawing,)) for title, drawing in _sections(report, view)]
    maps = _maps(report, view, palette)
    if maps:
        sections.append(Section("Where they look", "", (legend_drawing(),)))
        sections.append(Section("", "", tuple(maps), beside=True))
    name = f"removed heads of {report.model.name}"
    title = " ".join(view.text.split())
    tables = [_table(report, view)] if report.effects else []
    return Page(name, title, _facts(report, view), sections, tables)


def _sections(report: AblationReport, view: AblationView) -> Iterator[tuple[str, Drawing]]:
    """The drawings below the facts, each with its heading."""
    if report.method == "gradient":
        grid, unit = gradient_grid(report, view.index_base), "nats per token"
        title = "First-order importance of each head"
    else:
        grid = effect_grid(report, view.index_base)
        metric = METRICS[report.metric]
        unit = metric.unit or metric.label
        title = f"What is lost when one {UNIT_NAMES[report.unit]} is removed: {metric.label}"
    if grid is not None:
        yield title, effect_drawing(grid, title, unit)
    order, titles = ranked_effects(report, view.top), ranking_titles(report)
    for heading, rows in (
        (titles[0], order.matter),
        (titles[1], order.harm),
        ("Removed together", joint_effects(report)),
    ):
        if rows:
            yield heading, bars_drawing(report, view, rows, heading)


def _facts(report: AblationReport, view: AblationView) -> list[str]:
    notes = (*report.model.notes, *report.notes)
    return [*scan_words(report, view), *notes, *doubts(report, view)]


def _maps(report: AblationReport, view: AblationView, palette: str) -> list[Drawing]:
    """The attention of the first heads of the ranking."""
    if view.patterns is None:
        return []
    seen = {(scores.layer, scores.head): scores for scores in view.patterns.heads}
    order = ranked_effects(report, view.top)
    heads = [effect.variant.heads[0] for effect in order.matter] or gradient_order(report)
    shown = [seen[head] for head in heads if head in seen][:_MAPPED]
    return [map_drawing(view.patterns, scores, palette) for scores in shown]


def _table(report: AblationReport, view: AblationView) -> Table:
    """Every removal and every metric that there is."""
    names = [n for n in NAMES if any(e.metric(n) is not None for e in report.effects)]
    bounded = any(report.metric in effect.ci_low for effect in report.effects)
    titles = ["removed"]
    for name in names:
        titles.append(METRICS[name].full if name != "flip_rate" else "flip rate")
        titles += ["95 % interval"] if name == report.metric and bounded else []
    rows = []
    for effect in report.effects:
        cells = [variant_name(report, effect.variant, view.index_base)]
        for name in names:
            value = effect.metric(name)
            cells.append("–" if value is None else f"{value:.6g}")
            if name == report.metric and bounded:
                cells.append(_interval(effect, name))
        rows.append(cells)
    return Table("Every removal", titles, rows, ("removed",))


def _interval(effect: Effect, name: Metric) -> str:
    if name not in effect.ci_low:
        return "–"
    return f"[{effect.ci_low[name]:.6g}, {effect.ci_high[name]:.6g}]"
