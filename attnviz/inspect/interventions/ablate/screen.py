"""The document of ``attnviz ablate``: map, ranking, attention of the heads, losses by token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale
from attnviz.draw.provenance import (
    advised,
    entropy_words,
    label_text,
    label_words,
    notes_group,
    probability,
)
from attnviz.draw.signed import Place, explained, one_line, signed_scale
from attnviz.engine.effects import METRICS, Metric
from attnviz.inspect.interventions.ablate.claims import (
    ablates_every,
    about,
    caveats,
    control_words,
    effect_words,
    explanation,
    finding,
    heading,
    map_title,
    ranking_titles,
)
from attnviz.inspect.interventions.ablate.report import AblationReport, Effect, scale_of
from attnviz.inspect.interventions.means import Mean
from attnviz.inspect.interventions.shown import (
    base_rates,
    effect_grid,
    effect_table,
    label_column,
)
from attnviz.measures.labels import label_look
from attnviz.records import HeadLabel, HeadScores, Tokens

_LABEL_ROOM = 19
_MOST_MAPPED, _MOST_FOLLOWED = 4, 4


def document(report: AblationReport) -> doc.Document:
    """Return the document of a report, with its first screen."""
    grid, tokens = head_grid(report), (report.targets or report.texts)[0]
    found = report.effects
    every = [_effects(report, found, found, "Every ablation")] if found else []
    groups = [
        doc.Group(about(report)),
        notes_group((*report.model.notes, *report.notes), tokens),
        doc.Group([grid] if grid is not None else []),
        doc.Group(ranking_tables(report), spaced=True),
        doc.Group(_together(report)),
        doc.Group(_attention_maps(report)),
        doc.Group(where_it_hurts(report) if report.by_token else []),
        doc.Group([doc.Say(text) for text in caveats(report)]),
        doc.Group(every, full=True),
    ]
    return doc.Document(
        name=f"ablated heads of {report.model.name}",
        title=" ".join(report.text.split()),
        groups=groups,
        explain=explanation(report),
        hints=doc.next_steps(_hints(report)),
        heading=heading(report),
        quoted=report.text if report.text_count == 1 else "",
        finding=finding(report),
        first=advised(partial(first_groups, report), tokens),
    )


def _hints(report: AblationReport) -> list[str]:
    """Return the options to try next on the command line."""
    hints = []
    best = report.ranking(1).matter
    random = report.model.weights == "random"
    has_losses = not report.classes or any(each.token_losses for each in report.effects)
    can_show = "loss" in report.baseline and has_losses and report.record is None
    if best and not report.by_token and can_show:
        chosen = f"--head {report.name(best[0].variant)} " if report.unit == "head" else ""
        hints.append(f"{chosen}--by-token")
    if report.source.endswith("built-in texts"):
        hints.append("--texts FILE your data")
    elif not (report.ranks or report.texts[0].joined or report.edges or random):
        hints.append("--texts FILE for intervals")
    if report.method == "exact" and len(report.effects) > 1 and not ablates_every(report):
        hints.append("--together")
    hints.append("--explain")
    return hints


# The map -------------------------------------------------------------------------------------


def head_grid(report: AblationReport, scaled: bool = True) -> doc.HeadGrid | None:
    """Return a grid of the effects of ablations, or of gradients; None for fewer than two.

    scaled: True adds a colour bar; a first screen has only the numbers.
    """
    found = _placed(report)
    if len(found) < 2:
        return None
    metric, gradient = report.ranked_by, report.method == "gradient"
    values, signed = (one.value for one in found.values()), metric.signed and not gradient
    scale = NumberScale.over(values, signed, metric.percent)
    grid = effect_grid(
        found,
        scale,
        map_title(report, brief=not scaled),
        report.column,
        base=report.index_base,
        blank=report.gradients if report.unit == "head" else (),  # what a budget left out
        bar=signed_scale(scale, metric.unit or metric.label) if scaled else None,
    )
    labels = {report.head_name(head): label_look(each) for head, each in report.labels.items()}
    return grid.with_known(labels, "gradient" if gradient else "effect of ablation")


def _placed(report: AblationReport) -> Mapping[Place, Mean]:
    """Return the values in the cells of the grid, by (layer, column); only finite ones."""
    if report.method == "gradient":
        return {head: Mean(value) for head, value in report.gradients.items()}
    placed = {report.cell(each.variant): each.shown(report.metric) for each in report.effects}
    return {
        place: one
        for place, one in placed.items()
        if place is not None and math.isfinite(one.value)
    }


# The ranking ---------------------------------------------------------------------------------


def ranking_tables(report: AblationReport, most: int | None = None) -> list[doc.Part]:
    """Return two tables: the heads that matter most, and the heads that are harmful.

    most: the rows of the first table; the report's own number by default.
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
    scale = NumberScale.over(report.gradients.values(), signed=False)
    gradients = report.gradients
    return effect_table(
        "Highest by gradient",
        report.by_gradient[:most],
        doc.ColumnOf(f"gradient{scale.times}", lambda head: scale.text(gradients[head])),
        label_column(report.labels, lambda head: head, _label),
        scale=scale,
        name=report.head_name,
        mean=lambda head: Mean(gradients[head]),
    )


