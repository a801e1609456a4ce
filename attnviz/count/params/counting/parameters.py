"""Counts an architecture's parameters as exact integers, from one matrix up to the whole.

Each term is a product that is written out, so that a person can check it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from attnviz.count.params import specs


class Term(NamedTuple):
    """A summand of a count, with its arithmetic.

    label: what is counted, in words. number: the count.
    formula: the arithmetic in numbers, such as ``4096 × 4096 = 16,777,216``.
    symbols: the same arithmetic in names, such as ``d_model × heads × head_dim``; may be empty.
    role: the share it belongs to: ``query``, ``key``, ``value``, ``output``, ``latent``, ``bias``,
        ``norm``, ``up``, ``gate``, ``down``, ``router``, ``embedding``, ``head``, ``other``.
    factors: the sizes whose product is the count: of a matrix (inputs, outputs), of equal ones
        (copies, inputs, outputs); empty if it is no product.
    """

    label: str
    number: int
    formula: str
    symbols: str = ""
    role: str = "other"
    factors: tuple[int, ...] = ()


def product(label: str, *factors: int, role: str = "other", symbols: str = "") -> Term:
    """Return the product of ``factors`` as a term that shows the multiplication as its formula.

    label: what is counted. role: the share of the parameters that it belongs to, see ``Term``.
    symbols: the same multiplication in names, such as ``d_model × d_ff``; may be empty.
    """
    number = math.prod(factors)
    formula = f"{number:,}"
    if len(factors) > 1:
        formula = f"{' × '.join(map(str, factors))} = {formula}"
    return Term(label, number, formula, symbols, role, factors)


def total(terms: Iterable[Term], *roles: str) -> int:
    """Return the sum of the terms' numbers, or only of those with one of the ``roles``."""
    return sum(term.number for term in terms if not roles or term.role in roles)


def terms_of(parts: Iterable[specs.Part], role: str = "other") -> tuple[Term, ...]:
    """Return the terms of matrices, tables and norms; norms have the role ``norm``.

    role: the share of the parameters that the other terms belong to.
    Of a tied matrix only the bias is counted here.
    """
    terms = []
    for part in parts:
        match part:
            case specs.Dense(label, inputs, outputs):
                if not part.tied:
                    terms.append(product(label, inputs, outputs, role=role))
                if part.bias:
                    terms.append(product(f"{label} bias", outputs, role=role))
            case specs.LookupTable(label, rows, width):
                terms.append(product(label, *[rows] * (rows != 1), width, role=role))
            case specs.Norm(label, width):
                if vectors := part.scale + part.shift:
                    terms.append(product(label, *[2] * (vectors > 1), width, role="norm"))
    return tuple(terms)


# One attention --------------------------------------------------------------------------------


class PerHead(NamedTuple):
    """The parameters of one head without biases and without the latent matrices that heads share.

    query, output: of a query head. key, value: of a key/value head.
    """

    query: int
    key: int
    value: int
    output: int


