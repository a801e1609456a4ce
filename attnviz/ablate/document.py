"""What ``attnviz ablate`` has to say: the map, the ranking, what the heads do, where it hurts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.ablate.records import AblationReport, Effect, Head, scale_of
from attnviz.ablate.words import (
    about,
    caveats,
    effect_words,
    explanation,
    finding,
    heading,
    map_title,
    ranking_titles,
)
from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale
from attnviz.draw.provenance import label_text, label_words, notes_group
from attnviz.draw.signed import signed_grid, signed_scale
from attnviz.engine.effects import METRICS, Metric
from attnviz.records import Tokens

_STRIP = Tokens((0,), ("",), (True,))
"""The one row of a text that is coloured token by token."""

_LONGEST = 100
_LABEL_ROOM = 19
_MOST_MAPPED, _MOST_FOLLOWED = 4, 4


def ablation_document(report: AblationReport, explain: bool = False) -> doc.Document:
    """Everything that one run shows."""
    grid, tokens = head_grid(report), (report.targets or report.texts)[0]
    found = report.effects
    every = [_effects(report, found, found, "Every ablation")] if found else []
    groups = [
        doc.Group(about(report)),
        notes_group((*report.model.notes, *report.notes), tokens),
        doc.Group([grid] if grid is not None else []),
        doc.Group(ranking_tables(report), spaced=True),
        doc.Group(together(report)),
        doc.Group(attention_maps(report)),
        doc.Group(where_it_hurts(report) if report.by_token else []),
        doc.Group([doc.Say(text) for text in caveats(report)]),
        doc.Group(every, full=True),
    ]
    return doc.Document(
        f"ablated heads of {report.model.name}",
        " ".join(report.text.split()),
        groups,
        [doc.Say(text, _LONGEST) for text in explanation(report)] if explain else (),
        [doc.Facts([(hint, False) for hint in report.hints])] if report.hints else (),
        heading(report),
        report.text if len(report.texts) == 1 else "",
        finding(report),
    )


# The map -------------------------------------------------------------------------------------


def head_grid(report: AblationReport, scaled: bool = True) -> doc.HeadGrid | None:
    """What every ablation with a place costs, or the gradients; None for fewer than two.

    Faint where the interval includes zero. scaled: with a colour bar; a first screen has the
    numbers alone.
    """
    values, unclear = _placed(report)
    if len(values) < 2:
        return None
    metric, gradient = report.ranked_by, report.method == "gradient"
    signed = metric.signed and not gradient
    scale = NumberScale.over(values.values(), signed, metric.percent)
    layers = sorted({layer for layer, _ in {**values, **report.gradients}})
    heads = report.gradients if report.unit == "head" else ()  # what a budget left out stays blank
    columns = sorted({column for _, column in [*values, *heads]})
    places = {head: (layers.index(head[0]), columns.index(head[1])) for head in [*values, *unclear]}
    grid = signed_grid(
        [f"L{layer + report.index_base}" for layer in layers],
        [report.column(column) for column in columns],
        {places[head]: value for head, value in values.items()},
        scale,
        {places[head] for head in unclear},
        "95% interval includes 0",
    )
    grey_words = "grey: 95% interval includes 0" if scaled else "grey: CI includes 0"
    title = map_title(report, brief=not scaled) + scale.times * (not scaled)
    words: doc.Words = [(title, True), *[(grey_words, False)] * bool(unclear)]
    colours = signed_scale(scale, metric.unit or metric.label) if scaled else None
    return grid._replace(title=words, scale=colours)


def _placed(report: AblationReport) -> tuple[Mapping[Head, float], Collection[Head]]:
    """What is shown by (layer, column), and where an interval includes zero."""
    if report.method == "gradient":
        return report.gradients, ()
    values, unclear = {}, set[Head]()
    for effect in report.effects:
        place, value = report.cell(effect.variant), effect.shown(report.metric)
        if place is not None and math.isfinite(value):
            values[place] = value
            unclear |= {place} if effect.unclear(report.metric) else set()
    return values, unclear


# The ranking ---------------------------------------------------------------------------------


def ranking_tables(report: AblationReport, most: int | None = None) -> list[doc.Part]:
    """What matters most, and what is harmful, in two tables with the same columns.

    most: rows of the first, the report's own number by default.
    """
    if report.method == "gradient":
        return [_gradients(report, report.top if most is None else most)]
    if not report.singles:
        return []
    order, (title, harm_title) = report.ranking(most), ranking_titles(report)
    if not order.matter and not order.harm:
        line = f"{title}: none, no ablation changes {report.ranked_by.label}"
        return [doc.Facts([(line, True)])]
    tables = [(order.matter, title), (order.harm, harm_title)]
    return [_effects(report, found, report.singles, title) for found, title in tables if found]


def _gradients(report: AblationReport, most: int) -> doc.Table:
    """A row a head: bar, estimate, label."""
    heads = report.by_gradient[:most]
    scale = NumberScale.over(report.gradients.values(), signed=False)
    names = [report.head_name(head) for head in heads]
    values = [report.gradients[head] for head in heads]
    columns: list[_Column] = [
        (doc.Column(f"gradient{scale.times}"), [scale.text(value) for value in values])
    ]
    columns += _label_column(report, heads)
    title = "Highest by gradient"
    return _ranked_table(title, names, values, scale.limit, columns)


def _effects(
    report: AblationReport, effects: Sequence[Effect], among: Sequence[Effect], title: str
) -> doc.Table:
    """A row an ablation, written on the scale of ``among``: bar, value, doubt, label, the rest."""
    scale = scale_of(among, report.metric)
    values = [effect.shown(report.metric) for effect in effects]
    columns = [_metric_column(effects, among, report.metric)]
    interval, control = _doubt_columns(report, effects, scale)
    columns += [*interval, *_label_column(report, [effect.head for effect in effects]), *control]
    for name in report.metrics_aside(effects):
        columns.append(_metric_column(effects, among, name))
    names = [report.name(effect.variant) for effect in effects]
    grey = [effect.unclear(report.metric) for effect in effects]
    return _ranked_table(title, names, values, scale.limit, columns, grey)


_Column = tuple[doc.Column, Sequence[str]]
"""A column and its cells."""


def _ranked_table(
    title: str,
    names: Sequence[str],
    values: Sequence[float],
    limit: float,
    columns: Sequence[_Column],
    grey: Sequence[bool] = (),
) -> doc.Table:
    cells = zip(names, *(cells for _, cells in columns), strict=True)
    bars = [(0.0 if math.isnan(value) else value, limit) for value in values]
    tones: list[doc.Tone] = ["faint" if each else "plain" for each in grey or [False] * len(names)]
    rows = [doc.Row(row, bar, tone=tone) for row, bar, tone in zip(cells, bars, tones, strict=True)]
    titles = [doc.Column("", right=False), *(column for column, _ in columns)]
    return doc.Table(titles, rows, [(title, True)] if title else (), ranked=True)


def _metric_column(effects: Sequence[Effect], among: Sequence[Effect], name: Metric) -> _Column:
    metric, scale = METRICS[name], scale_of(among, name)
    values = [effect.shown(name) for effect in effects]
    sign = "%" * metric.percent
    cells = [scale.text(value) + sign if math.isfinite(value) else "-" for value in values]
    return doc.Column(metric.label + scale.times), cells


def _doubt_columns(
    report: AblationReport, effects: Sequence[Effect], scale: NumberScale
) -> tuple[list[_Column], list[_Column]]:
    """The interval over texts, else the error over draws; and the control."""
    name, factor = report.metric, report.ranked_by.factor
    columns: list[_Column] = []
    control: list[_Column] = []
    if any(name in effect.intervals for effect in effects):
        cells = []
        for effect in effects:
            ends = [scale.text(end * factor) for end in effect.intervals.get(name, ())]
            cells.append(f"[{', '.join(ends)}]" if ends else "")
        columns.append((doc.Column("95% interval"), cells))
    elif any(name in effect.errors for effect in effects):
        plain = NumberScale(scale.limit, False, scale.percent)
        errors = [effect.errors.get(name) for effect in effects]
        cells = ["" if error is None else plain.text(error * factor) for error in errors]
        columns.append((doc.Column("std error"), cells))
    controls = {effect.variant.heads: effect.values.get(name) for effect in report.control}
    found = [controls.get(effect.variant.heads) for effect in effects]
    if any(value is not None for value in found):
        cells = ["" if value is None else scale.text(value * factor) for value in found]
        control.append((doc.Column("random dir."), cells))
    return columns, control


def _label_column(report: AblationReport, heads: Sequence[Head | None]) -> list[_Column]:
    """What single heads look at, where any of them has a label."""
    labels = report.labels
    found = [labels.get(head) if head is not None else None for head in heads]
    cells = ["" if label is None else label_text(label, _LABEL_ROOM) for label in found]
    return [(doc.Column("label", right=False), cells)] if any(cells) else []


def together(report: AblationReport) -> list[doc.Part]:
    """What heads cost that were ablated at once, beside the sum of what each costs alone."""
    joint = report.joint
    if not joint:
        return []
    parts: list[doc.Part] = [_effects(report, joint, report.effects, "Ablated together")]
    scale = scale_of(report.effects, report.metric)
    alone = {single.head: single.values.get(report.metric) for single in report.singles}
    for effect in joint if report.ranked_by.signed else ():
        costs = [alone.get(head) for head in effect.variant.heads]
        known = [cost for cost in costs if cost is not None]
        if len(known) == len(costs):
            total = f"{scale.text(sum(known))}{scale.times}"
            said = f"{report.name(effect.variant)}: sum of single ablations {total}"
            parts.append(doc.Facts([(said, False)]))
    return parts


# Maps and texts ------------------------------------------------------------------------------


def attention_maps(report: AblationReport) -> list[doc.Part]:
    """The attention of the first heads of the ranking."""
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
    shown = [head for head in heads if head in known][:_MOST_MAPPED]
    if not shown:
        return []
    record = seen.record
    maps = [
        doc.Map(
            seen.name(layer, head),
            seen.weights(layer, head),
            record.queries,
            record.keys,
            below=[(word, False) for word in label_words(seen.scores(layer, head))],
            causal=record.causal,
        )
        for layer, head in shown
    ]
    title = "Attention of these heads" + ", first text" * (len(report.texts) > 1)
    return [doc.Maps(maps, [(title, True)], index_base=report.index_base)]


def where_it_hurts(report: AblationReport) -> list[doc.Part]:
    """The first text under joint ablations and the first of the ranking, all on one scale."""
    maps = token_maps(report)
    if not maps:
        line = "Δ loss by token: not measured, this model or method has no loss for each token"
        return [doc.Facts([(line, True)])]
    title = "Δ loss by token" + ", first text" * (len(report.texts) > 1)
    scale = signed_scale(NumberScale(maps[0].limit), "nats")
    return [doc.Maps(maps, [(title, True)], texts=True, scale=scale)]


def token_maps(report: AblationReport) -> list[doc.Map]:
    """A map of one query for each ablation whose losses by token are known."""
    order = report.ranking()
    candidates = [*report.joint, *order.matter, *order.harm]
    chosen = [effect for effect in candidates if effect.token_losses][:_MOST_FOLLOWED]
    tokens = (report.targets or report.texts)[0]
    deltas: list[NDArray[np.floating]] = []
    for effect in chosen:
        delta = np.asarray(effect.token_losses[0], dtype=float)
        deltas.append(np.where(np.isfinite(delta), delta, np.nan))
    limit = max((float(np.nanmax(np.abs(delta), initial=0.0)) for delta in deltas), default=0.0)
    maps = []
    for effect, delta in zip(chosen, deltas, strict=True):
        name = report.name(effect.variant)
        words: doc.Words = [(name, True), (effect_words(report, effect), False)]
        strip = doc.Map(f"{name} by token", delta[None], _STRIP, tokens, words, limit=limit)
        maps.append(strip)
    return maps