def _effects(
    report: AblationReport, effects: Sequence[Effect], among: Sequence[Effect], title: str
) -> doc.Table:
    """Return a table with a row for each ablation; ``among`` gives the number format."""
    scale = scale_of(among, report.metric)

    def mean(effect: Effect) -> Mean:
        return effect.shown(report.metric)

    def weight(effect: Effect) -> str:
        share = report.edge_weight(effect.variant)
        return "" if math.isnan(share) else probability(share)

    columns: list[doc.ColumnOf[Effect]] = [
        _metric_column(among, report.metric),
        label_column(report.labels, lambda effect: effect.head, _label),
        doc.ColumnOf("edge weight", weight),
        base_rates("control", mean, scale),
        *(_metric_column(among, name) for name in report.metrics_aside(effects)),
    ]
    table = effect_table(
        title,
        effects,
        *columns,
        scale=scale,
        name=lambda effect: report.name(effect.variant),
        mean=mean,
    )
    control = "a random direction of equal norm ablated instead"
    return explained(table, "control", control_words(report) if report.edges else control)


def _metric_column(among: Sequence[Effect], name: Metric) -> doc.ColumnOf[Effect]:
    metric, scale = METRICS[name], scale_of(among, name)

    def text(effect: Effect) -> str:
        value = effect.shown(name).value
        return scale.text(value) + "%" * metric.percent if math.isfinite(value) else "-"

    return doc.ColumnOf(metric.label + scale.times, text)


def _label(label: HeadLabel) -> str:
    return label_text(label, _LABEL_ROOM)


def _together(report: AblationReport) -> list[doc.Part]:
    """Return the effects of ablating heads together, next to the sum of their single effects."""
    joint = report.joint
    if not joint:
        return []
    title = "Hidden in all of them" if report.edges else "Ablated together"
    parts: list[doc.Part] = [_effects(report, joint, report.effects, title)]
    scale = scale_of(report.effects, report.metric)
    alone = {single.head: single.means.get(report.metric) for single in report.singles}
    for effect in joint if report.ranked_by.signed else ():
        costs = [alone.get(head) for head in effect.variant.heads]
        known = [cost.value for cost in costs if cost is not None]
        if len(known) == len(costs):
            total = f"{scale.text(sum(known))}{scale.times}"
            said = f"{report.name(effect.variant)}: sum of single ablations {total}"
            parts.append(doc.Facts([(said, False)]))
    return parts


# Maps and texts ------------------------------------------------------------------------------


def _attention_maps(report: AblationReport) -> list[doc.Part]:
    """Return the attention maps of the heads at the top of the ranking."""
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
            below=[(word, False) for word in _about_head(seen.scores(layer, head))],
            causal=record.causal,
        )
        for layer, head in shown
    ]
    title = "Attention of these heads" + ", first text" * (report.text_count > 1)
    return [doc.Maps(maps, [(title, True)])]


def _about_head(scores: HeadScores) -> list[str]:
    return [*label_words(scores.label)[:2], *entropy_words(scores)]


def where_it_hurts(report: AblationReport) -> list[doc.Part]:
    """Return the first text, coloured by the change of each token's loss under some ablations.

    These are the joint ablations and the first ones of the ranking, all on one scale.
    """
    maps = _token_maps(report)
    if not maps:
        line = "Δ loss by token: not measured, this model or method has no loss for each token"
        return [doc.Facts([(line, True)])]
    title = "Δ loss by token" + ", first text" * (report.text_count > 1)
    scale = signed_scale(NumberScale(maps[0].limit), "nats")
    return [doc.Maps(maps, [(title, True)], texts=True, scale=scale)]


def _token_maps(report: AblationReport) -> list[doc.Map]:
    """Return a map of one query for each ablation whose effect on each token is known."""
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
        name = report.missing(effect.variant)
        words: doc.Words = [(name, True), (effect_words(report, effect), False)]
        strip = doc.Map(
            f"{name} by token", delta[None], Tokens.bare((0,)), tokens, words, limit=limit
        )
        maps.append(strip)
    return maps


# The first screen ----------------------------------------------------------------------------

_GAP = 3
_CELL = 6
"""The columns that a cell of the map takes: a number such as ``+.44``, a mark and a blank."""

_SCALE_LINES = 3
"""The lines that the colour bar takes, with the empty line before it."""

_ROWS, _LEAST_ROWS = 5, 3
"""The rows that the ranking has next to other parts, and the rows that it keeps at least."""

_MOST_HARM = 2

_TABLE = 66
"""The columns that the ranking takes next to maps."""

_LONG_NAME = 10
_TEXT_LINES = 4
"""The lines that a further text takes, with its title."""


