"""A scan as a page, with every number in a table."""

from __future__ import annotations

from collections.abc import Iterator

from attnviz.ablation import METRICS as NAMES
from attnviz.ablation import AblationReport, Effect, Metric
from attnviz.render.ablation.facts import UNIT_NAMES, doubts, scan_words
from attnviz.render.ablation.gradients import gradient_order
from attnviz.render.ablation.grid import effect_grid, gradient_grid
from attnviz.render.ablation.metrics import METRICS
from attnviz.render.ablation.names import variant_name
from attnviz.render.ablation.order import joint_effects, ranked_effects
from attnviz.render.ablation.ranking import ranking_titles
from attnviz.render.ablation.view import AblationView
from attnviz.render.export.ablation_figure import bars_drawing, effect_drawing
from attnviz.render.export.drawing import Drawing
from attnviz.render.export.legend_figure import legend_drawing
from attnviz.render.export.map_figure import map_drawing
from attnviz.render.export.page import Page, Section, Table

__all__ = ["ablation_page"]

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
