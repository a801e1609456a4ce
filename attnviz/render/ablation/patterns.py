"""Where the ranked heads look: a small map each, with the loss that its head carries."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.ablation import AblationReport
from attnviz.render.ablation.gradients import gradient_order
from attnviz.render.ablation.order import ranked_effects
from attnviz.render.ablation.view import AblationView
from attnviz.render.blocks import BOLD, Block, flow, stack, text_line
from attnviz.render.facts import trait_text
from attnviz.render.legend import legend
from attnviz.render.maps import small_map, small_map_cells
from attnviz.render.pool import pooling
from attnviz.render.prose import wrapped
from attnviz.render.theme import Theme

__all__ = ["patterns"]

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
