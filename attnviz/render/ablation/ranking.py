"""The removals in order: a row each, with bar, value, doubt, pattern and the other metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnviz.ablation import METRICS as NAMES
from attnviz.ablation import AblationReport, Effect
from attnviz.ablation import Metric as MetricName
from attnviz.records import Trait
from attnviz.render.ablation.facts import UNIT_NAMES
from attnviz.render.ablation.metrics import METRICS
from attnviz.render.ablation.names import cell_of, variant_name
from attnviz.render.ablation.numbers import NumberScale
from attnviz.render.ablation.table import Column, table
from attnviz.render.ablation.view import AblationView
from attnviz.render.blocks import Block, stack
from attnviz.render.facts import trait_text
from attnviz.render.labels import visible
from attnviz.render.prose import wrapped
from attnviz.render.theme import Theme

__all__ = ["ranked_effects", "ranking", "ranking_titles", "scale_of", "together", "traits_of"]

_TRAIT_ROOM = 14
_BESIDE: tuple[MetricName, ...] = ("loss_delta", "kl", "flip_rate", "output_mse", "logit_diff")


@dataclass(frozen=True)
class _Order:
    """The two ends of the ranking."""

    matter: tuple[Effect, ...]
    harm: tuple[Effect, ...]


def scale_of(report: AblationReport, effects: Sequence[Effect], name: MetricName) -> NumberScale:
    """How the values of one metric are written over these effects."""
    metric = METRICS[name]
    sizes = [abs(value) for effect in effects if (value := effect.metric(name)) is not None]
    return NumberScale(max(sizes, default=0.0) * metric.factor, metric.signed, name == "flip_rate")


def singles(report: AblationReport) -> list[Effect]:
    """The removals that have a place in the map."""
    return [effect for effect in report.effects if cell_of(report, effect.variant) is not None]


def ranked_effects(report: AblationReport, top: int) -> _Order:
    """The ``top`` removals that matter most, and half as many that do the most harm."""
    metric = METRICS[report.metric]
    found = [effect for effect in report.ranked() if cell_of(report, effect.variant) is not None]
    if metric.matters < 0:
        found.reverse()
    if not metric.signed:
        return _Order(tuple(found[:top]), ())

    def sign(effect: Effect) -> float:
        return (effect.metric(report.metric) or 0.0) * metric.matters

    matter = [effect for effect in found if sign(effect) > 0]
    harm = [effect for effect in reversed(found) if sign(effect) < 0]
    return _Order(tuple(matter[:top]), tuple(harm[: (top + 1) // 2]))


def traits_of(view: AblationView) -> Mapping[tuple[int, int], Trait]:
    """The trait of each head whose attention was observed."""
    heads = view.patterns.heads if view.patterns is not None else ()
    return {(scores.layer, scores.head): scores.trait for scores in heads}


def ranking_titles(report: AblationReport) -> tuple[str, str]:
    """Above those that matter, and above those that harm."""
    metric = METRICS[report.metric]
    units = f"{UNIT_NAMES[report.unit]}s"
    if len(singles(report)) == 1:
        return "What is lost without it", "What is lost without it"
    if report.metric == "logit_diff":
        return f"The {units} that speak most for the answer", f"The {units} that speak for the foil"
    if report.metric == "loss_delta":
        return (
            f"The {units} that matter most",
            f"The {units} that do harm: without them the loss falls",
        )
    return f"The {units} whose removal changes most, by {metric.label}", ""


def ranking(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    """Two tables with the same columns: what matters most, and what does harm."""
    order = ranked_effects(report, view.top)
    rows = [*order.matter, *order.harm]
    title, harm_title = ranking_titles(report)
    if not rows:
        line = f"{title}: none, no removal changes {METRICS[report.metric].label}"
        return Block(tuple(wrapped([(line, True)], room, theme)), room)
    drawn = _rows(report, rows, singles(report), view, theme, room)
    head, *lines = drawn.lines
    split = len(order.matter)
    blocks = []
    if order.matter:
        above = wrapped([(title, True)], room, theme)
        blocks.append(Block((*above, head, *lines[:split]), room))
    if order.harm:
        above = wrapped([(harm_title, True)], room, theme)
        header = () if order.matter else (head,)
        blocks.append(Block((*above, *header, *lines[split:]), room))
    return stack(blocks)


def together(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    """What heads cost that were removed at once, beside the sum of what each costs alone."""
    joint = [effect for effect in report.effects if cell_of(report, effect.variant) is None]
    if not joint:
        return Block((), 0)
    drawn = _rows(report, joint, report.effects, view, theme, room)
    lines = [*wrapped([("Removed together", True)], room, theme), *drawn.lines]
    scale = scale_of(report, report.effects, report.metric)
    for effect in joint:
        total = _sum_of_parts(report, effect)
        if total is not None:
            name = visible(variant_name(report, effect.variant, view.index_base), theme.encoding)
            power = f" x 1e{scale.power}" if scale.power else ""
            said = f"{name}: one at a time they add up to {scale.text(total)}{power}"
            lines += wrapped([(said, False)], room, theme)
    return Block(tuple(lines), room)


def _sum_of_parts(report: AblationReport, effect: Effect) -> float | None:
    """What the heads of a joint removal cost one at a time, added up; None where one is unknown."""
    if not METRICS[report.metric].signed:
        return None
    alone = {
        single.variant.heads[0]: single.metric(report.metric)
        for single in singles(report)
        if len(single.variant.heads) == 1
    }
    parts = [alone.get(head) for head in effect.variant.heads]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _rows(
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
    scale = scale_of(report, among, report.metric)
    values = [(effect.metric(report.metric) or 0.0) * metric.factor for effect in rows]
    columns = [_metric_column(report, rows, among, report.metric)]
    columns += _doubt_columns(report, rows, scale)
    traits = traits_of(view)
    shown = [traits.get(effect.variant.heads[0]) for effect in rows]
    if any(len(effect.variant.heads) == 1 for effect in rows) and any(shown):
        cells = [trait_text(trait, _TRAIT_ROOM) if trait else "" for trait in shown]
        columns.append(Column("pattern", cells, left=True))
    columns += [
        _metric_column(report, rows, among, name)
        for name in _BESIDE
        if name != report.metric and any(effect.metric(name) is not None for effect in rows)
    ]
    return table(names, values, scale.limit, columns, theme, room)


def _metric_column(
    report: AblationReport, rows: Sequence[Effect], among: Sequence[Effect], name: MetricName
) -> Column:
    assert name in NAMES
    metric, scale = METRICS[name], scale_of(report, among, name)
    cells = []
    for effect in rows:
        value = effect.metric(name)
        percent = "%" if name == "flip_rate" else ""
        cells.append("" if value is None else scale.text(value * metric.factor) + percent)
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
