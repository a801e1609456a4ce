"""Counts what a model costs: cache, operations, attention maps, and what fits in a memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from attnviz.count.params import specs
from attnviz.count.params.cache import (
    CacheCount,
    LayerCache,
    Lengths,
    bits,
    byte_count,
    count_cache,
    count_kept,
    largest,
    settled_length,
)

if TYPE_CHECKING:  # few models are quantised
    from attnviz.count.params.quantised import Storage, WeightMatrix

DEFAULT_TOKENS = 2048
"""The default number of tokens, for models whose positions allow as many."""

_FEWEST_BITS = 16

Stated: TypeAlias = Literal["option", "files", "config", ""]
"""What states the dtype of the weights: ``--dtype``, the files' headers, the config, or nothing."""


@dataclass(frozen=True, kw_only=True)
class Count(ABC):
    """The cost of a model for one length, batch and dtype, however it was counted.

    tokens, batch: the length and the number of sequences that the counts are for.
    dtype, cache_dtype: of parameters and maps, and of keys and values. odd_cache: how a config says
        that the latter are cached, where that is not known.
    others: how many parameters are stored in which other dtypes. stated: where ``dtype`` is from.
    storage: how a quantised model's parameters are stored; None for other models.
    total: the number of parameters. buffer_total: how many other numbers are stored.
    limit: the longest sequence that the positions allow, or None.
    """

    tokens: int
    batch: int = 1
    dtype: str = "bfloat16"
    cache_dtype: str = "bfloat16"
    odd_cache: str = ""
    others: Mapping[str, int] = field(default_factory=dict)
    stated: Stated = "option"
    storage: Storage | None = None
    total: int
    buffer_total: int
    limit: int | None = None

    @property
    def weight_bytes(self) -> int | None:
        """Return the bytes of the parameters as they are stored; None if unknown."""
        if self.storage is None:
            return byte_count(self.total, self.dtype, self.others)
        return self.storage.bytes

    @property
    def buffer_bytes(self) -> int:
        """Return the bytes of the buffers; 0 if ``weight_bytes`` contains them, as for files."""
        inside = self.storage is not None and self.storage.buffered
        return 0 if inside else byte_count(self.buffer_total, self.dtype)

    @cached_property
    def cache(self) -> CacheCount | None:
        """Return the cache for the counted length and batch; None if unknown."""
        return self.cache_at(self.tokens)

    @abstractmethod
    def cache_at(self, tokens: int, batch: int | None = None) -> CacheCount | None:
        """Return the cache for another length, and for another batch unless that is None."""

    @property
    def needed_bytes(self) -> int | None:
        """Return the bytes of parameters, buffers and cache together; None if unknown."""
        if self.weight_bytes is None or self.cache is None:
            return None
        return self.weight_bytes + self.buffer_bytes + self.cache.bytes


class MadeModel(NamedTuple):
    """The counts of a model, from building it without memory or from the header of its file.

    architecture: its class. total: its parameters, with tied ones counted once.
    buffers: numbers that it stores in addition, not part of the total.
    parts: parts of the model in order, such as its direct children, with their parameters;
        parameters that two share count in the first.
    kept: the cache of each layer that has one; None if unknown.
    matrices: those that a format may quantise. limit: the longest sequence that its positions
        allow, or None. notes: sentences on what is not counted. way: how it was counted.
    storage: how its file stores the parameters; None if it was built.
    """

    architecture: str
    total: int
    buffers: int
    parts: tuple[tuple[str, int], ...]
    kept: tuple[LayerCache, ...] | None = None
    matrices: tuple[WeightMatrix, ...] = ()
    limit: int | None = None
    notes: tuple[str, ...] = ()
    way: Literal["building", "header"] = "building"
    storage: Storage | None = None


