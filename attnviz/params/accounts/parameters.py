"""The parameters of a design, from one attention up to the whole, as exact integers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from attnviz.params.accounts.terms import Term
from attnviz.params.specs import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LayerSpec,
    StackSpec,
)

__all__ = [
    "AttentionCount",
    "FeedForwardCount",
    "GroupCount",
    "LayerCount",
    "ParameterCount",
    "PerHead",
    "Shares",
    "StackCount",
]


@dataclass(frozen=True)
class PerHead:
    """What one head holds, biases left out: query and output of a query head, key and value of a
    key/value head. Of latent attention, the parts that belong to one head alone."""

    query: int
    key: int
    value: int
    output: int


@dataclass(frozen=True)
class AttentionCount:
    """The parameters of one attention.

    query, key, value, output: the projections, without biases.
    latent: the projections down that heads share (latent attention); 0 elsewhere.
    bias: all biases; query_bias … output_bias are their shares, latent ones in the rest.
    norm: norms of queries, keys and latent vectors.
    other: sinks, gates, position bias tables.
    total: all of these.
    per_head: what one head holds.
    terms: each line with its arithmetic, which add up to the total.
    """

    spec: AttentionSpec
    query: int
    key: int
    value: int
    output: int
    latent: int
    bias: int
    query_bias: int
    key_bias: int
    value_bias: int
    output_bias: int
    norm: int
    other: int
    total: int
    per_head: PerHead
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class FeedForwardCount:
    """The parameters of one feed-forward part.

    up, gate, down: the matrices, of all experts together, without biases.
    bias: all biases.
    router: the matrix that chooses the experts; 0 without experts.
    shared: what the shared expert holds of all of these.
    other: what is left, as a gate on the shared expert.
    total, active: all of them, and those that one token passes through.
    per_expert: one routed expert; 0 without experts.
    terms: each line with its arithmetic, which add up to the total.
    """

    spec: FeedForwardSpec | ExpertsSpec
    up: int
    gate: int
    down: int
    bias: int
    router: int
    shared: int
    other: int
    total: int
    active: int
    per_expert: int
    terms: tuple[Term, ...]


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

    spec: LayerSpec
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

    spec: StackSpec
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
