"""Counts how much text fits in a memory next to a model's parameters."""

from __future__ import annotations

from typing import Literal, NamedTuple

from attnviz.count.params.counting.built import BuiltCount
from attnviz.count.params.counting.cache import largest, settled_length
from attnviz.count.params.counting.cost import CostReport
from attnviz.errors import UsageError


class MemoryFit(NamedTuple):
    """The longest context that fits in a memory next to the parameters.

    memory: the bytes of the memory. weights: the bytes of parameters and buffers. tokens: the
        longest context for ``batch`` sequences; 0 if not one token fits, None if there is no limit.
    binds: what sets the limit: ``weights`` (they alone do not fit), ``memory`` (the cache fills
        it), ``positions`` (the model has no more), ``nothing`` (the cache does not grow).
    cache: bytes of the cache at ``tokens``, or of a cache that does not grow.
    left: bytes that stay free at ``tokens``; negative if the parameters do not fit.
    by_memory: the longest context if positions set no limit; None if the cache does not grow.
    max_positions: the longest sequence that the model allows, or None.
    """

    memory: int
    weights: int
    batch: int
    tokens: int | None
    binds: Literal["weights", "memory", "positions", "nothing"]
    cache: int
    left: int
    by_memory: int | None
    max_positions: int | None


def longest_context(count: CostReport | BuiltCount, memory: int) -> MemoryFit:
    """Return exactly the longest context that fits into ``memory`` bytes next to the parameters.

    count: of a model whose bytes of weights and cache are known.
    Activations need further memory, which depends on the program that runs the model.

    Raises UsageError for a memory below 1.
    """
    if memory < 1:
        raise UsageError(f"memory must be 1 or more, not {memory}")
    assert count.weight_bytes is not None
    weights, limit = count.weight_bytes + count.buffer_bytes, count.limit
    room = memory - weights
    nothing = MemoryFit(
        memory=memory,
        weights=weights,
        batch=count.batch,
        tokens=0,
        binds="weights",
        cache=0,
        left=room,
        by_memory=0,
        max_positions=limit,
    )
    if room < 0:
        return nothing

    def cache(tokens: int) -> int:
        return count.cache_at(tokens).bytes

    settled = settled_length(count.cache)
    by_memory = largest(cache, room, settled)
    tokens = by_memory
    binds: Literal["memory", "positions", "nothing"] = "memory"
    if by_memory is None or (limit is not None and limit <= by_memory):
        tokens, binds = limit, "nothing" if limit is None else "positions"
    used = cache(tokens or settled) if tokens != 0 else 0
    return nothing._replace(
        tokens=tokens, binds=binds, cache=used, left=room - used, by_memory=by_memory
    )
