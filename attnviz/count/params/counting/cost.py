"""Counts all costs of an architecture: parameters, operations, cache, attention maps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from attnviz.count.params.counting.blocks import AttentionCount, FeedForwardCount, Term
from attnviz.count.params.counting.cache import (
    NO_OTHERS,
    CacheCount,
    Lengths,
    bits,
    byte_count,
    count_cache,
    lengths,
)
from attnviz.count.params.counting.parameters import ParameterCount, StackCount, count_parameters
from attnviz.count.params.counting.storage import Storage
from attnviz.count.params.specs import AttentionSpec, Dense, ExpertsSpec, ModelSpec, Part, StackSpec
from attnviz.errors import UsageError

DEFAULT_TOKENS = 2048
"""The default number of tokens, for models whose positions allow as many."""

_FEWEST_BITS = 16

Stated: TypeAlias = Literal["option", "files", "config", ""]
"""What states the dtype of the weights: ``--dtype``, the files' headers, the config, or nothing."""


class FlopCount(NamedTuple):
    """The operations of one forward pass, counted by ``count_cost``.

    attention_projections: 2·b·n·d·(2·H·D + 2·K·D), summed over all layers.
    attention_scores: attention scores and mixing of values over all query–key pairs, 4·b·n²·H·D:
        the part that grows with the square of the length. attention_scores_visible: the same
        without masked pairs: half of them if causal, and only a band if a window slides.
    ffn: the feed-forward parts with their routers; of experts only the active ones.
    head: the matrix onto the vocabulary, at every token.
    other: embeddings that multiply, poolers, projectors.
    total: all of these, with ``attention_scores``.
    per_token: those of one more token, without scores.
    scores_per_token: the scores of one token over ``tokens`` keys.
    terms: lines that add up to the total.
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
    terms: tuple[Term, ...]

    @property
    def total_visible(self) -> int:
        """Return the operations of a program that leaves masked query–key pairs out."""
        return self.total - self.attention_scores + self.attention_scores_visible


class MapCount(NamedTuple):
    """The number and size of all attention maps of a forward pass.

    values: numbers in all maps of ``batch`` sequences. bytes: of all these numbers. bits: of one
        number, at least 16: parameters may be stored in fewer, but not the result of a softmax.
    maps: how many maps one sequence has, one for each head of each layer.
    shapes: (layers, heads, queries, keys) of equal maps, for one sequence.
    """

    values: int
    bytes: int
    bits: int
    maps: int
    shapes: tuple[tuple[int, int, int, int], ...]


class CostReport(NamedTuple):
    """All counts of an architecture, for one length, batch and dtype; made by ``count_cost``.

    spec: the counted architecture.
    tokens, source_tokens, batch: the lengths for which cache, arithmetic and maps were counted.
    dtype, cache_dtype: of parameters and maps, and of keys and values. bits: of one parameter.
    others: how many parameters are stored in which other dtypes. stated: what states the dtype.
    parameters, cache, flops, maps: the counts.
    weight_bytes: of the parameters as they are stored; None if nothing tells. buffer_bytes: of
        buffers, 0 if the bytes of weights contain them.
    storage: how a quantised model's parameters are stored; None for other models.
    """

    spec: ModelSpec
    tokens: int
    source_tokens: int
    batch: int
    dtype: str
    cache_dtype: str
    bits: int
    parameters: ParameterCount
    cache: CacheCount
    flops: FlopCount
    maps: MapCount
    weight_bytes: int | None
    buffer_bytes: int
    others: Mapping[str, int]
    stated: Stated
    storage: Storage | None = None

    @property
    def total(self) -> int:
        """Return the number of parameters."""
        return self.parameters.total

    @property
    def needed_bytes(self) -> int | None:
        """Return the bytes of parameters, buffers and cache together; None if nothing tells."""
        return needed_bytes(self.weight_bytes, self.buffer_bytes, self.cache)

    @property
    def limit(self) -> int | None:
        """Return the longest sequence that the positions allow, or None."""
        return self.spec.main.max_positions

    def cache_at(self, tokens: int, batch: int | None = None) -> CacheCount:
        """Return the cache for another length, and for another batch unless that is None."""
        length, many = self.at(tokens), batch or self.batch
        return count_cache(self.spec, length, batch=many, dtype=self.cache_dtype)

    def at(self, tokens: int) -> Lengths:
        """Return the lengths of target and source for a target of ``tokens`` tokens.

        The source is as long as the target, unless its own length was given.
        """
        source = None if self.source_tokens == self.tokens else self.source_tokens
        return lengths(self.spec, tokens, source)


def stored_bytes(
    total: int, buffers: int, dtype: str, others: Mapping[str, int], storage: Storage | None
) -> tuple[int | None, int]:
    """Return the bytes of ``total`` parameters, None if nothing tells, and those of the buffers.

    The other arguments are those of ``count_cost``. Files contain the buffers with the parameters.
    """
    beside = byte_count(buffers, dtype)
    if storage is None:
        return byte_count(total, dtype, others), beside
    return storage.bytes, 0 if storage.buffered else beside


def needed_bytes(weights: int | None, buffers: int, cache: CacheCount | None) -> int | None:
    """Return the sum of the bytes; None if those of weights or cache are unknown."""
    return None if weights is None or cache is None else weights + buffers + cache.bytes


def count_cost(
    spec: ModelSpec,
    *,
    tokens: int | None = None,
    source_tokens: int | None = None,
    batch: int = 1,
    dtype: str = "bfloat16",
    cache_dtype: str | None = None,
    others: Mapping[str, int] = NO_OTHERS,
    stated: Stated = "option",
    storage: Storage | None = None,
) -> CostReport:
    """Count all costs of an architecture for ``batch`` sequences of ``tokens`` tokens.

    tokens: by default ``DEFAULT_TOKENS``, or the longest sequence of the model if that is shorter.
    source_tokens: the length of the encoder's input; by default ``tokens``, unless the model fixes
        their number. dtype, cache_dtype: of the parameters, and of keys and values; the latter is
        by default ``dtype``.
    others: how many parameters are stored in which other dtypes. stated: what states the dtype.
    storage: how quantised parameters are stored, whose bytes then count.

    Raises UsageError for an unknown dtype, or lengths and batches below 1.
    """
    if batch < 1:
        raise UsageError(f"batch must be 1 or more, not {batch}")
    if tokens is None:
        longest = spec.main.tokens or spec.main.max_positions
        tokens = min(DEFAULT_TOKENS, longest or DEFAULT_TOKENS)
    length = lengths(spec, tokens, source_tokens)
    parameters = count_parameters(spec)
    weights, buffers = stored_bytes(
        parameters.total, parameters.buffer_total, dtype, others, storage
    )
    return CostReport(
        spec=spec,
        tokens=length.target,
        source_tokens=length.source,
        batch=batch,
        dtype=dtype,
        cache_dtype=cache_dtype or dtype,
        bits=bits(dtype),
        parameters=parameters,
        cache=count_cache(spec, length, batch=batch, dtype=cache_dtype or dtype),
        flops=_flops(spec, parameters, length, batch),
        maps=_maps(spec, length, batch, dtype),
        weight_bytes=weights,
        buffer_bytes=buffers,
        others=others,
        stated=stated,
        storage=storage,
    )


_LINES = {
    "projections": "attention projections",
    "scores": "attention scores and mixing",
    "feed-forward": "MLP",
    "head": "head",
    "other": "other",
}
"""The parts of a pass that add up, by the role of their term; ``visible`` is the part of the
scores that no mask hides."""


def _flops(spec: ModelSpec, parameters: ParameterCount, length: Lengths, batch: int) -> FlopCount:
    """Return the operations of a forward pass of ``batch`` sequences.

    parameters: of the same architecture. length: of target and source.
    """
    stacks = [
        (stack, _stack(stack, length.of(stack.spec), length.source)) for stack in parameters.stacks
    ]
    summed = {role: batch * sum(one[role] for _, one in stacks) for role in (*_LINES, "visible")}
    summed["other"] += batch * _dense(spec.parts, length.target)
    written = [stack for stack in parameters.stacks if _grows(stack.spec)] or [stacks[-1][0]]
    return FlopCount(
        attention_projections=summed["projections"],
        attention_scores=summed["scores"],
        attention_scores_visible=summed["visible"],
        ffn=summed["feed-forward"],
        head=summed["head"],
        other=summed["other"],
        total=sum(summed[role] for role in _LINES),
        per_token=sum(_linear_step(stack) for stack in written),
        scores_per_token=sum(_score_step(stack, length) for stack in written),
        terms=tuple(term for stack, item in stacks for term in _terms(stack, item, length, batch)),
    )


def _stack(stack: StackCount, tokens: int, source: int) -> Counter[str]:
    """Return the floating-point operations of one stack for one sequence, by role.

    tokens: the stack's length. source: the length that its cross attention attends to.
    """
    found: Counter[str] = Counter()
    for group in stack.groups:
        for attention in group.layer.attentions:
            spec = attention.spec
            keys = source if spec.cross else tokens
            found["projections"] += group.repeat * _projections(attention, tokens, keys)
            found["scores"] += group.repeat * _scores(spec, tokens, keys)
            found["visible"] += group.repeat * _visible(spec, tokens, keys, stack.spec.causal)
        if group.layer.feed_forward is not None:
            found["feed-forward"] += group.repeat * tokens * _feed_forward(group.layer.feed_forward)
        found["other"] += group.repeat * _dense(group.layer.spec.parts, tokens)
    found["other"] += _dense((*stack.spec.embeddings, *stack.spec.parts), tokens)
    found["head"] = _dense([] if stack.spec.head is None else [stack.spec.head], tokens)
    return found


def _projections(count: AttentionCount, tokens: int, keys: int) -> int:
    extra = _dense(count.spec.parts, tokens)
    here = count.query + count.output + count.latent
    return 2 * (tokens * here + keys * (count.key + count.value)) + extra


def _scores(spec: AttentionSpec, tokens: int, keys: int) -> int:
    """Return the operations of attention scores and mixing over all query–key pairs.

    tokens, keys: the numbers of queries and keys. For linear attention the result is the operations
        of each token with the state.
    """
    if spec.linear:
        return 4 * tokens * spec.heads * spec.head_dim * spec.value_dim
    return 2 * tokens * keys * spec.heads * (spec.head_dim + spec.value_dim)


def _visible(spec: AttentionSpec, tokens: int, keys: int, causal: bool) -> int:
    """Return the operations of unmasked query–key pairs: n²/2 pairs, less (n − window)²/2.

    tokens, keys: the numbers of queries and keys. causal: True if a token sees only earlier ones.
    """
    if spec.linear or spec.cross or (not causal and spec.window is None):
        return _scores(spec, tokens, keys)
    hidden = 0 if spec.window is None else max(tokens - spec.window, 0)
    halves = tokens**2 - hidden**2
    if not causal:  # a band on both sides of the diagonal
        halves = min(2 * halves, 2 * tokens**2)
    return halves * spec.heads * (spec.head_dim + spec.value_dim)


def _feed_forward(count: FeedForwardCount) -> int:
    """Return the operations per token of the feed-forward part, or of its active experts."""
    spec = count.spec
    if not isinstance(spec, ExpertsSpec):
        return 2 * (count.up + count.gate + count.down)
    wide = spec.expert.d_model * spec.expert.d_ff * (2 + spec.expert.gated)
    shared = spec.shared
    common = 0 if shared is None else shared.d_model * shared.d_ff * (2 + shared.gated)
    return 2 * (spec.active * wide + common + count.router) + _dense(spec.parts, 1)


def _dense(parts: Iterable[Part], tokens: int) -> int:
    """Return the floating-point operations of the matrices among the parts.

    A multiplication with an addition counts as two.
    tokens: how many tokens pass through a matrix, unless the part has its own number.
    """
    return sum(
        2 * (tokens if part.places is None else part.places) * part.inputs * part.outputs
        for part in parts
        if isinstance(part, Dense)
    )


def _grows(spec: StackSpec) -> bool:
    return spec.tokens is None and spec.reads == "target"


def _linear_step(stack: StackCount) -> int:
    """Return the operations of one more token, without scores and the source's keys and values."""
    two, one = (_stack(stack, tokens, 0) for tokens in (2, 1))
    return sum(two[role] - one[role] for role in _LINES if role != "scores")


