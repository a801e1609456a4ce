"""The document of ``attnviz ablate``: grid, ranking, joint ablations, losses by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.grid import full_width
from attnviz.draw.numbers import NumberScale
from attnviz.draw.provenance import advised, label_text, notes_group, probability
from attnviz.draw.signed import explained, one_line, signed_scale
from attnviz.engine.effects import METRICS, Metric
from attnviz.inspect.interventions.ablate import claims
from attnviz.inspect.interventions.ablate.report import AblationReport, Effect, scale_of
from attnviz.inspect.interventions.study import (
    Mean,
    base_rates,
    effect_grid,
    effect_table,
    label_column,
)
from attnviz.measures.labels import label_look
from attnviz.records import Tokens

_LABEL = partial(label_text, max_width=19)

_MOST_FOLLOWED = 4


def document(report: AblationReport) -> doc.Document:
    """Return the document of a report: a brief form for the terminal, and the whole."""
    grid, tokens, effects = head_grid(report), (report.targets or report.texts)[0], report.effects
    every = [_effect_table(report, effects, effects, "Every ablation")] if effects else []
    return doc.Document(
        name=f"ablated heads of {report.model.name}",
        title=" ".join(report.text.split()),
        groups=[
            doc.Group(claims.about(report)),
            notes_group((*report.model.notes, *report.notes), tokens),
            doc.Group([grid] if grid is not None else []),
            doc.Group(ranking_tables(report), spaced=True),
            doc.Group(_together(report)),
            doc.Group(where_it_hurts(report) if report.by_token else []),
            doc.Group([doc.Say(text) for text in claims.caveats(report)]),
            doc.Group(every, full=True),
        ],
        explain=claims.explanation(report),
        hints=doc.next_steps(_hints(report)),
        heading=claims.heading(report),
        quoted=report.text if report.text_count == 1 else "",
        finding=claims.finding(report),
        first=advised(partial(_first, report), tokens),
    )


def _hints(report: AblationReport) -> list[str]:
    hints, best = [], report.ranking(1).matter
    random = report.model.weights == "random"
    has_losses = not report.classes or any(effect.token_losses for effect in report.effects)
    can_show = "loss" in report.baseline and has_losses and report.record is None
    can_show = can_show and not report.own_loss
    if best and not report.by_token and can_show:
        chosen = f"--head {report.name(best[0].variant)} " if report.unit == "head" else ""
        hints.append(f"{chosen}--by-token")
    if report.source.endswith("built-in texts"):
        hints.append("--texts FILE: your data")
    elif not (report.ranks or report.texts[0].joined or report.edges or random or report.own_loss):
        again = "--image FILE" if claims.noun(report) == "image" else "--texts FILE"
        hints.append(f"{again} for intervals")
    if report.method == "exact" and len(report.effects) > 1 and not claims.ablates_every(report):
        hints.append("--together")
    return [*hints, "--explain"]


def head_grid(report: AblationReport, scaled: bool = True) -> doc.HeadGrid | None:
    """Return a grid of the effects of ablations, or of gradients; None for fewer than two."""
    gradient, metric = report.method == "gradient", report.ranked_by
    means = {report.cell(e.variant): e.shown(report.metric) for e in report.effects}
    cells = {at: mean for at, mean in means.items() if at is not None and math.isfinite(mean.value)}
    if gradient:
        cells = {head: Mean(value) for head, value in report.gradients.items()}
    if len(cells) < 2:
        return None
    values, signed = (mean.value for mean in cells.values()), metric.signed and not gradient
    scale = NumberScale.over(values, signed, metric.percent)
    grid = effect_grid(
        cells,
        scale,
        claims.map_title(report, brief=not scaled),
        report.column,
        base=report.index_base,
        blank=report.gradients if report.unit == "head" else (),  # what a budget left out
        bar=signed_scale(scale, metric.unit or metric.label) if scaled else None,
    )
    labels = {report.head_name(head): label_look(label) for head, label in report.labels.items()}
    return grid.with_known(labels, "gradient" if gradient else "effect of ablation")


def ranking_tables(report: AblationReport, most: int | None = None) -> list[doc.Part]:
    """Return two tables: the heads that matter most, and the heads that are harmful."""
    if report.method == "gradient":
        gradients, shown = report.gradients, report.by_gradient
        scale = NumberScale.over(gradients.values(), signed=False)
        return [
            effect_table(
                "Highest by gradient",
                shown[: report.top if most is None else most],
                doc.ColumnOf(f"gradient{scale.times}", lambda head: scale.text(gradients[head])),
                label_column(report.labels, lambda head: head, _LABEL),
                scale=scale,
                name=report.head_name,
                mean=lambda head: Mean(gradients[head]),
            )
        ]
    if not report.singles:
        return []
    order, titles = report.ranking(most), claims.ranking_titles(report)
    if not order.matter and not order.harm:
        line = f"{titles[0]}: none, no ablation changes {report.ranked_by.label}"
        return [doc.Facts([(line, True)])]
    tables = zip((order.matter, order.harm), titles, strict=True)
    return [_effect_table(report, some, report.singles, title) for some, title in tables if some]


def _effect_table(
    report: AblationReport, effects: Sequence[Effect], among: Sequence[Effect], title: str
) -> doc.Table:
    """Return a table with a row for each ablation; ``among`` gives the number format."""
    scale = scale_of(among, report.metric)

    def mean(effect: Effect) -> Mean:
        return effect.shown(report.metric)

    def weight(effect: Effect) -> str:
        share = report.edge_weight(effect.variant)
        return "" if math.isnan(share) else probability(share)

    table = effect_table(
        title,
        effects,
        _metric_column(among, report.metric),
        label_column(report.labels, lambda effect: effect.head, _LABEL),
        doc.ColumnOf("edge weight", weight),
        base_rates("control", mean, scale),
        *(_metric_column(among, name) for name in report.metrics_aside(effects)),
        scale=scale,
        name=lambda effect: report.name(effect.variant),
        mean=mean,
    )
    control = "a random vector of equal norm subtracted instead"
    return explained(table, "control", claims.control_words(report) if report.edges else control)


def _metric_column(among: Sequence[Effect], name: Metric) -> doc.ColumnOf[Effect]:
    metric, scale = METRICS[name], scale_of(among, name)

    def text(effect: Effect) -> str:
        value = effect.shown(name).value
        return scale.text(value) + "%" * metric.percent if math.isfinite(value) else "-"

    return doc.ColumnOf(metric.label + scale.times, text)


def _together(report: AblationReport) -> list[doc.Part]:
    if not report.joint:
        return []
    title = "Hidden in all of them" if report.edges else "Ablated together"
    parts: list[doc.Part] = [_effect_table(report, report.joint, report.effects, title)]
    scale = scale_of(report.effects, report.metric)
    alone = {e.head: e.value(report.metric) for e in report.singles if report.metric in e.means}
    for effect in report.joint if report.ranked_by.signed else ():
        if alone.keys() >= {*effect.variant.heads}:
            total = sum(alone[head] for head in effect.variant.heads)
            words = f"sum of single ablations {scale.text(total)}{scale.times}"
            parts.append(doc.Facts([(f"{report.name(effect.variant)}: {words}", False)]))
    return parts


def where_it_hurts(report: AblationReport) -> list[doc.Part]:
    """Return the first text coloured by each token's Δ loss, for joint and top ablations."""
    maps = _token_maps(report)
    if not maps:
        line = "Δ loss by token: not measured, this model or method has no loss for each token"
        return [doc.Facts([(line, True)])]
    title = "Δ loss by token" + ", first text" * (report.text_count > 1)
    scale = signed_scale(NumberScale(maps[0].limit), "nats")
    return [doc.Maps(maps, [(title, True)], texts=True, scale=scale)]


