"""The parameters of a whole design: layer by layer, and by what they are for."""

from __future__ import annotations

from collections.abc import Iterable

from attnviz.accounts.parameters import GroupCount, LayerCount, ParameterCount, Shares, StackCount
from attnviz.accounts.terms import Term
from attnviz.analysis.accounting.attention import count_attention
from attnviz.analysis.accounting.feed_forward import count_feed_forward
from attnviz.analysis.accounting.terms import of_part, total
from attnviz.designs import Design, LayerDesign, LayerGroup, StackDesign

__all__ = ["count_layer", "count_parameters"]


def count_parameters(design: Design) -> ParameterCount:
    """Count every weight of a design once."""
    stacks = tuple(_stack(stack) for stack in design.stacks)
    terms = (
        *(term for part in design.embeddings for term in of_part(part, "embedding")),
        *(term for part in design.parts for term in of_part(part)),
    )
    buffers = tuple(_buffers(design))
    shares = sum((stack.shares for stack in stacks), Shares()) + _outside(terms)
    return ParameterCount(
        stacks=stacks,
        shares=shares,
        total=shares.total,
        active=sum(stack.active for stack in stacks) + total(terms),
        terms=terms,
        buffers=buffers,
        buffer_total=total(buffers),
    )


def count_layer(design: LayerDesign) -> LayerCount:
    """Count one layer."""
    attentions = tuple(count_attention(attention) for attention in design.attentions)
    feed_forward = None
    if design.feed_forward is not None:
        feed_forward = count_feed_forward(design.feed_forward)
    terms = tuple(term for part in (*design.norms, *design.parts) for term in of_part(part))
    wide = 0 if feed_forward is None else feed_forward.total
    idle = 0 if feed_forward is None else feed_forward.total - feed_forward.active
    shares = Shares(attention=sum(item.total for item in attentions), feed_forward=wide)
    shares += _outside(terms)
    return LayerCount(
        design, attentions, feed_forward, shares, shares.total, shares.total - idle, terms
    )


def _stack(design: StackDesign) -> StackCount:
    groups = tuple(_group(group) for group in design.groups)
    terms = (
        *(term for part in design.embeddings for term in of_part(part, "embedding")),
        *(term for part in (*design.norms, *design.parts) for term in of_part(part)),
        *(() if design.head is None else of_part(design.head, "head")),
    )
    layers = sum((group.layer.shares * group.stored for group in groups), Shares())
    shares = layers + _outside(terms)
    active = sum(group.layer.active * group.stored for group in groups)
    return StackCount(
        design, groups, shares, shares.total, active + total(terms), layers.total, terms
    )


def _group(group: LayerGroup) -> GroupCount:
    stored = 1 if group.shared else group.repeat
    return GroupCount(count_layer(group.layer), group.repeat, stored, group.indices)


def _outside(terms: Iterable[Term]) -> Shares:
    """Shares of lines that stand outside attention and feed-forward parts."""
    lines = tuple(terms)
    return Shares(
        embedding=total(lines, "embedding"),
        norm=total(lines, "norm"),
        head=total(lines, "head"),
        other=total(lines) - total(lines, "embedding", "norm", "head"),
    )


def _buffers(design: Design) -> Iterable[Term]:
    for stack in design.stacks:
        for buffer in stack.buffers:
            yield Term(buffer.label, buffer.count, f"{buffer.count:,}")
        for group in stack.groups:
            stored = 1 if group.shared else group.repeat
            held = (*group.layer.buffers, *getattr(group.layer.feed_forward, "buffers", ()))
            for buffer in held:
                count = stored * buffer.count
                yield Term(buffer.label, count, f"{stored} × {buffer.count} = {count:,}")
