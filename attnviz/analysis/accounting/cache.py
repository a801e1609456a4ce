"""The keys and values that a model keeps while it writes."""

from __future__ import annotations

from collections.abc import Iterator

from attnviz.accounts.running import CacheCount, CacheKind, CacheLine
from attnviz.analysis.accounting.dtypes import byte_count
from attnviz.analysis.accounting.lengths import Lengths
from attnviz.designs import AttentionDesign, Design

__all__ = ["cached_values", "count_cache"]


def count_cache(design: Design, length: Lengths, *, batch: int, dtype: str) -> CacheCount:
    """Count 2·L·K·D·tokens numbers; windows, latent vectors, states and cross attention as such.

    The current token is counted among those of a window, so a library that drops the oldest token
    before it adds one holds one less (window − 1) between two steps.
    """
    lines = tuple(_lines(design, length))
    growing = [line for line in lines if line.kind in ("full", "latent")]
    sliding = [line for line in lines if line.kind == "sliding"]
    late = sum(line.layers * line.per_token for line in growing)
    per_token = late + sum(line.layers * line.per_token for line in sliding)
    cross = [line for line in lines if line.kind == "cross"]

    def held(of: list[CacheLine]) -> int:
        return byte_count(batch * sum(line.values for line in of), dtype)

    return CacheCount(
        tokens=length.target,
        source_tokens=length.source,
        batch=batch,
        dtype=dtype,
        lines=lines,
        values_per_token=per_token,
        bytes_per_token=byte_count(per_token, dtype),
        bytes_per_token_late=byte_count(late, dtype),
        cross_bytes_per_token=byte_count(sum(i.layers * i.per_token for i in cross), dtype),
        bytes=held(list(lines)),
        cross_bytes=held(cross),
        constant_bytes=held([line for line in lines if line.kind == "linear"]),
    )


def cached_values(design: AttentionDesign) -> int:
    """Numbers that one layer keeps of one token, or of any text where attention is linear."""
    if design.latent is not None:
        return design.latent.kv_lora + design.latent.rope_dim
    if design.linear:
        return design.heads * design.head_dim * design.value_dim
    return design.kv_heads * (design.head_dim + design.value_dim)


def _lines(design: Design, length: Lengths) -> Iterator[CacheLine]:
    merged: dict[tuple[CacheKind, int, int | None, int], int] = {}
    for stack in design.stacks:
        if not stack.causal:
            continue
        for group in stack.groups:
            for attention in group.layer.attentions:
                kind, window, held = _held(attention, length.of(stack), length.source)
                key = (kind, cached_values(attention), window, held)
                merged[key] = merged.get(key, 0) + group.repeat
    for (kind, per_token, window, held), layers in merged.items():
        values = layers * per_token * held
        formula = f"{layers} × {per_token} × {held} = {values:,}"
        yield CacheLine(kind, layers, per_token, window, held, values, formula)


def _held(design: AttentionDesign, tokens: int, source: int) -> tuple[CacheKind, int | None, int]:
    if design.cross:
        return "cross", None, source
    if design.linear:
        return "linear", None, 1
    if design.window is not None:
        return "sliding", design.window, min(design.window, tokens)
    return ("latent" if design.latent is not None else "full"), None, tokens