def _token_maps(report: AblationReport, most: int = _MOST_FOLLOWED) -> list[doc.Map]:
    order, tokens = report.ranking(), (report.targets or report.texts)[0]
    ranked = (*report.joint, *order.matter, *order.harm) or report.effects
    known = [effect for effect in ranked if effect.token_losses]
    losses = [np.asarray(e.token_losses[0], dtype=float) for e in known[:most]]
    changes = [np.where(np.isfinite(loss), loss, np.nan) for loss in losses]
    limit = max((float(np.nanmax(np.abs(own), initial=0.0)) for own in changes), default=0.0)
    maps = []
    for effect, own in zip(known, changes, strict=False):
        name = report.missing(effect.variant)
        words: doc.Words = [(name, True), (claims.effect_words(report, effect), False)]
        query = Tokens.bare((0,))
        maps.append(doc.Map(f"{name} by token", own[None], query, tokens, words, limit=limit))
    return maps


# The first screen ----------------------------------------------------------------------------

_GAP = 3
_ROWS, _LEAST_ROWS = 5, 3
"""The rows that the ranking has above texts, and the rows that it keeps at least."""

_MOST_HARM = 2
_AROUND, _JOINT_LINES, _TEXT_LINES = 3, 5, 4
"""The lines of a table besides its rows, and those of a joint ablation and of a further text."""

