"""A scan for people: one self-contained drawing, or a page with every number in a table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

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
from attnviz.render.export.drawing import Drawing, Item, Label, Style, flow
from attnviz.render.export.heads_html import PAGE_POLICY, PAGE_STYLE
from attnviz.render.export.legend_figure import legend_drawing
from attnviz.render.export.map_figure import map_drawing
from attnviz.render.export.svg import STYLE, safe, svg_document, svg_element
from attnviz.render.labels import visible
from attnviz.render.palette import DIVERGING

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["write_ablation_html", "write_ablation_svg"]

_ROOM = 1000.0
_MAPS_ROOM = 1500.0
_LETTER: dict[Style, float] = {"title": 9.0, "heading": 7.5, "faint": 6.2}
_LINES: dict[Style, float] = {"title": 22.0, "heading": 20.0, "faint": 16.0}
_MARGIN, _GAP = 28.0, 20.0
_MAPPED = 4


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


def _text(lines: list[tuple[Style, str]]) -> Drawing:
    items: list[Item] = []
    y = 0.0
    for style, line in lines:
        for piece in textwrap.wrap(visible(line), int(_ROOM / _LETTER[style])) or [""]:
            y += _LINES[style]
            items.append(Label(0, y - 4, piece, style))
    return Drawing("text", _ROOM, y, tuple(items))


def write_ablation_svg(
    report: AblationReport, view: AblationView, palette: str, stream: SupportsWrite[str]
) -> None:
    """Write facts, map and ranking below each other, and the attention of the first heads."""
    first: list[tuple[Style, str]] = [("title", " ".join(view.text.split()))]
    parts = [_text([*first, *(("faint", line) for line in _facts(report, view))])]
    for title, drawing in _sections(report, view):
        parts += [_text([("heading", title)]), drawing]
    maps = _maps(report, view, palette)
    if maps:
        parts += [_text([("heading", "Where they look")]), legend_drawing()]
        parts.append(flow("maps", maps, _MAPS_ROOM, 32))
    placed, y = [], _MARGIN
    for part in parts:
        placed.append((_MARGIN, y, part))
        y += part.height + (6 if part.name == "text" else _GAP)
    width = max(part.width for part in parts) + 2 * _MARGIN
    name = f"removed heads of {report.model.name}"
    page = Drawing(name, width, y - _GAP + _MARGIN, parts=tuple(placed))
    stream.write(svg_document(page, palette))


def _cell(content: str, kind: str = "td", word: bool = False) -> str:
    return f'<{kind} class="word">{content}</{kind}>' if word else f"<{kind}>{content}</{kind}>"


def _row(report: AblationReport, view: AblationView, effect: Effect, names: list[Metric]) -> str:
    cells = [_cell(safe(variant_name(report, effect.variant, view.index_base)), word=True)]
    for name in names:
        value = effect.metric(name)
        cells.append(_cell("–" if value is None else f"{value:.6g}"))
        if name == report.metric and name in effect.ci_low:
            cells.append(_cell(f"[{effect.ci_low[name]:.6g}, {effect.ci_high[name]:.6g}]"))
    return f"<tr>{''.join(cells)}</tr>"


def _table(report: AblationReport, view: AblationView) -> Iterator[str]:
    """Every removal and every metric that there is."""
    names = [n for n in NAMES if any(e.metric(n) is not None for e in report.effects)]
    heads = [_cell("removed", "th", True)]
    for name in names:
        heads.append(_cell(safe(METRICS[name].full if name != "flip_rate" else "flip rate"), "th"))
        if name == report.metric and any(name in e.ci_low for e in report.effects):
            heads.append(_cell("95 % interval", "th"))
    yield f'<h2>Every removal</h2>\n<div class="scroll"><table>\n<tr>{"".join(heads)}</tr>'
    for effect in report.effects:
        yield _row(report, view, effect, names)
    yield "</table></div>"


def _page(report: AblationReport, view: AblationView, palette: str) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}"/>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    yield f"<title>removed heads of {safe(report.model.name)}</title>"
    yield f"<style>{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{safe(' '.join(view.text.split()))}</h1>"
    for line in _facts(report, view):
        yield f"<p>{safe(line)}</p>"
    for title, drawing in _sections(report, view):
        yield f'<h2>{safe(title)}</h2>\n<div class="scroll">{svg_element(drawing, DIVERGING)}</div>'
    maps = _maps(report, view, palette)
    if maps:
        yield f"<h2>Where they look</h2>\n{svg_element(legend_drawing(), palette)}"
        drawn = "".join(f"<div>{svg_element(drawing, palette)}</div>" for drawing in maps)
        yield f'<div class="maps">{drawn}</div>'
    if report.effects:
        yield from _table(report, view)
    yield "</body>\n</html>"


def write_ablation_html(
    report: AblationReport, view: AblationView, palette: str, stream: SupportsWrite[str]
) -> None:
    """Write the drawings of the SVG, each on its own, and a table of every removal."""
    for piece in _page(report, view, palette):
        stream.write(piece + "\n")
