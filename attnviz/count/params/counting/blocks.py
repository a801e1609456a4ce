"""Counts the parameters of one attention and of one feed-forward part, term by term.

Each term is a product that is written out, so that a person can check it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
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


def product(label: str, factors: Iterable[int], *, role: str = "other", symbols: str = "") -> Term:
    """Return the product of ``factors`` as a term that shows the multiplication as its formula.

    label: what is counted. role: the share of the parameters that it belongs to, see ``Term``.
    symbols: the same multiplication in names, such as ``d_model × d_ff``; may be empty.
    """
    factors = tuple(factors)
    number = math.prod(factors)
    formula = f"{number:,}"
    if len(factors) > 1:
        formula = f"{' × '.join(map(str, factors))} = {formula}"
    return Term(label, number, formula, symbols, role, factors)


def total(terms: Iterable[Term], *roles: str) -> int:
    """Return the sum of the terms' numbers, or only of those with one of the ``roles``."""
    return sum(term.number for term in terms if not roles or term.role in roles)


def of_part(part: specs.Part, role: str = "other") -> tuple[Term, ...]:
    """Return the terms of a matrix, a table or a norm; norms have the role ``norm``.

    role: the share of the parameters that the other terms belong to.
    Of a tied matrix only the bias is counted here.
    """
    match part:
        case specs.Dense():
            matrix = product(part.label, (part.inputs, part.outputs), role=role)
            bias = product(f"{part.label} bias", (part.outputs,), role=role)
            return (*(() if part.tied else (matrix,)), *((bias,) if part.bias else ()))
        case specs.LookupTable():
            factors = (part.rows, part.width) if part.rows != 1 else (part.width,)
            return (product(part.label, factors, role=role),)
        case specs.Norm():
            vectors = part.scale + part.shift
            if not vectors:
                return ()
            factors = (vectors, part.width) if vectors > 1 else (part.width,)
            return (product(part.label, factors, role="norm"),)


class PerHead(NamedTuple):
    """The parameters of one head without biases and without the latent matrices that heads share.

    query, output: of a query head. key, value: of a key/value head.
    """

    query: int
    key: int
    value: int
    output: int


class AttentionCount(NamedTuple):
    """The parameters of one attention by part, counted by ``count_attention``.

    query, key, value, output: of the projections, without biases.
    latent: of the projections to the latent vectors, which heads share; 0 without these.
    bias: all biases. norm: norms of queries, keys and latent vectors.
    other: sinks, gates, position bias tables. total: all of these.
    per_head: the parameters of one head.
    terms: lines with their arithmetic that add up to the total.
    """

    spec: specs.AttentionSpec
    query: int
    key: int
    value: int
    output: int
    latent: int
    bias: int
    norm: int
    other: int
    total: int
    per_head: PerHead
    terms: tuple[Term, ...]


_ROLES = ("query", "key", "value", "output", "latent", "bias", "norm", "other")


def count_attention(spec: specs.AttentionSpec) -> AttentionCount:
    """Count an attention's parameters: d·(H·D) + d·(K·D) + d·(K·V) + (H·V)·d, biases and norms."""
    terms = (
        *(_latent(spec, spec.latent) if spec.latent else _projections(spec)),
        *_biases(spec),
        *(term for part in spec.parts for term in of_part(part)),
    )
    of_role = {role: total(terms, role) for role in _ROLES}
    own_query = of_role["query"] // spec.heads
    if spec.latent is not None and spec.latent.q_lora is not None:  # the heads share this
        own_query = spec.latent.q_lora * (spec.latent.nope_dim + spec.latent.rope_dim)
    return AttentionCount(
        spec=spec,
        **of_role,
        total=total(terms),
        per_head=PerHead(
            own_query,
            of_role["key"] // spec.kv_heads,
            of_role["value"] // spec.kv_heads,
            of_role["output"] // spec.heads,
        ),
        terms=terms,
    )


def _projections(spec: specs.AttentionSpec) -> tuple[Term, ...]:
    d, source = spec.d_model, spec.source_width or spec.d_model
    read = "d_model" if source == d else "d_source"
    value = "head_dim" if spec.value_dim == spec.head_dim else "v_head_dim"
    shared = "heads" if spec.kv_heads == spec.heads else "kv_heads"
    wide, grouped = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    values, mixed = spec.kv_heads * spec.value_dim, spec.heads * spec.value_dim
    query, output = "d_model × (heads × head_dim)", f"(heads × {value}) × d_model"
    return (
        product("query", (d, wide), role="query", symbols=query),
        product("key", (source, grouped), role="key", symbols=f"{read} × ({shared} × head_dim)"),
        product("value", (source, values), role="value", symbols=f"{read} × ({shared} × {value})"),
        product("output", (mixed, d), role="output", symbols=output),
    )