def _score_step(stack: StackCount, length: Lengths) -> int:
    """Return the operations of attention scores and mixing of one token that sees a full window.

    length: of target and source.
    """
    operations = 0
    for group in stack.groups:
        for attention in group.layer.attentions:
            spec = attention.spec
            keys = length.source if spec.cross else length.target
            if spec.window is not None:
                keys = min(keys, spec.window)
            operations += group.repeat * _scores(spec, 1, keys)
    return operations


def _terms(
    stack: StackCount, item: Mapping[str, int], length: Lengths, batch: int
) -> Iterator[Term]:
    """Yield terms with the operations of a stack by role, each with its arithmetic.

    item: the operations of one sequence by role, as ``_stack`` returns them.
    length: of target and source. batch: the number of sequences.
    """
    tokens = length.of(stack.spec)
    for role, label in _LINES.items():
        operations = item[role]
        if not operations:
            continue
        squared = role == "scores"
        each, rest = divmod(operations, 4 * tokens * tokens if squared else 2 * tokens)
        factors = f"4 × {tokens}² × {each}" if squared else f"2 × {tokens} × {each}"
        number = batch * operations
        formula = f"{batch} × {operations if rest else factors} = {number:,}"
        yield Term(f"{stack.spec.name} {label}", number, formula, role=role)


def _maps(spec: ModelSpec, length: Lengths, batch: int, dtype: str) -> MapCount:
    """Return the size of all attention maps: layers × heads × queries × keys.

    length: of target and source. batch: the number of sequences. dtype: of the parameters; maps
        have at least 16 bits.
    Linear attention has no maps.
    """
    layers: Counter[tuple[int, int, int]] = Counter()
    for stack in spec.stacks:
        tokens = length.of(stack)
        for group in stack.groups:
            for attention in group.layer.attentions:
                if not attention.linear:
                    keys = length.source if attention.cross else tokens
                    layers[attention.heads, tokens, keys] += group.repeat
    shapes = tuple((depth, *shape) for shape, depth in layers.items())
    values = batch * sum(map(math.prod, shapes))
    size = max(bits(dtype), _FEWEST_BITS)
    maps = sum(depth * heads for depth, heads, _, _ in shapes)
    return MapCount(values, values * size // 8, size, maps, shapes)
