"""The screen of ``attnviz ablate``: facts, ranking, where in the text, where the heads look."""

from __future__ import annotations

import numpy as np
from rich.segment import Segment

from attnviz.ablate.by_token import by_token
from attnviz.ablate.gradients import gradient_order
from attnviz.ablate.metrics import METRICS
from attnviz.ablate.names import variant_name
from attnviz.ablate.numbers import NumberScale
from attnviz.ablate.order import (
    joint_effects,
    ranked_effects,
    scale_of,
    singles,
    traits_of,
)
from attnviz.ablate.overview import map_and_ranking
from attnviz.ablate.provenance import doubts, scan_provenance
from attnviz.ablate.ranking import together
from attnviz.ablate.rows import metrics_beside
from attnviz.ablate.sign_legend import sign_legend
from attnviz.ablate.view import AblationView
from attnviz.draw.blocks import (
    BOLD,
    DIM,
    Block,
    Line,
    flow,
    stack,
    text_line,
    without_trailing_blanks,
)
from attnviz.draw.labels import visible
from attnviz.draw.legend import legend
from attnviz.draw.maps import small_map, small_map_cells
from attnviz.draw.pool import pooling
from attnviz.draw.prose import paragraph, wrapped
from attnviz.draw.provenance import trait_text
from attnviz.draw.theme import Theme
from attnviz.engine.effects import AblationReport, Effect

__all__ = ["ablation_screen", "explain_scan", "patterns", "where_it_hurts"]

_LONGEST = 100


def explain_scan(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    """How to read the map and the ranking, with this screen's own strongest head."""
    metric = METRICS[report.metric]
    paragraphs = [
        "How to read this: a head is removed, the model reads the same text again, and what "
        "becomes worse is what the head was for. Every number is a difference to the model with "
        "every head.",
        f"{metric.label}: {metric.meaning}.",
    ]
    if report.metric == "loss_delta":
        paragraphs.append(
            "nats per token: the loss is how surprised the model is by each next token. +0.69 "
            "nats means that tokens have become half as likely, on average."
        )
    order = ranked_effects(report, 1)
    if order.matter:
        best = order.matter[0]
        scale = scale_of(singles(report), report.metric)
        value = scale.text((best.metric(report.metric) or 0.0) * metric.factor)
        power = f" x 1e{scale.power}" if scale.power else ""
        unit = f" {metric.unit}" if metric.unit else ""
        name = variant_name(report, best.variant, view.index_base)
        paragraphs.append(f"here: {name} matters most, {value}{power}{unit}.")
    if traits_of(view):
        paragraphs.append(
            "pattern: what the head does over the text with nothing removed, and its score from 0 "
            "to 1, as attnviz heads names it."
        )
    for name in metrics_beside(report, report.effects):
        paragraphs.append(f"{METRICS[name].label}: {METRICS[name].meaning}.")
    paragraphs.append(
        "A head that costs nothing alone may still matter: another head can stand in for it. "
        "--together removes several at once. And what a text does not need, it cannot show: "
        "many texts (--texts) tell chance from rule."
    )
    if report.mode == "zero":
        paragraphs.append(
            "zero: an output of zero is one that the model has never met; --mode mean puts the "
            "head's mean in its place, which is kinder."
        )
    return stack([paragraph(text, min(room, _LONGEST), theme) for text in paragraphs], gap=0)


_LINES, _COLUMNS = 7, 15
_GAP = 2
_MOST = 10


def patterns(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    """The maps of the first heads of the ranking, as many as stand side by side."""
    seen = view.patterns
    if seen is None:
        return Block((), 0)
    order = ranked_effects(report, view.top)
    beside = min(max((room + _GAP) // (_COLUMNS + _GAP), 1), _MOST)
    ranked = [*order.matter, *order.harm] or report.effects
    heads = [effect.variant.heads[0] for effect in ranked if len(effect.variant.heads) == 1]
    if report.method == "gradient":
        heads = gradient_order(report)
    elif not heads and len(report.effects) == 1:
        heads = list(report.effects[0].variant.heads)
    known = {(scores.layer, scores.head) for scores in seen.heads}
    shown = [head for head in heads if head in known][:beside]
    if not shown:
        return Block((), 0)
    record = seen.record
    maps = []
    for layer, head in shown:
        weights = seen.weights(layer, head)
        drawn = small_map(weights, _LINES, _COLUMNS, record.causal, theme)
        name = [Segment(seen.name(layer, head), BOLD)]
        trait = text_line(trait_text(seen.scores(layer, head).trait, _COLUMNS))
        maps.append(Block((name, *drawn.lines, trait), max(drawn.width, _COLUMNS)))
    size = (len(record.queries), len(record.keys))
    caption = pooling(size, small_map_cells(*size, _LINES, _COLUMNS, theme))
    title = "Where they look" + (", first text" if len(report.texts) > 1 else "")
    parts = [(title, True), *([(caption, False)] if caption else [])]
    above = Block(tuple(wrapped(parts, room, theme)), room)
    return stack([above, flow(maps, room, _GAP), legend(theme, room)], gap=0)


_BY_TOKEN = 3


def where_it_hurts(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    """The first text under the removals that matter most, all on one scale."""
    chosen = _followed(report, view)
    if not chosen:
        line = "Where in the text: not measured, this model or method has no loss for each token"
        return Block(tuple(wrapped([(line, True)], room, theme)), room)
    tokens = (report.targets or report.texts)[0]
    deltas = [np.asarray(effect.token_losses[0], dtype=float) for effect in chosen]
    deltas = [np.where(np.isfinite(delta), delta, np.nan) for delta in deltas]
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
    joint = joint_effects(report)
    candidates = [*joint, *order.matter, *order.harm]
    return [effect for effect in candidates if effect.token_losses][:_BY_TOKEN]


def ablation_screen(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    """Everything that one run shows, in ``room`` columns."""
    parts = [scan_provenance(report, view, room, theme)]
    notes = [
        paragraph(visible(note, theme.encoding), room, theme, DIM)
        for note in (*report.model.notes, *report.notes)
    ]
    if notes:
        parts.append(stack(notes, gap=0))
    parts.append(map_and_ranking(report, view, theme, room))
    parts.append(together(report, view, theme, room))
    parts.append(patterns(report, view, theme, room))
    if view.by_token:
        parts.append(where_it_hurts(report, view, theme, room))
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
