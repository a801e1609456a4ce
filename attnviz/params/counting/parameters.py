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
    AttentionDesign,
    Design,
    ExpertsDesign,
    FeedForwardDesign,
    LatentDesign,
    LayerDesign,
    LayerGroup,
    StackDesign,
)

__all__ = ["count_attention", "count_feed_forward", "count_layer", "count_parameters"]


def count_attention(design: AttentionDesign) -> AttentionCount:
    """Count one attention: d·(H·D) + d·(K·D) + d·(K·V) + (H·V)·d, biases and norms."""
    matrices = _latent(design, design.latent) if design.latent else _projections(design)
    biases = _biases(design)
    parts = tuple(term for part in design.parts for term in of_part(part))
    terms = (*matrices, *biases.values(), *parts)
    query, key, value, output = (total(terms, role) for role in ("query", "key", "value", "output"))
    return AttentionCount(
        design=design,
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
            query=query // design.heads if not _squeezed(design) else _own_query(design),
            key=key // design.kv_heads,
            value=value // design.kv_heads,
            output=output // design.heads,
        ),
        terms=terms,
    )


def _projections(design: AttentionDesign) -> tuple[Term, ...]:
    d, source = design.d_model, design.source_width or design.d_model
    read = "d_model" if source == d else "d_source"
    dim, value = ("head_dim", "v_head_dim")
    value = dim if design.value_dim == design.head_dim else value
    heads, groups = design.heads, design.kv_heads
    shared = "heads" if groups == heads else "kv_heads"
    return (
        product(
            "query", (d, heads * design.head_dim), role="query",
            symbols=f"d_model × (heads × {dim})",
        ),
        product(
            "key", (source, groups * design.head_dim), role="key",
            symbols=f"{read} × ({shared} × {dim})",
        ),
        product(
            "value", (source, groups * design.value_dim), role="value",
            symbols=f"{read} × ({shared} × {value})",
        ),
        product(
            "output", (heads * design.value_dim, d), role="output",
            symbols=f"(heads × {value}) × d_model",
        ),
    )  # fmt: skip


def _latent(design: AttentionDesign, latent: LatentDesign) -> tuple[Term, ...]:
    """The matrices of latent attention: down, then up to the heads (DeepSeek-V2, section 2.1)."""
    d, heads = design.d_model, design.heads
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
        product("value up", (latent.kv_lora, heads * design.value_dim), role="value",
                symbols="kv_lora × (heads × v_head_dim)"),
        product("output", (heads * design.value_dim, d), role="output",
                symbols="(heads × v_head_dim) × d_model"),
    )  # fmt: skip


def _biases(design: AttentionDesign) -> dict[str, Term]:
    groups = design.kv_heads
    widths = {
        "query": (design.query_bias, design.heads * design.head_dim),
        "key": (design.key_bias, groups * design.head_dim),
        "value": (design.value_bias, groups * design.value_dim),
        "output": (design.output_bias, design.d_model),
    }
    terms = {
        name: product(f"{name} bias", (width,), role="bias")
        for name, (present, width) in widths.items()
        if present
    }
    latent = design.latent
    if latent is not None and latent.down_bias:
        terms["latent"] = product("down bias", (latent.kv_lora + latent.rope_dim,), role="bias")
        if latent.q_lora is not None:
            terms["query down"] = product("query down bias", (latent.q_lora,), role="bias")
    return terms


def _squeezed(design: AttentionDesign) -> bool:
    return design.latent is not None and design.latent.q_lora is not None


def _own_query(design: AttentionDesign) -> int:
    """The rows of the query's way up that belong to one head; the way down is shared."""
    assert design.latent is not None
    return (design.latent.q_lora or 0) * (design.latent.nope_dim + design.latent.rope_dim)


def _count(term: Term | None) -> int:
    return term.count if term is not None else 0


def count_feed_forward(design: FeedForwardDesign | ExpertsDesign) -> FeedForwardCount:
    """Count 2·d·f, gated 3·d·f, with biases; of experts all of them and the router."""
    if isinstance(design, FeedForwardDesign):
        terms = _matrices(design)
        return _sum(design, terms, active=total(terms), shared=0, per_expert=0)
    expert = total(_matrices(design.expert))
    shared = () if design.shared is None else _matrices(design.shared, prefix="shared expert ")
    terms = (
        *_matrices(design.expert, copies=design.experts, prefix="experts "),
        *_router(design),
        *shared,
        *(term for part in design.parts for term in of_part(part)),
    )
    idle = (design.experts - design.active) * expert
    return _sum(design, terms, active=total(terms) - idle, shared=total(shared), per_expert=expert)


def _sum(
    design: FeedForwardDesign | ExpertsDesign,
    terms: tuple[Term, ...],
    *,
    active: int,
    shared: int,
    per_expert: int,
) -> FeedForwardCount:
    return FeedForwardCount(
        design=design,
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
    design: FeedForwardDesign, *, copies: int | None = None, prefix: str = ""
) -> tuple[Term, ...]:
    d, f = design.d_model, design.d_ff
    times, symbol = ((), "") if copies is None else ((copies,), "experts × ")
    terms = [product(f"{prefix}up", (*times, d, f), role="up", symbols=f"{symbol}d_model × d_ff")]
    if design.gated:
        terms.append(
            product(f"{prefix}gate", (*times, d, f), role="gate", symbols=f"{symbol}d_model × d_ff")
        )
    terms.append(
        product(f"{prefix}down", (*times, f, d), role="down", symbols=f"{symbol}d_ff × d_model")
    )
    if design.up_bias:
        wide = (*times, 2, f) if design.gated else (*times, f)
        terms.append(product(f"{prefix}up bias", wide, role="bias"))
    if design.down_bias:
        terms.append(product(f"{prefix}down bias", (*times, d), role="bias"))
    return tuple(terms)


def _router(design: ExpertsDesign) -> tuple[Term, ...]:
    d, experts = design.expert.d_model, design.experts
    matrix = product("router", (d, experts), role="router", symbols="d_model × experts")
    if not design.router_bias:
        return (matrix,)
    return (matrix, product("router bias", (experts,), role="bias"))


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
