"""The whole answer of ``attnviz ablate``, put together from its views."""

from __future__ import annotations

import numpy as np
from rich.segment import Segment

from attnviz.ablation import AblationReport, Effect
from attnviz.render.ablation.by_token import by_token
from attnviz.render.ablation.effect_map import effect_map
from attnviz.render.ablation.explain import explain_scan
from attnviz.render.ablation.facts import UNIT_NAMES, doubts, scan_provenance
from attnviz.render.ablation.gradients import gradient_ranking
from attnviz.render.ablation.grid import effect_grid, gradient_grid
from attnviz.render.ablation.metrics import METRICS
from attnviz.render.ablation.names import cell_of, variant_name
from attnviz.render.ablation.numbers import NumberScale
from attnviz.render.ablation.patterns import patterns
from attnviz.render.ablation.ranking import ranked_effects, ranking, together
from attnviz.render.ablation.sign_legend import sign_legend
from attnviz.render.ablation.view import AblationView
from attnviz.render.blocks import DIM, Block, Line, stack, without_trailing_blanks
from attnviz.render.labels import visible
from attnviz.render.prose import paragraph, wrapped
from attnviz.render.theme import Theme

__all__ = ["ablation_screen"]

_BY_TOKEN = 3


def ablation_screen(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    """Everything that one run shows, in ``room`` columns."""
    parts = [scan_provenance(report, view, room, theme)]
    notes = [
        paragraph(visible(note, theme.encoding), room, theme, DIM)
        for note in (*report.model.notes, *report.notes)
    ]
    if notes:
        parts.append(stack(notes, gap=0))
    parts += _maps(report, view, theme, room)
    if report.method == "gradient":
        parts.append(gradient_ranking(report, view, theme, room))
    elif any(cell_of(report, effect.variant) is not None for effect in report.effects):
        parts.append(ranking(report, view, theme, room))
    parts.append(together(report, view, theme, room))
    parts.append(patterns(report, view, theme, room))
    if view.by_token:
        parts.append(_by_token(report, view, theme, room))
    said = [paragraph(text, room, theme) for text in doubts(report, view)]
    parts.append(stack(said, gap=0))
    if view.explain:
        parts.append(explain_scan(report, view, theme, room))
    if view.hints:
        lines = wrapped([(hint, False) for hint in view.hints], room, theme)
        parts.append(Block(tuple(lines), room))
    whole = stack(part for part in parts if part.lines)
    return Block(tuple(map(_trimmed, whole.lines)), room)


def _trimmed(line: Line) -> Line:
    """The line without blanks at its end, also those that end a text."""
    line = without_trailing_blanks(line)
    if line and (line[-1].style is None or line[-1].style.bgcolor is None):
        line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
    return line


def _maps(report: AblationReport, view: AblationView, theme: Theme, room: int) -> list[Block]:
    """The map of the metric, or of the gradient where nothing was measured."""
    metric = METRICS[report.metric]
    if report.method == "gradient":
        grid = gradient_grid(report, view.index_base)
        title = "First-order importance of each head: size of the loss's derivative by its gate"
        unit = "nats per token"
    else:
        grid = effect_grid(report, view.index_base)
        title = f"What is lost when one {UNIT_NAMES[report.unit]} is removed: {metric.label}"
        unit = metric.unit or metric.label
        if report.method == "budget" and grid is not None:
            title += ", where it was measured"
    if grid is None or grid.values.size == 1:
        return []
    above = wrapped([(title, True)], room, theme)
    return [stack([Block(tuple(above), room), effect_map(grid, theme, room, unit)], gap=0)]


def _by_token(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    """The first text under the removals that matter most, all on one scale."""
    chosen = _followed(report, view)
    if not chosen:
        line = "Where in the text: not measured, this model or method has no loss for each token"
        return Block(tuple(wrapped([(line, True)], room, theme)), room)
    tokens = (report.targets or report.texts)[0]
    deltas = [np.asarray(effect.token_losses[0], dtype=float) for effect in chosen]
    limit = max(float(np.nanmax(np.abs(delta), initial=0.0)) for delta in deltas)
    title = "Where in the text it is missed: loss delta of each token"
    if len(report.texts) > 1:
        title += ", first text"
    above = wrapped([(title, True)], room, theme)
    blocks = [Block(tuple(above), room)]
    for effect, delta in zip(chosen, deltas, strict=True):
        name = visible(variant_name(report, effect.variant, view.index_base), theme.encoding)
        drawn = by_token(tokens, delta, limit, theme, room)
        blocks.append(Block((*wrapped([(name, True)], room, theme), *drawn.lines), room))
    blocks.append(sign_legend(NumberScale(limit), theme, room, "nats of one token"))
    return stack(blocks, gap=0)


def _followed(report: AblationReport, view: AblationView) -> list[Effect]:
    """Joint removals, then the first of the ranking; those that have losses by token."""
    order = ranked_effects(report, view.top)
    joint = [effect for effect in report.effects if cell_of(report, effect.variant) is None]
    candidates = [*joint, *order.matter, *order.harm]
    return [effect for effect in candidates if effect.token_losses][:_BY_TOKEN]