class AttentionCount(NamedTuple):
    """The parameters of one attention, counted by ``count_attention``.

    terms: lines with their arithmetic that add up to the total. Roles are ``query``, ``key``,
        ``value``, ``output`` (the projections), ``latent`` (those to the latent vectors, which
        heads share), ``bias``, ``norm`` and ``other`` (sinks, gates, position bias tables).
    """

    spec: specs.AttentionSpec
    terms: tuple[Term, ...]

    def of(self, *roles: str) -> int:
        """Return the number of parameters with one of the ``roles``; of all without any."""
        return total(self.terms, *roles)

    @property
    def per_head(self) -> PerHead:
        """Return the parameters of one head."""
        spec, latent = self.spec, self.spec.latent
        query = self.of("query") // spec.heads
        if latent is not None and latent.q_lora is not None:  # the heads share the way down
            query = latent.q_lora * (latent.nope_dim + latent.rope_dim)
        key, value = (self.of(role) // spec.kv_heads for role in ("key", "value"))
        return PerHead(query, key, value, self.of("output") // spec.heads)


def count_attention(spec: specs.AttentionSpec) -> AttentionCount:
    """Count an attention's parameters: d·(H·D) + d·(K·D) + d·(K·V) + (H·V)·d, biases and norms."""
    projections = (_latent if spec.latent else _projections)(spec)
    return AttentionCount(spec, (*projections, *_biases(spec), *terms_of(spec.parts)))


def _projections(spec: specs.AttentionSpec) -> Iterator[Term]:
    d, source = spec.d_model, spec.source_width or spec.d_model
    read = "d_model" if source == d else "d_source"
    value = "head_dim" if spec.value_dim == spec.head_dim else "v_head_dim"
    shared = "heads" if spec.kv_heads == spec.heads else "kv_heads"
    for role, inputs, outputs, symbols in (
        ("query", d, spec.heads * spec.head_dim, "d_model × (heads × head_dim)"),
        ("key", source, spec.kv_heads * spec.head_dim, f"{read} × ({shared} × head_dim)"),
        ("value", source, spec.kv_heads * spec.value_dim, f"{read} × ({shared} × {value})"),
        ("output", spec.heads * spec.value_dim, d, f"(heads × {value}) × d_model"),
    ):
        yield product(role, inputs, outputs, role=role, symbols=symbols)


def _latent(spec: specs.AttentionSpec) -> Iterator[Term]:
    """Yield the terms of latent attention (DeepSeek-V2): to latent vectors, from them to heads."""
    assert spec.latent is not None
    d, heads, (narrow, rope, nope, squeezed, _) = spec.d_model, spec.heads, spec.latent
    width, values = heads * (nope + rope), heads * spec.value_dim
    wide = "(heads × (nope_dim + rope_dim))"
    queries = [("query", "query", d, width, f"d_model × {wide}")]
    if squeezed is not None:
        queries = [
            ("query", "query down", d, squeezed, "d_model × q_lora"),
            ("query", "query up", squeezed, width, f"q_lora × {wide}"),
        ]
    down = "key and value down"
    for role, label, inputs, outputs, symbols in (
        *queries,
        ("latent", down, d, narrow + rope, "d_model × (kv_lora + rope_dim)"),
        ("key", "key up", narrow, heads * nope, "kv_lora × (heads × nope_dim)"),
        ("value", "value up", narrow, values, "kv_lora × (heads × v_head_dim)"),
        ("output", "output", values, d, "(heads × v_head_dim) × d_model"),
    ):
        yield product(label, inputs, outputs, role=role, symbols=symbols)


def _biases(spec: specs.AttentionSpec) -> Iterator[Term]:
    widths = {
        "query": spec.query_bias * spec.heads * spec.head_dim,
        "key": spec.key_bias * spec.kv_heads * spec.head_dim,
        "value": spec.value_bias * spec.kv_heads * spec.value_dim,
        "output": spec.output_bias * spec.d_model,
    }
    if spec.latent is not None and spec.latent.down_bias:
        widths["down"] = spec.latent.kv_lora + spec.latent.rope_dim
        widths["query down"] = spec.latent.q_lora or 0
    return (product(f"{name} bias", size, role="bias") for name, size in widths.items() if size)


# One feed-forward part ------------------------------------------------------------------------


class FeedForwardCount(NamedTuple):
    """The parameters of one feed-forward part, counted by ``count_feed_forward``.

    terms: lines with their arithmetic that add up to the total. Roles are ``up``, ``gate``,
        ``down`` (the matrices, of all experts together), ``bias``, ``router`` (the matrix that
        chooses the experts), ``norm`` and ``other``, such as a gate on the shared expert.
    shared: the part of these numbers that belongs to the shared expert.
    per_expert: the parameters of one routed expert; 0 without experts.
    """

    spec: specs.FeedForwardSpec | specs.ExpertsSpec
    terms: tuple[Term, ...]
    shared: int = 0
    per_expert: int = 0

    def of(self, *roles: str) -> int:
        """Return the number of parameters with one of the ``roles``; of all without any."""
        return total(self.terms, *roles)

    @property
    def idle(self) -> int:
        """Return the parameters of the experts that one token does not pass through."""
        if isinstance(self.spec, specs.FeedForwardSpec):
            return 0
        return (self.spec.experts - self.spec.active) * self.per_expert


def count_feed_forward(spec: specs.FeedForwardSpec | specs.ExpertsSpec) -> FeedForwardCount:
    """Count a feed-forward part's parameters: 2·d·f, 3·d·f if gated, biases; experts and router."""
    if isinstance(spec, specs.FeedForwardSpec):
        return FeedForwardCount(spec, tuple(_matrices(spec)))
    d, experts = spec.expert.d_model, spec.experts
    shared = () if spec.shared is None else tuple(_matrices(spec.shared, "shared expert "))
    terms = (
        *_matrices(spec.expert, "experts ", experts),
        product("router", d, experts, role="router", symbols="d_model × experts"),
        *[product("router bias", experts, role="bias")] * spec.router_bias,
        *shared,
        *terms_of(spec.parts),
    )
    return FeedForwardCount(spec, terms, total(shared), total(_matrices(spec.expert)))


def _matrices(spec: specs.FeedForwardSpec, prefix: str = "", *copies: int) -> Iterator[Term]:
    d, f, times = spec.d_model, spec.d_ff, "experts × " if copies else ""
    inwards = ("up", "gate") if spec.gated else ("up",)
    for role in inwards:
        yield product(f"{prefix}{role}", *copies, d, f, role=role, symbols=f"{times}d_model × d_ff")
    yield product(f"{prefix}down", *copies, f, d, role="down", symbols=f"{times}d_ff × d_model")
    if spec.up_bias:
        yield product(f"{prefix}up bias", *copies, *[2] * spec.gated, f, role="bias")
    if spec.down_bias:
        yield product(f"{prefix}down bias", *copies, d, role="bias")


# Layers, stacks and models --------------------------------------------------------------------


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
    def summed(cls, terms: tuple[Term, ...], *inner: Shares) -> Shares:
        """Return the sum of the shares of inner layers, and of the terms outside of them."""
        embedding, norm, head = (total(terms, role) for role in ("embedding", "norm", "head"))
        outside = cls(0, 0, embedding, norm, head, total(terms) - embedding - norm - head)
        return cls(*map(sum, zip(outside, *inner, strict=True)))


class LayerCount(NamedTuple):
    """The parameters of one layer, counted by ``count_layer``.

    attentions: its attentions, a decoder's own one before the cross attention.
    feed_forward: its feed-forward part, or None.
    terms: the summands of everything else: norms, scales. shares: all by purpose.
    active: the parameters that one token passes through.
    """

    spec: specs.LayerSpec
    attentions: tuple[AttentionCount, ...]
    feed_forward: FeedForwardCount | None
    terms: tuple[Term, ...]
    shares: Shares
    active: int


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

    groups: its layers, equal ones together. terms: the summands outside the layers.
    shares, active: of layers, embeddings, norms, parts and head together, as in ``LayerCount``.
    """

    spec: specs.StackSpec
    groups: tuple[GroupCount, ...]
    terms: tuple[Term, ...]
    shares: Shares
    active: int


class ParameterCount(NamedTuple):
    """The parameters of an architecture, counted by ``count_parameters``.

    stacks: its stacks. terms: the summands outside the stacks.
    shares: everything by purpose, with tied tables counted once.
    active: what one token passes through, without the experts that were not chosen. Tables count in
        full, as is usual.
    buffers: the summands of numbers that are stored but not trained; not part of the total.
    """

    stacks: tuple[StackCount, ...]
    terms: tuple[Term, ...]
    shares: Shares
    active: int
    buffers: tuple[Term, ...]

    @property
    def total(self) -> int:
        """Return the number of parameters."""
        return self.shares.total

    @property
    def buffer_total(self) -> int:
        """Return how many numbers are stored but not trained."""
        return total(self.buffers)


def count_parameters(spec: specs.ModelSpec) -> ParameterCount:
    """Count the parameters of an architecture, shared ones once."""
    stacks = tuple(map(_stack, spec.stacks))
    terms = (*terms_of(spec.embeddings, "embedding"), *terms_of(spec.parts))
    shares = Shares.summed(terms, *(stack.shares for stack in stacks))
    active = sum(stack.active for stack in stacks) + total(terms)
    return ParameterCount(stacks, terms, shares, active, tuple(_buffers(spec)))


def _stack(spec: specs.StackSpec) -> StackCount:
    groups = tuple(
        GroupCount(count_layer(group.layer), group.repeat, group.stored, group.indices)
        for group in spec.groups
    )
    terms = (
        *terms_of(spec.embeddings, "embedding"),
        *terms_of((*spec.norms, *spec.parts)),
        *terms_of([] if spec.head is None else [spec.head], "head"),
    )
    shares = Shares.summed(terms, *(group.layer.shares.times(group.stored) for group in groups))
    active = sum(group.layer.active * group.stored for group in groups)
    return StackCount(spec, groups, terms, shares, active + total(terms))


def count_layer(spec: specs.LayerSpec) -> LayerCount:
    """Count the parameters of one layer."""
    attentions = tuple(map(count_attention, spec.attentions))
    forward = None if spec.feed_forward is None else count_feed_forward(spec.feed_forward)
    terms = terms_of((*spec.norms, *spec.parts))
    wide, idle = (0, 0) if forward is None else (forward.of(), forward.idle)
    shares = Shares.summed(terms, Shares(sum(count.of() for count in attentions), wide))
    return LayerCount(spec, attentions, forward, terms, shares, shares.total - idle)


def _buffers(spec: specs.ModelSpec) -> Iterator[Term]:
    for stack in spec.stacks:
        for buffer in stack.buffers:
            yield product(buffer.label, buffer.numbers)
        for group in stack.groups:
            inner = getattr(group.layer.feed_forward, "buffers", ())
            for buffer in (*group.layer.buffers, *inner):
                yield product(buffer.label, group.stored, buffer.numbers)