def _latent(spec: specs.AttentionSpec, latent: specs.LatentSpec) -> tuple[Term, ...]:
    """Return terms for latent attention (DeepSeek-V2): to the latent vectors, from them to heads.

    spec: the attention. latent: its latent vectors.
    """
    d, heads, narrow = spec.d_model, spec.heads, latent.kv_lora
    width, values = heads * (latent.nope_dim + latent.rope_dim), heads * spec.value_dim
    wide = "(heads × (nope_dim + rope_dim))"
    lines = [
        ("query", "query down", (d, latent.q_lora or 0), "d_model × q_lora"),
        ("query", "query up", (latent.q_lora or 0, width), f"q_lora × {wide}"),
    ]
    if latent.q_lora is None:
        lines = [("query", "query", (d, width), f"d_model × {wide}")]
    lines += [
        (
            *("latent", "key and value down", (d, narrow + latent.rope_dim)),
            "d_model × (kv_lora + rope_dim)",
        ),
        ("key", "key up", (narrow, heads * latent.nope_dim), "kv_lora × (heads × nope_dim)"),
        ("value", "value up", (narrow, values), "kv_lora × (heads × v_head_dim)"),
        ("output", "output", (values, d), "(heads × v_head_dim) × d_model"),
    ]
    return tuple(
        product(label, factors, role=role, symbols=symbols)
        for role, label, factors, symbols in lines
    )


def _biases(spec: specs.AttentionSpec) -> tuple[Term, ...]:
    widths = {
        "query bias": spec.query_bias * spec.heads * spec.head_dim,
        "key bias": spec.key_bias * spec.kv_heads * spec.head_dim,
        "value bias": spec.value_bias * spec.kv_heads * spec.value_dim,
        "output bias": spec.output_bias * spec.d_model,
    }
    if spec.latent is not None and spec.latent.down_bias:
        widths["down bias"] = spec.latent.kv_lora + spec.latent.rope_dim
        widths["query down bias"] = spec.latent.q_lora or 0
    return tuple(product(label, (width,), role="bias") for label, width in widths.items() if width)


class FeedForwardCount(NamedTuple):
    """The parameters of one feed-forward part, counted by ``count_feed_forward``.

    up, gate, down: the matrices, of all experts together, without biases. bias: all biases.
    router: the matrix that chooses the experts; 0 without experts.
    shared: the part of these numbers that belongs to the shared expert.
    other: the rest, such as a gate on the shared expert.
    total, active: all parameters, and those that one token passes through.
    per_expert: those of one routed expert; 0 without experts.
    terms: lines with their arithmetic that add up to the total.
    """

    spec: specs.FeedForwardSpec | specs.ExpertsSpec
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


def count_feed_forward(spec: specs.FeedForwardSpec | specs.ExpertsSpec) -> FeedForwardCount:
    """Count a feed-forward part's parameters: 2·d·f, 3·d·f if gated, biases; experts and router."""
    shared: tuple[Term, ...] = ()
    idle = per_expert = 0
    if isinstance(spec, specs.FeedForwardSpec):
        terms = _matrices(spec)
    else:
        per_expert = total(_matrices(spec.expert))
        idle = (spec.experts - spec.active) * per_expert
        if spec.shared is not None:
            shared = _matrices(spec.shared, prefix="shared expert ")
        terms = (
            *_matrices(spec.expert, copies=spec.experts, prefix="experts "),
            *_router(spec),
            *shared,
            *(term for part in spec.parts for term in of_part(part)),
        )
    return FeedForwardCount(
        spec=spec,
        **{role: total(terms, role) for role in ("up", "gate", "down", "bias", "router")},
        shared=total(shared),
        other=total(terms, "other", "norm"),
        total=total(terms),
        active=total(terms) - idle,
        per_expert=per_expert,
        terms=terms,
    )


def _matrices(
    spec: specs.FeedForwardSpec, *, copies: int | None = None, prefix: str = ""
) -> tuple[Term, ...]:
    d, f = spec.d_model, spec.d_ff
    times, symbol = ((), "") if copies is None else ((copies,), "experts × ")
    inwards = ("up", "gate") if spec.gated else ("up",)
    terms = [
        product(f"{prefix}{role}", (*times, d, f), role=role, symbols=f"{symbol}d_model × d_ff")
        for role in inwards
    ]
    terms.append(
        product(f"{prefix}down", (*times, f, d), role="down", symbols=f"{symbol}d_ff × d_model")
    )
    if spec.up_bias:
        wide = (*times, 2, f) if spec.gated else (*times, f)
        terms.append(product(f"{prefix}up bias", wide, role="bias"))
    if spec.down_bias:
        terms.append(product(f"{prefix}down bias", (*times, d), role="bias"))
    return tuple(terms)


def _router(spec: specs.ExpertsSpec) -> tuple[Term, ...]:
    d, experts = spec.expert.d_model, spec.experts
    matrix = product("router", (d, experts), role="router", symbols="d_model × experts")
    if not spec.router_bias:
        return (matrix,)
    return (matrix, product("router bias", (experts,), role="bias"))
