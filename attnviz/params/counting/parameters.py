"""The parameters of a design: attention, feed-forward part, norms and tables, term by term."""

from __future__ import annotations

from collections.abc import Iterable

from attnviz.params.accounts.parameters import (
    AttentionCount,
    FeedForwardCount,
    GroupCount,
    LayerCount,
    ParameterCount,
    PerHead,
    Shares,
    StackCount,
)
from attnviz.params.accounts.terms import Term
from attnviz.params.counting.terms import of_part, product, total
from attnviz.params.specs import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LatentSpec,
    LayerGroup,
    LayerSpec,
    ModelSpec,
    StackSpec,
)

__all__ = ["count_attention", "count_feed_forward", "count_layer", "count_parameters"]


def count_attention(spec: AttentionSpec) -> AttentionCount:
    """Count one attention: d·(H·D) + d·(K·D) + d·(K·V) + (H·V)·d, biases and norms."""
    matrices = _latent(spec, spec.latent) if spec.latent else _projections(spec)
    biases = _biases(spec)
    parts = tuple(term for part in spec.parts for term in of_part(part))
    terms = (*matrices, *biases.values(), *parts)
    query, key, value, output = (total(terms, role) for role in ("query", "key", "value", "output"))
    return AttentionCount(
        spec=spec,
        query=query,
        key=key,
        value=value,
        output=output,
        latent=total(terms, "latent"),
        bias=total(terms, "bias"),
        query_bias=_count(biases.get("query")),
        key_bias=_count(biases.get("key")),
        value_bias=_count(biases.get("value")),
        output_bias=_count(biases.get("output")),
        norm=total(terms, "norm"),
        other=total(terms, "other"),
        total=total(terms),
        per_head=PerHead(
            query=query // spec.heads if not _squeezed(spec) else _own_query(spec),
            key=key // spec.kv_heads,
            value=value // spec.kv_heads,
            output=output // spec.heads,
        ),
        terms=terms,
    )


def _projections(spec: AttentionSpec) -> tuple[Term, ...]:
    d, source = spec.d_model, spec.source_width or spec.d_model
    read = "d_model" if source == d else "d_source"
    dim, value = ("head_dim", "v_head_dim")
    value = dim if spec.value_dim == spec.head_dim else value
    heads, groups = spec.heads, spec.kv_heads
    shared = "heads" if groups == heads else "kv_heads"
    return (
        product(
            "query", (d, heads * spec.head_dim), role="query",
            symbols=f"d_model × (heads × {dim})",
        ),
        product(
            "key", (source, groups * spec.head_dim), role="key",
            symbols=f"{read} × ({shared} × {dim})",
        ),
        product(
            "value", (source, groups * spec.value_dim), role="value",
            symbols=f"{read} × ({shared} × {value})",
        ),
        product(
            "output", (heads * spec.value_dim, d), role="output",
            symbols=f"(heads × {value}) × d_model",
        ),
    )  # fmt: skip


def _latent(spec: AttentionSpec, latent: LatentSpec) -> tuple[Term, ...]:
    """The matrices of latent attention: down, then up to the heads (DeepSeek-V2, section 2.1)."""
    d, heads = spec.d_model, spec.heads
    width = latent.nope_dim + latent.rope_dim
    if latent.q_lora is None:
        queries = [
            product("query", (d, heads * width), role="query",
                    symbols="d_model × (heads × (nope_dim + rope_dim))"),
        ]  # fmt: skip
    else:
        queries = [
            product("query down", (d, latent.q_lora), role="query", symbols="d_model × q_lora"),
            product("query up", (latent.q_lora, heads * width), role="query",
                    symbols="q_lora × (heads × (nope_dim + rope_dim))"),
        ]  # fmt: skip
    return (
        *queries,
        product("key and value down", (d, latent.kv_lora + latent.rope_dim), role="latent",
                symbols="d_model × (kv_lora + rope_dim)"),
        product("key up", (latent.kv_lora, heads * latent.nope_dim), role="key",
                symbols="kv_lora × (heads × nope_dim)"),
        product("value up", (latent.kv_lora, heads * spec.value_dim), role="value",
                symbols="kv_lora × (heads × v_head_dim)"),
        product("output", (heads * spec.value_dim, d), role="output",
                symbols="(heads × v_head_dim) × d_model"),
    )  # fmt: skip


def _biases(spec: AttentionSpec) -> dict[str, Term]:
    groups = spec.kv_heads
    widths = {
        "query": (spec.query_bias, spec.heads * spec.head_dim),
        "key": (spec.key_bias, groups * spec.head_dim),
        "value": (spec.value_bias, groups * spec.value_dim),
        "output": (spec.output_bias, spec.d_model),
    }
    terms = {
        name: product(f"{name} bias", (width,), role="bias")
        for name, (present, width) in widths.items()
        if present
    }
    latent = spec.latent
    if latent is not None and latent.down_bias:
        terms["latent"] = product("down bias", (latent.kv_lora + latent.rope_dim,), role="bias")
        if latent.q_lora is not None:
            terms["query down"] = product("query down bias", (latent.q_lora,), role="bias")
    return terms


def _squeezed(spec: AttentionSpec) -> bool:
    return spec.latent is not None and spec.latent.q_lora is not None