@dataclass(frozen=True, kw_only=True)
class BuiltCount(Count):
    """The counts of a model without a spec: parameters and cache, but no operations.

    name, source, revision: the requested name, where its sizes come from, its commit on the hub.
    made: what was counted.
    """

    name: str
    source: str
    revision: str | None
    made: MadeModel

    def cache_at(self, tokens: int, batch: int | None = None) -> CacheCount | None:
        if self.made.kept is None:
            return None
        kept = Counter((kept, tokens) for kept in self.made.kept)
        length, many = Lengths(tokens, tokens), batch or self.batch
        return count_kept(kept, length, batch=many, dtype=self.cache_dtype)


class FlopCount(NamedTuple):
    """The floating-point operations of one forward pass over b sequences of n tokens.

    attention_projections: 2·b·n·d·(2·H·D + 2·K·D), summed over all layers: d is d_model, D is
        head_dim, H and K are the numbers of query heads and of key/value heads.
    attention_scores: scores and mixing of values over all query–key pairs, 4·b·n²·H·D.
        attention_scores_visible: the same without the pairs that a causal mask or a window hides.
    ffn: the feed-forward parts with their routers; of experts only the active ones.
    head: the matrix onto the vocabulary, at every token. other: embeddings that multiply, poolers.
    total: all of these, with ``attention_scores``; the ``terms`` add up to it.
    per_token: those of one more token, without scores. scores_per_token: its scores over
        ``tokens`` keys.
    """

    attention_projections: int
    attention_scores: int
    attention_scores_visible: int
    ffn: int
    head: int
    other: int
    total: int
    per_token: int
    scores_per_token: int
    terms: tuple[specs.Term, ...]

    @property
    def total_visible(self) -> int:
        """Return the operations of a program that leaves masked query–key pairs out."""
        return self.total - self.attention_scores + self.attention_scores_visible


class MapCount(NamedTuple):
    """The number and size of all attention maps of a forward pass.

    values: numbers in all maps of ``batch`` sequences. bytes: of all these numbers. bits: of one
        number, at least 16: parameters may be stored in fewer, but not the result of a softmax.
    maps: how many maps one sequence has, one for each head of each layer.
    """

    values: int
    bytes: int
    bits: int
    maps: int


