"""Where in the first text the removals hurt, for those that matter most."""

from __future__ import annotations

import numpy as np

from attnviz.ablation import AblationReport, Effect
from attnviz.render.ablation.by_token import by_token
from attnviz.render.ablation.names import variant_name
from attnviz.render.ablation.numbers import NumberScale
from attnviz.render.ablation.order import joint_effects, ranked_effects
from attnviz.render.ablation.sign_legend import sign_legend
from attnviz.render.ablation.view import AblationView
from attnviz.render.blocks import Block, stack
from attnviz.render.labels import visible
from attnviz.render.prose import wrapped
from attnviz.render.theme import Theme

__all__ = ["where_it_hurts"]

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
