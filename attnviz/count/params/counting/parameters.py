"""Counts an architecture's parameters as exact integers, from one layer up to the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from attnviz.count.params.counting.blocks import (
    AttentionCount,
    FeedForwardCount,
    Term,
    count_attention,
    count_feed_forward,
    of_part,
    total,
)
from attnviz.count.params.specs import LayerGroup, LayerSpec, ModelSpec, StackSpec


class Shares(NamedTuple):
    """A number of parameters divided by purpose; the shares add up to ``total``.

    attention: projections, biases and norms inside the attentions.
    feed_forward: matrices, biases, routers, experts.
    embedding: token, position and type tables, patch embeddings, special tokens.
    norm: norms outside the attentions.
    head: the matrix onto the vocabulary if it is not the token table, and what precedes it.
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
        """Return the sum of all shares."""
        return sum(self)

    def times(self, copies: int) -> Shares:
        """Return the shares multiplied by a number of copies."""
        return Shares(*(copies * number for number in self))

    @classmethod
    def summed(cls, shares: Iterable[Shares]) -> Shares:
        """Return the sum of several shares, purpose by purpose."""
        return cls(*map(sum, zip(*shares, strict=True)))

    @classmethod
    def outside(cls, terms: tuple[Term, ...]) -> Shares:
        """Return the shares of terms that are not part of an attention or feed-forward part."""
        embedding, norm, head = (total(terms, role) for role in ("embedding", "norm", "head"))
        return cls(0, 0, embedding, norm, head, total(terms) - embedding - norm - head)


class LayerCount(NamedTuple):
    """The parameters of one layer, counted by ``count_layer``.

    attentions: its attentions, a decoder's own one before the cross attention.
    feed_forward: its feed-forward part, or None.
    shares, total, active: its parameters, and those that one token passes through.
    terms: the summands of everything else: norms, scales.
    """

    spec: LayerSpec
    attentions: tuple[AttentionCount, ...]
    feed_forward: FeedForwardCount | None
    shares: Shares
    total: int
    active: int
    terms: tuple[Term, ...]


class GroupCount(NamedTuple):
    """The parameters of equal layers of a stack.

    layer: one of them. repeat: how many times a token passes through one. stored: how many of them
    have their own parameters. indices: which layers of the stack they are; None for all.
    """

    layer: LayerCount
    repeat: int
    stored: int
    indices: tuple[int, ...] | None


class StackCount(NamedTuple):
    """The parameters of one stack of layers, such as a decoder.

    groups: its layers, equal ones together.
    shares, total, active: of layers, embeddings, norms, parts and head together.
    terms: the summands outside the layers.
    """

    spec: StackSpec
    groups: tuple[GroupCount, ...]
    shares: Shares
    total: int
    active: int
    terms: tuple[Term, ...]


class ParameterCount(NamedTuple):
    """The parameters of an architecture, counted by ``count_parameters``.

    stacks: its stacks. shares, total: everything, with tied tables counted once.
    active: what one token passes through, without the experts that were not chosen. Tables count in
        full, as is usual. terms: the summands outside the stacks.
    buffers: the summands of numbers that are stored but not trained; not part of the total.
    buffer_total: their sum.
    """

    stacks: tuple[StackCount, ...]
    shares: Shares
    total: int
    active: int
    terms: tuple[Term, ...]
    buffers: tuple[Term, ...]
    buffer_total: int


def count_parameters(spec: ModelSpec) -> ParameterCount:
    """Count the parameters of an architecture, shared ones once."""
    stacks = tuple(_stack(stack) for stack in spec.stacks)
    terms = (
        *(term for part in spec.embeddings for term in of_part(part, "embedding")),
        *(term for part in spec.parts for term in of_part(part)),
    )
    buffers = tuple(_buffers(spec))
    shares = Shares.summed([Shares.outside(terms), *(stack.shares for stack in stacks)])
    return ParameterCount(
        stacks=stacks,
        shares=shares,
        total=shares.total,
        active=sum(stack.active for stack in stacks) + total(terms),
        terms=terms,
        buffers=buffers,
        buffer_total=total(buffers),
    )


def _stack(spec: StackSpec) -> StackCount:
    groups = tuple(
        GroupCount(count_layer(group.layer), group.repeat, _stored(group), group.indices)
        for group in spec.groups
    )
    terms = (
        *(term for part in spec.embeddings for term in of_part(part, "embedding")),
        *(term for part in (*spec.norms, *spec.parts) for term in of_part(part)),
        *(() if spec.head is None else of_part(spec.head, "head")),
    )
    layers = [group.layer.shares.times(group.stored) for group in groups]
    shares = Shares.summed([Shares.outside(terms), *layers])
    active = sum(group.layer.active * group.stored for group in groups)
    return StackCount(spec, groups, shares, shares.total, active + total(terms), terms)


def _stored(group: LayerGroup) -> int:
    return 1 if group.shared else group.repeat


def count_layer(spec: LayerSpec) -> LayerCount:
    """Count the parameters of one layer."""
    attentions = tuple(count_attention(attention) for attention in spec.attentions)
    forward = None if spec.feed_forward is None else count_feed_forward(spec.feed_forward)
    terms = tuple(term for part in (*spec.norms, *spec.parts) for term in of_part(part))
    wide, idle = (0, 0) if forward is None else (forward.total, forward.total - forward.active)
    inner = Shares(sum(attention.total for attention in attentions), wide)
    shares = Shares.summed([inner, Shares.outside(terms)])
    return LayerCount(
        spec=spec,
        attentions=attentions,
        feed_forward=forward,
        shares=shares,
        total=shares.total,
        active=shares.total - idle,
        terms=terms,
    )


def _buffers(spec: ModelSpec) -> Iterator[Term]:
    for stack in spec.stacks:
        for buffer in stack.buffers:
            yield Term(buffer.label, buffer.numbers, f"{buffer.numbers:,}")
        for group in stack.groups:
            stored = _stored(group)
            held = (*group.layer.buffers, *getattr(group.layer.feed_forward, "buffers", ()))
            for buffer in held:
                numbers = stored * buffer.numbers
                yield Term(buffer.label, numbers, f"{stored} × {buffer.numbers} = {numbers:,}")
