"""The keys and values that a model keeps while it writes, and the states of what has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from attnviz.params.accounts.running import CacheCount, CacheLine, Kept
from attnviz.params.counting.dtypes import bits, byte_count
from attnviz.params.counting.lengths import Lengths
from attnviz.params.specs import AttentionSpec, ModelSpec

__all__ = ["count_cache", "count_kept"]

_STATES = ("linear", "convolution")


def count_cache(spec: ModelSpec, length: Lengths, *, batch: int, dtype: str) -> CacheCount:
    """Count what the layers of a design keep, as ``count_kept`` does."""
    kept: Counter[tuple[Kept, int]] = Counter()
    for stack in spec.stacks:
        if stack.causal:
            for group in stack.groups:
                for attention in group.layer.attentions:
                    kept[_kept(attention), length.of(stack)] += group.repeat
    return count_kept(kept, length, batch=batch, dtype=dtype)


def count_kept(
    kept: Mapping[tuple[Kept, int], int], length: Lengths, *, batch: int, dtype: str
) -> CacheCount:
    """Count 2·L·K·D·tokens numbers; windows, latent vectors, states and cross attention as such.

    The current token is counted among those of a window, so a library that drops the oldest token
    before it adds one holds one less (window − 1) between two steps.

    kept: how many layers keep what, of how many tokens.
    """
    lines = tuple(_lines(kept, length, dtype))
    growing = [line for line in lines if line.kind in ("full", "latent")]
    sliding = [line for line in lines if line.kind == "sliding"]
    late = sum(line.layers * line.per_token for line in growing)
    per_token = late + sum(line.layers * line.per_token for line in sliding)
    cross = [line for line in lines if line.kind == "cross"]

    def held(of: list[CacheLine]) -> int:
        each: Counter[str] = Counter()
        for line in of:
            each[line.dtype] += batch * line.values
        return sum(byte_count(values, kind) for kind, values in each.items())

    return CacheCount(
        tokens=length.target,
        source_tokens=length.source,
        batch=batch,
        dtype=dtype,
        bits=bits(dtype),
        lines=lines,
        values_per_token=per_token,
        bytes_per_token=byte_count(per_token, dtype),
        bytes_per_token_late=byte_count(late, dtype),
        cross_bytes_per_token=byte_count(sum(i.layers * i.per_token for i in cross), dtype),
        bytes=held(list(lines)),
        cross_bytes=held(cross),
        constant_bytes=held([line for line in lines if line.kind in _STATES]),
    )


def _kept(spec: AttentionSpec) -> Kept:
    if spec.latent is not None:
        return Kept("latent", spec.latent.kv_lora + spec.latent.rope_dim)
    if spec.linear:
        return Kept("linear", spec.heads * spec.head_dim * spec.value_dim)
    values = spec.kv_heads * (spec.head_dim + spec.value_dim)
    if spec.cross:
        return Kept("cross", values)
    if spec.window is not None and not spec.keeps_all:
        return Kept("sliding", values, spec.window)
    return Kept("full", values)


def _lines(
    kept: Mapping[tuple[Kept, int], int], length: Lengths, dtype: str
) -> Iterator[CacheLine]:
    for (one, tokens), layers in kept.items():
        held = tokens if one.window is None else min(one.window, tokens)
        if one.kind in _STATES:
            held = 1
        elif one.kind == "cross":
            held = length.source
        values = layers * one.per_token * held
        formula = f"{layers} × {one.per_token} × {held} = {values:,}"
        yield CacheLine(
            *(one.kind, layers, one.per_token, one.window, held, values, formula),
            one.dtype or dtype,
        )