def first_groups(report: AblationReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the groups of the first screen that fit; the ranking is shortened when it is drawn.

    columns, lines: the available width in characters and lines.
    """
    tables = _tables(report)
    if report.by_token:
        texts_room = lines - sum(map(_least_lines, tables))
        return [_by_token(report, columns, texts_room), doc.Group(tables, yields=1)]
    grid, texts = head_grid(report, scaled=False), _token_maps(report)
    half = (columns - _GAP) // 2
    grid = None if grid is None else one_line(grid, half)
    tall = 0 if grid is None else 1 + _grid_lines(grid, columns)
    left = lines - 1 - sum(map(_least_lines, tables))
    if grid is not None and tall > left:  # colours alone, and what they mean
        scaled = head_grid(report) or grid
        grid = scaled._replace(halved=True)
        tall = 2 + math.ceil(len(grid.rows) / 2) + _SCALE_LINES
    top: list[doc.Group] = []
    if grid is not None and tall <= left:
        top.append(doc.Group([grid]))
        if texts and _grid_lines(grid, half) == tall - 1:
            beside: list[doc.Part] = [grid, _text(report, texts[:1], tall - 1)]
            top, texts = [doc.Group(beside, beside=doc.Beside(half, _GAP))], texts[1:]
        lines -= tall + 1
    if half >= _TABLE + _GAP:
        side = _maps(report, half, lines) or _few_texts(report, texts, lines)
        beside_them = doc.Beside(half, _GAP)
    else:
        side = _maps(report, columns - _TABLE - _GAP, lines, rows=1)
        beside_them = doc.Beside(_TABLE, _GAP, yields=True)
    if side:
        return [*top, doc.Group([doc.Group(tables), *side], beside=beside_them)]
    rows = sum(min(len(table.rows), _ROWS) + 3 for table in tables if isinstance(table, doc.Table))
    below = _maps(report, columns, lines - rows) or _few_texts(report, texts, lines - rows)
    return [*top, doc.Group(tables), doc.Group(below, yields=1)]


def _tables(report: AblationReport) -> list[doc.Part]:
    """Return the ranking without its title, some harmful heads, and the joint ablations."""
    found: list[doc.Part] = []
    most = max(len(report.effects), len(report.gradients))
    for place, part in enumerate([*ranking_tables(report, most), *_together(report)]):
        if isinstance(part, doc.Table) and place:
            part = part._replace(rows=part.rows[:_MOST_HARM], least=1)
        elif isinstance(part, doc.Table):
            part = part._replace(title=part.title[1:], least=_LEAST_ROWS)
        found.append(part)
    return found


def _least_lines(part: doc.Part) -> int:
    """Return how many lines a part needs; a table without the rows that it may leave out."""
    if not isinstance(part, doc.Table):
        return 1
    rows = len(part.rows)
    return bool(part.title) + 1 + min(rows, part.least) + (rows > part.least)


def _grid_lines(grid: doc.HeadGrid, columns: int) -> int:
    per_row = max((columns - 4) // _CELL, 1)
    parts = math.ceil(len(grid.columns) / per_row)
    return len(grid.rows) * parts + (parts == 1)


def _text(report: AblationReport, texts: list[doc.Map], lines: int) -> doc.Maps:
    """Return the coloured texts, each cut to a few lines around the largest changes."""
    named = []
    for text in texts:
        name = text.words[0][0]
        first = ", first text" * (report.text_count > 1 and len(name) < _LONG_NAME)
        named.append(text._replace(words=[(f"Δ loss without {name}{first}", True)]))
    return doc.Maps(named, texts=True, lines=lines, scale=None)


def _few_texts(report: AblationReport, texts: list[doc.Map], lines: int) -> list[doc.Part]:
    count = min(lines // _TEXT_LINES, len(texts))
    return [_text(report, texts[:count], max(lines // count - 1, 1))] if count else []


def _by_token(report: AblationReport, columns: int, lines: int) -> doc.Group:
    """Return the coloured texts, as much of them as fits next to the shortest ranking."""
    (part,) = where_it_hurts(report)
    if not isinstance(part, doc.Maps):
        return doc.Group([part])
    tokens = part.maps[0].keys
    whole = sum(map(len, tokens.texts)) // max(columns - 6, 1) + 1
    room = (lines - 4) // len(part.maps) - 1  # with title, scale and a blank line
    return doc.Group([part._replace(lines=0 if whole + 3 <= room else max(room, 1))])


def _maps(report: AblationReport, columns: int, lines: int, rows: int = 0) -> list[doc.Part]:
    """Return as many whole attention maps as fit."""
    for part in _attention_maps(report):
        if isinstance(part, doc.Maps):
            causal, tokens = part.maps[0].causal, len(part.maps[0].keys)
            cell = 2 if causal else 5  # with a word above each column
            wide = cell * tokens + 12
            tall = len(part.maps[0].queries) + 4 + (not causal)  # with title and scores
            down = max((lines - 4) // tall, 0)
            count = max((columns + _GAP) // (wide + _GAP), 0) * (min(down, rows) if rows else down)
            if count:  # in one row the key would be the widest
                return [part._replace(maps=part.maps[:count], scale=None if rows else part.scale)]
    return []