@dataclass(frozen=True, kw_only=True)
class CostReport(Count):
    """All counts of an architecture, for one length, batch and dtype; made by ``count_cost``.

    spec: the counted architecture. source_tokens: the length of the encoder's input.
    """

    spec: specs.ModelSpec
    source_tokens: int

    def at(self, tokens: int) -> Lengths:
        """Return the lengths of a target of ``tokens`` and its source, which may have its own."""
        source = None if self.source_tokens == self.tokens else self.source_tokens
        return Lengths.for_model(self.spec, tokens, source)

    def cache_at(self, tokens: int, batch: int | None = None) -> CacheCount:
        length, many = self.at(tokens), batch or self.batch
        return count_cache(self.spec, length, batch=many, dtype=self.cache_dtype)

    @cached_property
    def cache(self) -> CacheCount:
        """Return the cache for the counted length and batch."""
        return self.cache_at(self.tokens)

    @cached_property
    def flops(self) -> FlopCount:
        """Return the operations of a forward pass over all sequences."""
        length, batch, stacks = self.at(self.tokens), self.batch, self.spec.stacks
        passes = [(stack, _stack(stack, length.of(stack), length.source)) for stack in stacks]
        roles = (*_LINES, "visible")
        summed = {role: batch * sum(own[role] for _, own in passes) for role in roles}
        summed["other"] += batch * _dense(self.spec.parts, length.target)
        grows = [stack for stack in stacks if stack.tokens is None and stack.reads == "target"]
        written = grows or [stacks[-1]]

        def seen(spec: specs.AttentionSpec) -> int:  # by one token at the end, in a full window
            keys = length.source if spec.cross else length.target
            return keys if spec.window is None else min(keys, spec.window)

        return FlopCount(
            attention_projections=summed["projections"],
            attention_scores=summed["scores"],
            attention_scores_visible=summed["visible"],
            ffn=summed["feed-forward"],
            head=summed["head"],
            other=summed["other"],
            total=sum(summed[role] for role in _LINES),
            per_token=sum(
                _stack(stack, 2, 0)[role] - _stack(stack, 1, 0)[role]
                for stack in written
                for role in _LINES
                if role != "scores"  # and without the source's keys and values
            ),
            scores_per_token=sum(
                layers * _scores(spec, 1, seen(spec))
                for stack in written
                for layers, spec in stack.attentions
            ),
            terms=tuple(
                term
                for stack, own in passes
                for term in _terms(stack, own, length, batch=batch, several=len(stacks) > 1)
            ),
        )

    @cached_property
    def maps(self) -> MapCount:
        """Return the number and size of all attention maps: layers × heads × queries × keys."""
        values = maps = 0
        length = self.at(self.tokens)
        for stack in self.spec.stacks:
            for layers, attention in stack.attentions:
                if not attention.linear:  # has no maps
                    keys = length.source if attention.cross else length.of(stack)
                    maps += layers * attention.heads
                    values += self.batch * layers * attention.heads * length.of(stack) * keys
        size = max(bits(self.dtype), _FEWEST_BITS)
        return MapCount(values, values * size // 8, size, maps)


def count_cost(
    spec: specs.ModelSpec,
    *,
    tokens: int | None = None,
    source_tokens: int | None = None,
    cache_dtype: str | None = None,
    dtype: str = "bfloat16",
    **more: Any,
) -> CostReport:
    """Count all costs of an architecture for one length, batch and dtype.

    tokens: by default ``DEFAULT_TOKENS``, or the longest sequence of the model if that is shorter.
    source_tokens: the length of the encoder's input; by default ``tokens``, unless the model fixes
        their number. dtype, cache_dtype: of the parameters, and of keys and values; the latter is
        by default ``dtype``. more: further fields of ``Count``.

    Raises UsageError for an unknown dtype.
    """
    longest = spec.main.tokens or spec.main.max_positions
    tokens = tokens or min(DEFAULT_TOKENS, longest or DEFAULT_TOKENS)
    for kind in (dtype, cache_dtype or dtype):
        bits(kind)
    return CostReport(
        spec=spec,
        tokens=tokens,
        source_tokens=Lengths.for_model(spec, tokens, source_tokens).source,
        dtype=dtype,
        cache_dtype=cache_dtype or dtype,
        total=spec.total,
        buffer_total=specs.total(spec.buffers),
        limit=spec.main.max_positions,
        **more,
    )


_LINES = {
    "projections": "attention projections",
    "scores": "attention scores and mixing",
    "feed-forward": "MLP",
    "head": "LM head",
    "other": "other",
}
"""The parts of a pass that add up, by the role of their term; ``visible`` is the part of the
scores that no mask hides."""


def _stack(stack: specs.StackSpec, tokens: int, source: int) -> Counter[str]:
    """Return the operations of one stack for one sequence, by role."""
    operations: Counter[str] = Counter()
    for group in stack.groups:
        for attention in group.layer.attentions:
            keys, terms = source if attention.cross else tokens, attention.terms
            projected = 2 * tokens * specs.total(terms, "query", "output", "latent")
            projected += 2 * keys * specs.total(terms, "key", "value") + _dense(
                attention.parts, tokens
            )
            operations["projections"] += group.repeat * projected
            operations["scores"] += group.repeat * _scores(attention, tokens, keys)
            visible = _visible(attention, tokens, keys, stack.causal)
            operations["visible"] += group.repeat * visible
        forward = group.repeat * tokens * _feed_forward(group.layer.feed_forward)
        operations["feed-forward"] += forward
        operations["other"] += group.repeat * _dense(group.layer.parts, tokens)
    operations["other"] += _dense((*stack.embeddings, *stack.parts), tokens)
    operations["head"] = _dense([] if stack.head is None else [stack.head], tokens)
    return operations


def _scores(spec: specs.AttentionSpec, tokens: int, keys: int) -> int:
    """Return the operations of scores and mixing over all query–key pairs, or with the state."""
    if spec.linear:
        return 4 * tokens * spec.heads * spec.head_dim * spec.value_dim
    return 2 * tokens * keys * spec.heads * (spec.head_dim + spec.value_dim)


def _visible(spec: specs.AttentionSpec, tokens: int, keys: int, causal: bool) -> int:
    """Return the operations of unmasked query–key pairs: n²/2 pairs, less (n − window)²/2."""
    if spec.linear or spec.cross or (not causal and spec.window is None):
        return _scores(spec, tokens, keys)
    hidden = 0 if spec.window is None else max(tokens - spec.window, 0)
    halves = tokens**2 - hidden**2
    if not causal:  # a band on both sides of the diagonal
        halves = min(2 * halves, 2 * tokens**2)
    return halves * spec.heads * (spec.head_dim + spec.value_dim)


def _feed_forward(spec: specs.FeedForwardSpec | specs.ExpertsSpec | None) -> int:
    """Return the operations per token of a feed-forward part, of experts only the active ones."""
    if not isinstance(spec, specs.ExpertsSpec):
        return 0 if spec is None else 2 * specs.total(spec.terms, "up", "gate", "down")
    experts = spec.active * _feed_forward(spec.expert) + _feed_forward(spec.shared)
    return experts + 2 * specs.total(spec.terms, "router") + _dense(spec.parts, 1)


def _dense(parts: Iterable[specs.Part], tokens: int) -> int:
    """Return the operations of the matrices among parts, at ``tokens`` or a part's own places."""
    return sum(
        2 * (tokens if part.places is None else part.places) * part.inputs * part.outputs
        for part in parts
        if isinstance(part, specs.Dense)
    )


def _terms(
    stack: specs.StackSpec, summed: Mapping[str, int], length: Lengths, *, batch: int, several: bool
) -> Iterator[specs.Term]:
    """Yield terms with the operations of a stack.

    summed: those of one sequence, by role. several: True names the stack.
    """
    tokens, name = length.of(stack), f"{stack.name} " * several
    for role, label in _LINES.items():
        if operations := summed[role]:
            squared = role == "scores"
            factor, rest = divmod(operations, 4 * tokens * tokens if squared else 2 * tokens)
            factors = f"4 × {tokens}² × {factor}" if squared else f"2 × {tokens} × {factor}"
            formula = f"{batch} × {operations if rest else factors} = {batch * operations:,}"
            yield specs.Term(f"{name}{label}", batch * operations, formula, role=role)


# What fits in a memory --------------------------------------------------------------------------


class MemoryFit(NamedTuple):
    """The longest context that fits in a memory next to the parameters.

    memory, weights: the bytes of the memory, and of parameters and buffers. tokens: the longest
        context for ``batch`` sequences; 0 if not one token fits, None if there is no limit.
    binds: what sets the limit: ``weights`` (they alone do not fit), ``memory`` (the cache fills
        it), ``positions`` (the model has no more), ``nothing`` (the cache does not grow).
    cache: bytes of the cache at ``tokens``, or of a cache that does not grow. left: bytes that stay
        free then; negative if the parameters do not fit.
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


def longest_context(count: Count, memory: int) -> MemoryFit:
    """Return exactly the longest context that fits into ``memory`` bytes next to the parameters.

    count: of a model whose bytes of weights and cache are known.
    Activations need further memory, which depends on the program that runs the model.
    """
    assert count.weight_bytes is not None
    weights, limit = count.weight_bytes + count.buffer_bytes, count.limit
    room = memory - weights

    def cache(tokens: int) -> int:
        cached = count.cache_at(tokens)
        return cached.bytes if cached else 0

    settled, used = settled_length(count.cache), 0
    by_memory = tokens = largest(cache, room, settled) if room >= 0 else 0
    binds: Literal["weights", "memory", "positions", "nothing"] = "memory"
    if room < 0:
        binds = "weights"
    elif by_memory is None or (limit is not None and limit <= by_memory):
        tokens, binds = limit, "nothing" if limit is None else "positions"
    if tokens != 0:
        used = cache(tokens or settled)
    return MemoryFit(
        memory=memory,
        weights=weights,
        batch=count.batch,
        tokens=tokens,
        binds=binds,
        cache=used,
        left=room - used,
        by_memory=by_memory,
        max_positions=limit,
    )