def _own_query(spec: AttentionSpec) -> int:
    """The rows of the query's way up that belong to one head; the way down is shared."""
    assert spec.latent is not None
    return (spec.latent.q_lora or 0) * (spec.latent.nope_dim + spec.latent.rope_dim)


def _count(term: Term | None) -> int:
    return term.count if term is not None else 0


def count_feed_forward(spec: FeedForwardSpec | ExpertsSpec) -> FeedForwardCount:
    """Count 2·d·f, gated 3·d·f, with biases; of experts all of them and the router."""
    if isinstance(spec, FeedForwardSpec):
        terms = _matrices(spec)
        return _sum(spec, terms, active=total(terms), shared=0, per_expert=0)
    expert = total(_matrices(spec.expert))
    shared = () if spec.shared is None else _matrices(spec.shared, prefix="shared expert ")
    terms = (
        *_matrices(spec.expert, copies=spec.experts, prefix="experts "),
        *_router(spec),
        *shared,
        *(term for part in spec.parts for term in of_part(part)),
    )
    idle = (spec.experts - spec.active) * expert
    return _sum(spec, terms, active=total(terms) - idle, shared=total(shared), per_expert=expert)


def _sum(
    spec: FeedForwardSpec | ExpertsSpec,
    terms: tuple[Term, ...],
    *,
    active: int,
    shared: int,
    per_expert: int,
) -> FeedForwardCount:
    return FeedForwardCount(
        spec=spec,
        up=total(terms, "up"),
        gate=total(terms, "gate"),
        down=total(terms, "down"),
        bias=total(terms, "bias"),
        router=total(terms, "router"),
        shared=shared,
        other=total(terms, "other", "norm"),
        total=total(terms),
        active=active,
        per_expert=per_expert,
        terms=terms,
    )


def _matrices(
    spec: FeedForwardSpec, *, copies: int | None = None, prefix: str = ""
) -> tuple[Term, ...]:
    d, f = spec.d_model, spec.d_ff
    times, symbol = ((), "") if copies is None else ((copies,), "experts × ")
    terms = [product(f"{prefix}up", (*times, d, f), role="up", symbols=f"{symbol}d_model × d_ff")]
    if spec.gated:
        terms.append(
            product(f"{prefix}gate", (*times, d, f), role="gate", symbols=f"{symbol}d_model × d_ff")
        )
    terms.append(
        product(f"{prefix}down", (*times, f, d), role="down", symbols=f"{symbol}d_ff × d_model")
    )
    if spec.up_bias:
        wide = (*times, 2, f) if spec.gated else (*times, f)
        terms.append(product(f"{prefix}up bias", wide, role="bias"))
    if spec.down_bias:
        terms.append(product(f"{prefix}down bias", (*times, d), role="bias"))
    return tuple(terms)


def _router(spec: ExpertsSpec) -> tuple[Term, ...]:
    d, experts = spec.expert.d_model, spec.experts
    matrix = product("router", (d, experts), role="router", symbols="d_model × experts")
    if not spec.router_bias:
        return (matrix,)
    return (matrix, product("router bias", (experts,), role="bias"))


def count_parameters(spec: ModelSpec) -> ParameterCount:
    """Count every weight of a design once."""
    stacks = tuple(_stack(stack) for stack in spec.stacks)
    terms = (
        *(term for part in spec.embeddings for term in of_part(part, "embedding")),
        *(term for part in spec.parts for term in of_part(part)),
    )
    buffers = tuple(_buffers(spec))
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


def count_layer(spec: LayerSpec) -> LayerCount:
    """Count one layer."""
    attentions = tuple(count_attention(attention) for attention in spec.attentions)
    feed_forward = None
    if spec.feed_forward is not None:
        feed_forward = count_feed_forward(spec.feed_forward)
    terms = tuple(term for part in (*spec.norms, *spec.parts) for term in of_part(part))
    wide = 0 if feed_forward is None else feed_forward.total
    idle = 0 if feed_forward is None else feed_forward.total - feed_forward.active
    shares = Shares(attention=sum(item.total for item in attentions), feed_forward=wide)
    shares += _outside(terms)
    return LayerCount(
        spec, attentions, feed_forward, shares, shares.total, shares.total - idle, terms
    )


def _stack(spec: StackSpec) -> StackCount:
    groups = tuple(_group(group) for group in spec.groups)
    terms = (
        *(term for part in spec.embeddings for term in of_part(part, "embedding")),
        *(term for part in (*spec.norms, *spec.parts) for term in of_part(part)),
        *(() if spec.head is None else of_part(spec.head, "head")),
    )
    layers = sum((group.layer.shares * group.stored for group in groups), Shares())
    shares = layers + _outside(terms)
    active = sum(group.layer.active * group.stored for group in groups)
    return StackCount(
        spec, groups, shares, shares.total, active + total(terms), layers.total, terms
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


def _buffers(spec: ModelSpec) -> Iterable[Term]:
    for stack in spec.stacks:
        for buffer in stack.buffers:
            yield Term(buffer.label, buffer.count, f"{buffer.count:,}")
        for group in stack.groups:
            stored = 1 if group.shared else group.repeat
            held = (*group.layer.buffers, *getattr(group.layer.feed_forward, "buffers", ()))
            for buffer in held:
                count = stored * buffer.count
                yield Term(buffer.label, count, f"{stored} × {buffer.count} = {count:,}")