_CELL = 6
"""The columns that a cell of the grid takes: a number such as ``+.44``, a mark and a blank."""

_SCALE_LINES = 3  # the lines that the colour bar takes, with the empty line before it
_LONG_NAME = 10


def _first(report: AblationReport, columns: int, lines: int) -> list[doc.Group]:
    tables, half, top = _brief_tables(report), (columns - _GAP) // 2, list[doc.Group]()
    together = _together(report)
    if together and isinstance(table := together[0], doc.Table):
        title = table.title[:1] if tables else table.title[1:]  # its control is explained above
        together[0] = table._replace(title=title, rows=table.rows[:_MOST_HARM], least=1)
    ranked = doc.Group([*tables, *[doc.Group(together)] * bool(together)], spaced=True)
    rows = [len(part.rows) for part in tables if isinstance(part, doc.Table)]
    joint = _JOINT_LINES * len(report.joint)
    keep = [min(own, _LEAST_ROWS if not at else 1) for at, own in enumerate(rows)]
    least = sum(_AROUND + kept - (kept == own) for kept, own in zip(keep, rows, strict=True))
    if report.by_token:
        return [_by_token(report, columns, lines - least - joint), ranked._replace(yields=1)]
    grid, texts = head_grid(report, scaled=False), _token_maps(report, lines)
    left = lines - least - joint
    if grid is not None:
        broken = math.ceil(len(grid.columns) / max((columns - 4) // _CELL, 1))
        tall = 1 + len(grid.rows) * broken + (broken == 1)
        if tall > left:  # colours alone, and what they mean
            grid = (head_grid(report) or grid)._replace(halved=True)
            tall = 2 + math.ceil(len(grid.rows) / 2) + _SCALE_LINES
        elif texts and full_width(grid) <= half:
            parts: list[doc.Part] = [one_line(grid, half), _texts(report, texts[:1], tall - 1)]
            top, texts = [doc.Group(parts, beside=doc.Beside(half, _GAP))], texts[1:]
        if tall <= left:
            top, lines = top or [doc.Group([one_line(grid, half)])], lines - tall - 1
    room = lines - sum(min(own, _ROWS) + _AROUND for own in rows) - joint
    count = min(max(room, 0) // _TEXT_LINES, len(texts))
    if not count:
        return [*top, ranked]
    below = _texts(report, texts[:count], max(room // count - 1, 1))
    return [*top, ranked, doc.Group([below], yields=1)]


def _brief_tables(report: AblationReport) -> list[doc.Part]:
    """Return the ranking without its title, and some harmful heads."""
    tables: list[doc.Part] = []
    for part in ranking_tables(report, max(len(report.effects), len(report.gradients))):
        if isinstance(part, doc.Table) and tables:
            part = part._replace(rows=part.rows[:_MOST_HARM], least=1)
        elif isinstance(part, doc.Table):
            part = part._replace(title=part.title[1:], least=_LEAST_ROWS)
        tables.append(part)
    if tables and isinstance(first := tables[0], doc.Table):  # heads that are in neither table
        shown = sum(len(part.rows) for part in tables if isinstance(part, doc.Table))
        tables[0] = first._replace(hidden=max(len(report.singles) - shown, 0))
    return tables


def _texts(report: AblationReport, texts: Sequence[doc.Map], lines: int) -> doc.Maps:
    named = []
    for text in texts:
        name = text.words[0][0]
        first = ", first text" * (report.text_count > 1 and len(name) < _LONG_NAME)
        named.append(text._replace(words=[(f"Δ loss without {name}{first}", True)]))
    return doc.Maps(named, texts=True, lines=lines, scale=None)


def _by_token(report: AblationReport, columns: int, lines: int) -> doc.Group:
    (part,) = where_it_hurts(report)
    if isinstance(part, doc.Maps):
        whole = sum(map(len, part.maps[0].keys.texts)) // max(columns - 6, 1) + 1
        room = (lines - 4) // len(part.maps) - 1  # with title, scale and a blank line
        part = part._replace(lines=0 if whole + 3 <= room else max(room, 1))
    return doc.Group([part])
