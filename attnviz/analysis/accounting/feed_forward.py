"""The parameters of a layer's feed-forward part: plain, gated, or a mixture of experts."""

from __future__ import annotations

from attnviz.accounts.parameters import FeedForwardCount
from attnviz.accounts.terms import Term
from attnviz.analysis.accounting.terms import of_part, product, total
from attnviz.designs import ExpertsDesign, FeedForwardDesign

__all__ = ["count_feed_forward"]


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
