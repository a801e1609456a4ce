"""The parameters of one attention: query, key, value and output apart, and per head."""

from __future__ import annotations

from attnviz.accounts.parameters import AttentionCount, PerHead
from attnviz.accounts.terms import Term
from attnviz.analysis.accounting.terms import of_part, product, total
from attnviz.designs import AttentionDesign, LatentDesign

__all__ = ["count_attention"]


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
