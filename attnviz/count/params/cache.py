"""Counts the keys and values that generation caches.

The module also has the bits of a number and the lengths of texts, which such counts need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from attnviz.count.params.specs import AttentionSpec, ModelSpec, StackSpec
from attnviz.errors import UsageError

BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "float8": 8, "int8": 8, "int4": 4}
"""The bits of a number of each dtype that ``--dtype`` takes."""

_OTHER_NAMES = {"float64": 64, "fp32": 32, "fp16": 16, "half": 16, "bf16": 16}
_OTHER_NAMES |= {**dict.fromkeys(("fp8", "float8_e4m3fn", "float8_e5m2"), 8), "nvfp4": 4}

_BLOCKS = {"nvfp4": 16}  # numbers that share a scale of eight bits, which is stored with them


def bits(dtype: str) -> int:
    """Return the bits of one number of a dtype; UsageError for an unknown dtype."""
    name = dtype.removeprefix("torch.").lower()
    if (known := BITS.get(name) or _OTHER_NAMES.get(name)) is None:
        raise UsageError(f"no dtype {dtype!r}: use one of {', '.join(BITS)}")
    return known


def byte_count(numbers: int, dtype: str, others: Mapping[str, int] = {}) -> int:
    """Return the bytes that ``numbers`` numbers and their scales take, rounded up.

    dtype: of most numbers. others: by other dtype, how many of the numbers have it.
    """
    total, rest = 0, max(numbers - sum(others.values()), 0)
    for kind, many in ((dtype, rest), *others.items()):
        scales = -(-many // _BLOCKS[kind]) if kind in _BLOCKS else 0
        total += many * bits(kind) + 8 * scales
    return -(-total // 8)


class Lengths(NamedTuple):
    """The numbers of tokens that the stacks of a model process for one sequence.

    target: the tokens of the decoder or, in a model without one, of the input.
    source: the tokens that a decoder's cross attention attends to.
    """

    target: int
    source: int

    @classmethod
    def for_model(cls, spec: ModelSpec, tokens: int, source_tokens: int | None = None) -> Lengths:
        """Return the lengths of target and source if the target has ``tokens`` tokens.

        source_tokens: the length of the source. Without it the source has as many tokens as the
            target, unless the model fixes their number.
        """
        read = [stack for stack in spec.stacks if stack.reads == "source"]
        fixed = read[-1].tokens if read else None
        return cls(tokens, fixed or source_tokens or tokens)

    def of(self, stack: StackSpec) -> int:
        """Return the number of tokens that a stack processes."""
        if stack.tokens is not None:
            return stack.tokens
        return self.target if stack.reads == "target" else self.source


CacheKind = Literal["full", "sliding", "latent", "linear", "convolution", "cross"]
"""How a layer keeps the tokens that it has read: all of them, those of a window, their latent
vectors; a state that does not grow, such as that of a state space model; the last inputs of a short
convolution; the source, once."""

STATES = {"linear": "states", "convolution": "convolutions"}
"""The kinds of caches that do not grow, and what they are called."""


class LayerCache(NamedTuple):
    """The cache of one attention layer for one sequence.

    per_token: the numbers cached for each token; for a state, all its numbers. window: the most
    tokens that are cached; None for all. dtype: of a state; empty if it is that of the cache.
    """

    kind: CacheKind
    per_token: int
    window: int | None = None
    dtype: str = ""


class CacheLine(NamedTuple):
    """The cache of equal layers for one sequence; a line of ``CacheCount``.

    layers: how many layers have such a cache. kind, per_token, window: those of each.
    held: for how many tokens numbers are cached; 1 for a state.
    values: numbers of all these layers for one sequence. formula: the arithmetic of ``values``.
    dtype: of these numbers.
    """

    kind: CacheKind
    layers: int
    per_token: int
    window: int | None
    held: int
    values: int
    formula: str
    dtype: str


class CacheCount(NamedTuple):
    """The cache of an architecture for ``batch`` sequences of ``tokens`` tokens.

    bits: of one number. lines: the caches of the layers, equal layers together.
    values_per_token, bytes_per_token: what one more token adds while no window is full.
    bytes_per_token_late: the same once all sliding windows are full.
    cross_bytes_per_token: what one more token of the source adds.
    bytes: everything. cross_bytes: the part of it that cross attention caches.
    constant_bytes: the part that does not grow: states and convolutions.
    """

    tokens: int
    source_tokens: int
    batch: int
    dtype: str
    bits: int
    lines: tuple[CacheLine, ...]
    values_per_token: int
    bytes_per_token: int
    bytes_per_token_late: int
    cross_bytes_per_token: int
    bytes: int
    cross_bytes: int
    constant_bytes: int


def count_cache(
    spec: ModelSpec, length: Lengths, *, batch: int, dtype: str, seen: bool = False
) -> CacheCount:
    """Count the numbers and bytes that an architecture's layers cache for ``batch`` sequences.

    length: of target and source. dtype: of the cached numbers.
    seen: True leaves out tokens that are cached although a window hides them from the next one.
    """
    kept: Counter[tuple[LayerCache, int]] = Counter()
    for stack in spec.stacks:
        for layers, attention in stack.attentions if stack.causal else ():
            kept[kept_by(attention, seen), length.of(stack)] += layers
    return count_kept(kept, length, batch=batch, dtype=dtype)


def kept_by(spec: AttentionSpec, seen: bool = False) -> LayerCache:
    """Return the cache of a layer with this attention; ``seen`` is as in ``count_cache``."""
    if spec.latent is not None:
        return LayerCache("latent", spec.latent.kv_lora + spec.latent.rope_dim)
    if spec.linear:
        return LayerCache("linear", spec.heads * spec.head_dim * spec.value_dim)
    values = spec.kv_heads * (spec.head_dim + spec.value_dim)
    if spec.cross:
        return LayerCache("cross", values)
    if spec.window is not None and (seen or not spec.keeps_all):
        return LayerCache("sliding", values, spec.window)
    return LayerCache("full", values)


def count_kept(
    kept: Mapping[tuple[LayerCache, int], int], length: Lengths, *, batch: int, dtype: str
) -> CacheCount:
    """Count the cache: 2·L·K·D·tokens numbers for full attention, fewer for the other kinds.

    L: layers. K: key/value heads. D: head_dim. A window includes the current token; a library that
    drops the oldest token before it adds one caches window − 1 tokens between generation steps.
    kept: by (a layer's cache, tokens) the number of layers. batch: the number of sequences.
    dtype: of the cached numbers, unless a layer has its own.
    """
    lines = []
    for ((kind, per_token, window, own), tokens), layers in kept.items():
        held = tokens if window is None else min(window, tokens)
        if kind in STATES or kind == "cross":
            held = length.source if kind == "cross" else 1
        values = layers * per_token * held
        formula = f"{layers} × {per_token} × {held} = {values:,}"
        sizes = (layers, per_token, window, held, values)
        lines.append(CacheLine(kind, *sizes, formula=formula, dtype=own or dtype))

    def added(*kinds: str) -> int:
        return sum(line.layers * line.per_token for line in lines if line.kind in kinds)

    def held_bytes(*kinds: str) -> int:
        values: Counter[str] = Counter()
        for line in lines:
            if not kinds or line.kind in kinds:
                values[line.dtype] += batch * line.values
        return sum(byte_count(numbers, kind) for kind, numbers in values.items())

    late, per_token = added("full", "latent"), added("full", "latent", "sliding")
    return CacheCount(
        *(length.target, length.source, batch, dtype, bits(dtype), tuple(lines)),
        values_per_token=per_token,
        bytes_per_token=byte_count(per_token, dtype),
        bytes_per_token_late=byte_count(late, dtype),
        cross_bytes_per_token=byte_count(added("cross"), dtype),
        bytes=held_bytes(),
        cross_bytes=held_bytes("cross"),
        constant_bytes=held_bytes(*STATES),
    )


def settled_length(cache: CacheCount | None) -> int:
    """Return a length at which every sliding window of a cache is full."""
    return max((line.window or 1 for line in cache.lines), default=1) if cache else 1


def largest(needed: Callable[[int], int], room: int, settled: int) -> int | None:
    """Return the largest n with ``needed(n) <= room``; None if every n fits.

    needed: returns the bytes that n takes. room: the bytes available.
    settled: a number from which on ``needed`` no longer grows, if it ever stops growing.
    """
    if needed(1) > room:
        return 0
    if needed(settled) <= room and needed(settled) == needed(2 * settled + 1):
        return None
    fits, too_many = 1, 2
    while needed(too_many) <= room:
        fits, too_many = too_many, 2 * too_many
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if needed(middle) <= room else (fits, middle)
    return fits
