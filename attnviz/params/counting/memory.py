"""The longest text that weights and cache leave room for in a given memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from attnviz.errors import UsageError
from attnviz.params.accounts.running import Fit
from attnviz.params.counting.cache import count_cache
from attnviz.params.counting.dtypes import byte_count
from attnviz.params.counting.lengths import lengths
from attnviz.params.counting.parameters import count_parameters
from attnviz.params.specs import ModelSpec

__all__ = ["longest_context"]


def longest_context(
    spec: ModelSpec,
    memory: int,
    *,
    batch: int = 1,
    dtype: str = "bfloat16",
    cache_dtype: str | None = None,
    source_tokens: int | None = None,
) -> Fit:
    """The longest context that ``memory`` bytes hold beside the weights, exactly.

    Activations need room beyond that, which depends on the program that runs the model.

    Raises:
        UsageError: a memory or batch below 1, or an unknown dtype.
    """
    for name, number in (("memory", memory), ("batch", batch)):
        if number < 1:
            raise UsageError(f"{name} must be 1 or more, not {number}")
    parameters = count_parameters(spec)
    weights = byte_count(parameters.total + parameters.buffer_total, dtype)
    room = memory - weights

    def cache(tokens: int) -> int:
        length = lengths(spec, tokens, source_tokens)
        return count_cache(spec, length, batch=batch, dtype=cache_dtype or dtype).bytes

    limit = spec.main.max_positions
    if room < 0:
        return Fit(memory, weights, batch, 0, "weights", 0, room, 0, limit)
    by_memory = _longest(cache, room, _settled(spec))
    tokens, binds = by_memory, "memory"
    if by_memory is None:
        tokens, binds = limit, "nothing" if limit is None else "positions"
    elif limit is not None and limit <= by_memory:
        tokens, binds = limit, "positions"
    used = cache(tokens or _settled(spec)) if tokens != 0 else 0
    return Fit(memory, weights, batch, tokens, _named(binds), used, room - used, by_memory, limit)


def _named(binds: str) -> Literal["memory", "positions", "nothing"]:
    return "memory" if binds == "memory" else "positions" if binds == "positions" else "nothing"


def _settled(spec: ModelSpec) -> int:
    """A length from which on every sliding window is full."""
    return max(
        (
            attention.window
            for stack in spec.stacks
            for group in stack.groups
            for attention in group.layer.attentions
            if attention.window is not None
        ),
        default=1,
    )


def _longest(cache: Callable[[int], int], room: int, settled: int) -> int | None:
    """The largest n with ``cache(n) <= room``; None where it fits and never grows again."""
    if cache(1) > room:
        return 0
    if cache(settled) <= room and cache(settled) == cache(2 * settled + 1):
        return None
    fits, too_many = 1, 2
    while cache(too_many) <= room:
        fits, too_many = too_many, 2 * too_many
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if cache(middle) <= room else (fits, middle)
    return fits
