"""What ``attnviz ablate`` has to say: the map, the ranking, where heads look, where it hurts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from attnviz.ablate.number_scale import NumberScale
from attnviz.ablate.records import AblationReport, Effect, Head, scale_of
from attnviz.ablate.terminal import (
    WIDEST_CELL,
    EffectGrid,
    effect_map,
)
from attnviz.ablate.words import about, caveats, explanation, map_title, ranking_titles
from attnviz.draw import document as doc
from attnviz.draw.blocks import Block, stack
from attnviz.draw.palette import DIVERGING
from attnviz.draw.panels import maps_block
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import label_text, label_words
from attnviz.draw.scale import diverging_steps
from attnviz.draw.theme import Theme
from attnviz.engine.effects import METRICS, Metric
from attnviz.records import Tokens

_BESIDE = doc.Beside(44, 4, yields=True)
"""The columns that a map beside the ranking has at least, for its title and its legend."""

_STRIP = Tokens((0,), ("nats",), (True,))
"""The one row of a text that is coloured token by token."""

_LONGEST = 100
_LABEL_ROOM = 14
_SMALL_LINES, _SMALL_COLUMNS = 7, 15
_MOST_SMALL, _MOST_MAPPED, _MOST_FOLLOWED = 10, 4, 3


def ablation_document(report: AblationReport, explain: bool = False) -> doc.Document:
    """Everything that one run shows."""
    map_and_ranking: list[doc.Part] = _ranking(report)
    grid = effect_grid(report)
    if grid is not None and grid.values.size > 1:
        map_and_ranking.insert(0, _map(grid, map_title(report)))
    groups = [
        doc.Group(about(report)),
        doc.Group([doc.Note(note) for note in (*report.model.notes, *report.notes)]),
        doc.Group(map_and_ranking, beside=_BESIDE if len(map_and_ranking) > 1 else None),
        doc.Group(_together(report)),
        doc.Group(_patterns(report)),
        doc.Group(_where_it_hurts(report) if report.by_token else []),
        doc.Group([doc.Say(text) for text in caveats(report)]),
        doc.Group([_every_ablation(report)] if report.effects else [], full=True),
    ]
    return doc.Document(
        f"removed heads of {report.model.name}",
        " ".join(report.text.split()),
        groups,
        [doc.Say(text, _LONGEST) for text in explanation(report)] if explain else (),
        [doc.Facts([(hint, False) for hint in report.hints])] if report.hints else (),
    )


# The map -------------------------------------------------------------------------------------


def effect_grid(report: AblationReport) -> EffectGrid | None:
    """What every ablation with a place costs, or the gradients; None where there is nothing."""
    if report.method == "gradient":
        return _grid(report, report.gradients, NumberScale(0.0, False), "nats per token")
    metric = report.ranked_by
    values = {}
    for effect in report.effects:
        place, value = report.cell(effect.variant), effect.shown(report.metric)
        if place is not None and math.isfinite(value):
            values[place] = value
    scale = NumberScale(0.0, metric.signed, metric.percent)
    return _grid(report, values, scale, metric.unit or metric.label)


def _grid(
    report: AblationReport, values: Mapping[Head, float], scale: NumberScale, unit: str
) -> EffectGrid | None:
    if not values:
        return None
    layers = sorted({layer for layer, _ in {**values, **report.gradients}})
    heads = report.gradients if report.unit == "head" else ()  # what a budget left out stays blank
    columns = sorted({column for _, column in [*values, *heads]})
    cells = np.full((len(layers), len(columns)), np.nan)
    for (layer, column), value in values.items():
        cells[layers.index(layer), columns.index(column)] = value
    return EffectGrid(
        cells,
        [f"L{layer + report.index_base}" for layer in layers],
        [report.column(column) for column in columns],
        NumberScale(float(np.nanmax(np.abs(cells))), scale.signed, scale.percent),
        unit,
    )


def _map(grid: EffectGrid, title: str) -> doc.HeadGrid:
    scale = grid.scale
    steps = diverging_steps(grid.values, scale.limit)
    cells = {}
    for (row, column), value in np.ndenumerate(grid.values):
        if not math.isnan(value):
            strength = math.copysign(math.sqrt(abs(value) / (scale.limit or 1.0)), value)
            tint = doc.Tint(int(steps[row, column]), DIVERGING)
            tip = f"{grid.rows[row]}{grid.columns[column]}: {value:.6g}"
            cells[row, column] = doc.Cell(strength, tint, scale.text(value), tip=tip)

    def screen(theme: Theme, room: int) -> Block:
        above = wrapped([(title, True)], room, theme)
        return stack([Block(tuple(above), room), effect_map(grid, theme, room)], gap=0)

    return doc.HeadGrid(
        grid.rows,
        grid.columns,
        cells,
        [(title, True)],
        scale=_scale(scale, grid.unit),
        wide=WIDEST_CELL,
        screen=screen,
    )


def _scale(scale: NumberScale, unit: str) -> doc.Scale:
    """The colour bar: the same range both ways where there are two signs."""
    first = -1.0 if scale.signed else 0.0
    ticks = [
        (
            (root - first) / (1 - first),
            scale.text(math.copysign(root**2, root) * scale.limit) if root else "0",
        )
        for root in (-1.0, -0.5, 0.0, 0.5, 1.0)
        if root >= first
    ]
    start = 0 if scale.signed else 128
    return doc.Scale(ticks, f"{unit}{scale.times}", "colour: √size", start, palette=DIVERGING)


# The ranking ---------------------------------------------------------------------------------


def _ranking(report: AblationReport) -> list[doc.Part]:
    """What matters most and what does harm, in one table with the same columns."""
    if report.method == "gradient":
        return [_gradients(report)]
    if not report.singles:
        return []
    order, (title, harm_title) = report.ranking(), ranking_titles(report)
    if not order.matter and not order.harm:
        line = f"{title}: none, no removal changes {report.ranked_by.label}"
        return [doc.Facts([(line, True)])]
    if not order.matter:
        return [_effects(report, order.harm, report.singles, harm_title)]
    table = _effects(report, [*order.matter, *order.harm], report.singles, title)
    if not order.harm:
        return [table]
    split = len(order.matter)
    heading = doc.Row([harm_title], tone="strong", spaced=True)
    rows = [*table.rows[:split], heading, *table.rows[split:]]
    return [doc.Table(table.columns, rows, table.title, ranked=True)]


def _gradients(report: AblationReport) -> doc.Table:
    """A row a head: bar, estimate, label."""
    heads = report.by_gradient[: report.top]
    scale = NumberScale(max(report.gradients.values(), default=0.0), signed=False)
    names = [f"L{layer + report.index_base}H{head + report.index_base}" for layer, head in heads]
    values = [report.gradients[head] for head in heads]
    columns: list[_Column] = [
        (doc.Column(f"gradient{scale.times}"), [scale.text(value) for value in values])
    ]
    columns += _label_column(report, heads)
    title = "The heads that the gradient ranks highest"
    return _ranked_table(title, names, values, scale.limit, columns)


def _effects(
    report: AblationReport, effects: Sequence[Effect], among: Sequence[Effect], title: str
) -> doc.Table:
    """A row an ablation, written on the scale of ``among``: bar, value, doubt, label, the rest."""
    scale = scale_of(among, report.metric)
    values = [effect.shown(report.metric) for effect in effects]
    columns = [_metric_column(effects, among, report.metric)]
    columns += _doubt_columns(report, effects, scale)
    columns += _label_column(report, [effect.head for effect in effects])
    for name in report.metrics_aside(effects):
        columns.append(_metric_column(effects, among, name))
    names = [report.name(effect.variant) for effect in effects]
    return _ranked_table(title, names, values, scale.limit, columns)


_Column = tuple[doc.Column, Sequence[str]]
"""A column and its cells."""


def _ranked_table(
    title: str,
    names: Sequence[str],
    values: Sequence[float],
    limit: float,
    columns: Sequence[_Column],
) -> doc.Table:
    cells = zip(names, *(cells for _, cells in columns), strict=True)
    bars = [(0.0 if math.isnan(value) else value, limit) for value in values]
    rows = [doc.Row(row, bar) for row, bar in zip(cells, bars, strict=True)]
    titles = [doc.Column("", right=False), *(column for column, _ in columns)]
    return doc.Table(titles, rows, [(title, True)], ranked=True)


def _metric_column(effects: Sequence[Effect], among: Sequence[Effect], name: Metric) -> _Column:
    metric, scale = METRICS[name], scale_of(among, name)
    values = [effect.shown(name) for effect in effects]
    sign = "%" * metric.percent
    cells = [scale.text(value) + sign if math.isfinite(value) else "-" for value in values]
    return doc.Column(metric.label + scale.times), cells


def _doubt_columns(
    report: AblationReport, effects: Sequence[Effect], scale: NumberScale
) -> list[_Column]:
    """The interval over texts, else the error over draws; and the control."""
    name, factor = report.metric, report.ranked_by.factor
    columns: list[_Column] = []
    if any(name in effect.intervals for effect in effects):
        cells = []
        for effect in effects:
            ends = [scale.text(end * factor) for end in effect.intervals.get(name, ())]
            cells.append(f"[{', '.join(ends)}]" if ends else "")
        columns.append((doc.Column("95 % interval"), cells))
    elif any(name in effect.errors for effect in effects):
        plain = NumberScale(scale.limit, False, scale.percent)
        errors = [effect.errors.get(name) for effect in effects]
        cells = ["" if error is None else plain.text(error * factor) for error in errors]
        columns.append((doc.Column("std error"), cells))
    controls = {effect.variant.heads: effect.values.get(name) for effect in report.control}
    found = [controls.get(effect.variant.heads) for effect in effects]
    if any(value is not None for value in found):
        cells = ["" if value is None else scale.text(value * factor) for value in found]
        columns.append((doc.Column("random"), cells))
    return columns


def _label_column(report: AblationReport, heads: Sequence[Head | None]) -> list[_Column]:
    """What single heads look at, where any of them has a label."""
    labels = report.labels
    found = [labels.get(head) if head is not None else None for head in heads]
    cells = ["" if label is None else label_text(label, _LABEL_ROOM) for label in found]
    return [(doc.Column("pattern", right=False), cells)] if any(cells) else []


def _together(report: AblationReport) -> list[doc.Part]:
    """What heads cost that were ablated at once, beside the sum of what each costs alone."""
    joint = report.joint
    if not joint:
        return []
    parts: list[doc.Part] = [_effects(report, joint, report.effects, "Removed together")]
    scale = scale_of(report.effects, report.metric)
    alone = {single.head: single.values.get(report.metric) for single in report.singles}
    for effect in joint if report.ranked_by.signed else ():
        costs = [alone.get(head) for head in effect.variant.heads]
        known = [cost for cost in costs if cost is not None]
        if len(known) == len(costs):
            total = f"{scale.text(sum(known))}{scale.times}"
            said = f"{report.name(effect.variant)}: one at a time they add up to {total}"
            parts.append(doc.Facts([(said, False)]))
    return parts


def _every_ablation(report: AblationReport) -> doc.Table:
    """Every ablation and every metric that there is."""
    names = [name for name in METRICS if any(name in e.values for e in report.effects)]
    bounded = any(report.metric in effect.intervals for effect in report.effects)
    columns = [doc.Column("removed", right=False)]
    for name in names:
        metric = METRICS[name]
        columns.append(
            doc.Column(f"{metric.label} in {metric.unit}" if metric.unit else metric.label)
        )
        columns += [doc.Column("95 % interval")] if bounded and name == report.metric else []
    rows = []
    for effect in report.effects:
        cells = [report.name(effect.variant)]
        for name in names:
            cells.append(f"{effect.shown(name):.6g}" if name in effect.values else "–")
            if bounded and name == report.metric:
                factor = METRICS[name].factor
                ends = [f"{end * factor:.6g}" for end in effect.intervals.get(name, ())]
                cells.append(f"[{', '.join(ends)}]" if ends else "–")
        rows.append(doc.Row(cells))
    return doc.Table(columns, rows, [("Every removal", True)])


# Maps and texts ------------------------------------------------------------------------------


def _patterns(report: AblationReport) -> list[doc.Part]:
    """The attention of the first heads of the ranking: small on a terminal, else in full."""
    seen = report.patterns
    if seen is None:
        return []
    order = report.ranking()
    ranked = [*order.matter, *order.harm] or report.effects
    heads = [effect.head for effect in ranked if effect.head is not None]
    if report.method == "gradient":
        heads = report.by_gradient
    elif not heads and len(report.effects) == 1:
        heads = list(report.effects[0].variant.heads)
    known = {(scores.layer, scores.head) for scores in seen.heads}
    shown = [head for head in heads if head in known][:_MOST_SMALL]
    if not shown:
        return []
    record, small, full = seen.record, [], []
    for layer, head in shown:
        scores = seen.scores(layer, head)
        each = partial(
            doc.Map,
            seen.name(layer, head),
            seen.weights(layer, head),
            record.queries,
            record.keys,
            causal=record.causal,
        )
        small.append(each(below=[(label_text(scores.label, _SMALL_COLUMNS), False)]))
        full.append(each(below=[(word, False) for word in label_words(scores)]))
    title = [("Where they look" + (", first text" if len(report.texts) > 1 else ""), True)]
    overview = doc.Maps(small, title, (_SMALL_LINES, _SMALL_COLUMNS), rows=1)
    base = report.index_base
    return [
        doc.Maps(full[:_MOST_MAPPED], title, index_base=base, screen=partial(maps_block, overview))
    ]


def _where_it_hurts(report: AblationReport) -> list[doc.Part]:
    """The first text under joint ablations and the first of the ranking, all on one scale."""
    order = report.ranking()
    candidates = [*report.joint, *order.matter, *order.harm]
    chosen = [effect for effect in candidates if effect.token_losses][:_MOST_FOLLOWED]
    if not chosen:
        line = "Where in the text: not measured, this model or method has no loss for each token"
        return [doc.Facts([(line, True)])]
    tokens = (report.targets or report.texts)[0]
    deltas: list[NDArray[np.floating]] = []
    for effect in chosen:
        delta = np.asarray(effect.token_losses[0], dtype=float)
        deltas.append(np.where(np.isfinite(delta), delta, np.nan))
    limit = max(float(np.nanmax(np.abs(delta), initial=0.0)) for delta in deltas)
    title = "Where in the text it is missed: loss delta of each token"
    title += ", first text" if len(report.texts) > 1 else ""
    names = [report.name(effect.variant) for effect in chosen]
    maps = [
        doc.Map(name, delta[None], _STRIP, tokens, limit=limit)
        for name, delta in zip(names, deltas, strict=True)
    ]
    scale = _scale(NumberScale(limit), "nats of one token")
    return [doc.Maps(maps, [(title, True)], texts=True, scale=scale)]
