"""The parameters of a whole design: layer by layer, and by what they are for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from attnviz.analysis.accounting.attention import AttentionCount, count_attention
from attnviz.analysis.accounting.feed_forward import FeedForwardCount, count_feed_forward
from attnviz.analysis.accounting.terms import Term, of_part, total
from attnviz.designs import Design, LayerDesign, LayerGroup, StackDesign

__all__ = [
    "GroupCount",
    "LayerCount",
    "ParameterCount",
    "Shares",
    "StackCount",
    "count_layer",
    "count_parameters",
]


@dataclass(frozen=True)
class Shares:
    """A number of parameters by what they are for; the shares add up to ``total``.

    attention: projections, biases and norms inside the attentions.
    feed_forward: matrices, biases, routers, experts.
    embedding: token, position and type tables, patch embeddings, special tokens.
    norm: norms outside the attentions.
    head: the matrix onto the vocabulary where it is not the token table, with what precedes it.
    other: poolers, projectors, scales.
    """

    attention: int = 0
    feed_forward: int = 0
    embedding: int = 0
    norm: int = 0
    head: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __add__(self, other: Shares) -> Shares:
        return Shares(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )

    def __mul__(self, times: int) -> Shares:
        return Shares(*(getattr(self, field.name) * times for field in fields(self)))


@dataclass(frozen=True)
class LayerCount:
    """The parameters of one layer.

    attentions: its attentions, a decoder's own one before the cross attention.
    feed_forward: its feed-forward part, or None.
    shares, total, active: its parameters, and those that one token passes through.
    terms: the lines that belong to neither: norms, scales.
    """

    design: LayerDesign
    attentions: tuple[AttentionCount, ...]
    feed_forward: FeedForwardCount | None
    shares: Shares
    total: int
    active: int
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class GroupCount:
    """Layers that are alike: one of them, how often it runs, and how many copies are stored."""

    layer: LayerCount
    repeat: int
    stored: int
    indices: tuple[int, ...] | None


@dataclass(frozen=True)
class StackCount:
    """The parameters of one tower.

    groups: its layers, equal ones together.
    shares, total, active: layers, embeddings, norms, parts and head together.
    layers_total: its layers alone.
    terms: the lines outside the layers.
    """

    design: StackDesign
    groups: tuple[GroupCount, ...]
    shares: Shares
    total: int
    active: int
    layers_total: int
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class ParameterCount:
    """The parameters of a design.

    stacks: its towers.
    shares, total: everything, tied tables once.
    active: what one token passes through: without the experts that were not chosen. Tables count
        whole, as is usual.
    terms: the lines outside the towers.
    buffers: lines of numbers that are stored and not trained; not in the total.
    buffer_total: their sum.
    """

    stacks: tuple[StackCount, ...]
    shares: Shares
    total: int
    active: int
    terms: tuple[Term, ...]
    buffers: tuple[Term, ...]
    buffer_total: int


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
