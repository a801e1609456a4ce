"""What matters most and what does harm, as tables; and what heads cost that went together."""

from __future__ import annotations

from attnviz.ablate.metrics import METRICS
from attnviz.ablate.names import variant_name
from attnviz.ablate.order import joint_effects, ranked_effects, scale_of, singles
from attnviz.ablate.provenance import UNIT_NAMES
from attnviz.ablate.rows import effect_rows
from attnviz.ablate.view import AblationView
from attnviz.draw.blocks import Block, stack
from attnviz.draw.labels import visible
from attnviz.draw.prose import wrapped
from attnviz.draw.theme import Theme
from attnviz.engine.effects import AblationReport, Effect

__all__ = ["ranking", "ranking_titles", "together"]


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
    drawn = effect_rows(report, rows, singles(report), view, theme, room)
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
    joint = joint_effects(report)
    if not joint:
        return Block((), 0)
    drawn = effect_rows(report, joint, report.effects, view, theme, room)
    lines = [*wrapped([("Removed together", True)], room, theme), *drawn.lines]
    scale = scale_of(report.effects, report.metric)
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
