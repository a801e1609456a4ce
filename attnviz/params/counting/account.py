"""Everything that a design costs: parameters, operations, cache, attention maps."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.errors import UsageError
from attnviz.params.accounts.account import CostReport
from attnviz.params.accounts.parameters import (
    AttentionCount,
    FeedForwardCount,
    ParameterCount,
    StackCount,
)
from attnviz.params.accounts.running import FlopCount, MapCount
from attnviz.params.accounts.terms import Term
from attnviz.params.counting.cache import count_cache
from attnviz.params.counting.dtypes import bits, byte_count
from attnviz.params.counting.lengths import Lengths, lengths
from attnviz.params.counting.parameters import count_parameters
from attnviz.params.counting.terms import product
from attnviz.params.specs import AttentionSpec, Dense, ExpertsSpec, ModelSpec, Part

__all__ = ["DEFAULT_TOKENS", "count_cost", "count_flops", "count_maps"]


@dataclass(frozen=True)
class _Stack:
    """One tower's operations for one sequence of ``tokens``."""

    projections: int
    scores: int
    visible: int
    ffn: int
    head: int
    other: int


def count_flops(
    spec: ModelSpec, parameters: ParameterCount, length: Lengths, *, batch: int
) -> FlopCount:
    """Count the forward pass of ``batch`` sequences."""
    stacks = [
        (stack, _stack(stack, length.of(stack.spec), length.source)) for stack in parameters.stacks
    ]
    between = sum(_dense(part, length.target) for part in spec.parts)
    projections = batch * sum(item.projections for _, item in stacks)
    scores = batch * sum(item.scores for _, item in stacks)
    ffn = batch * sum(item.ffn for _, item in stacks)
    head = batch * sum(item.head for _, item in stacks)
    other = batch * (between + sum(item.other for _, item in stacks))
    written = [stack for stack, _ in stacks if _grows(stack)] or [stacks[-1][0]]
    return FlopCount(
        tokens=length.target,
        source_tokens=length.source,
        batch=batch,
        attention_projections=projections,
        attention_scores=scores,
        attention_scores_visible=batch * sum(item.visible for _, item in stacks),
        ffn=ffn,
        head=head,
        other=other,
        total=projections + scores + ffn + head + other,
        per_token=sum(_linear_step(stack) for stack in written),
        scores_per_token=sum(_score_step(stack, length) for stack in written),
        terms=tuple(term for stack, item in stacks for term in _terms(stack, item, length, batch)),
    )


def _stack(stack: StackCount, tokens: int, source: int) -> _Stack:
    projections = scores = visible = ffn = 0
    for group in stack.groups:
        for attention in group.layer.attentions:
            spec = attention.spec
            keys = source if spec.cross else tokens
            projections += group.repeat * _projections(attention, tokens, keys)
            scores += group.repeat * _scores(spec, tokens, keys)
            visible += group.repeat * _visible(spec, tokens, keys, stack.spec.causal)
        if group.layer.feed_forward is not None:
            ffn += group.repeat * tokens * _feed_forward(group.layer.feed_forward)
    tower = stack.spec
    parts = (*tower.embeddings, *tower.parts)
    inside = [(part, group.repeat) for group in tower.groups for part in group.layer.parts]
    other = sum(_dense(part, tokens) for part in parts)
    other += sum(times * _dense(part, tokens) for part, times in inside)
    head = _dense(tower.head, tokens) if tower.head is not None else 0
    return _Stack(projections, scores, visible, ffn, head, other)


def _projections(count: AttentionCount, tokens: int, keys: int) -> int:
    extra = sum(_dense(part, tokens) for part in count.spec.parts)
    here = count.query + count.output + count.latent
    return 2 * (tokens * here + keys * (count.key + count.value)) + extra


def _scores(spec: AttentionSpec, tokens: int, keys: int) -> int:
    """Scores and mixing of all pairs; of linear attention, of each token with the state."""
    if spec.linear:
        return 4 * tokens * spec.heads * spec.head_dim * spec.value_dim
    return 2 * tokens * keys * spec.heads * (spec.head_dim + spec.value_dim)


def _visible(spec: AttentionSpec, tokens: int, keys: int, causal: bool) -> int:
    """The share of ``_scores`` that no mask hides: n²/2 pairs, less (n − window)²/2."""
    if spec.linear or spec.cross or (not causal and spec.window is None):
        return _scores(spec, tokens, keys)
    hidden = 0 if spec.window is None else max(tokens - spec.window, 0)
    halves = tokens**2 - hidden**2
    if not causal:  # a band on both sides of the diagonal
        halves = min(2 * halves, 2 * tokens**2)
    return halves * spec.heads * (spec.head_dim + spec.value_dim)


def _feed_forward(count: FeedForwardCount) -> int:
    """One token through the feed-forward part, or through its active experts."""
    spec = count.spec
    if not isinstance(spec, ExpertsSpec):
        return 2 * (count.up + count.gate + count.down)
    wide = spec.expert.d_model * spec.expert.d_ff * (2 + spec.expert.gated)
    shared = spec.shared
    common = 0 if shared is None else shared.d_model * shared.d_ff * (2 + shared.gated)
    gates = sum(_dense(part, 1) for part in spec.parts)
    router = spec.expert.d_model * spec.experts
    return 2 * (spec.active * wide + common + router) + gates


def _dense(part: Part, tokens: int) -> int:
    if not isinstance(part, Dense):
        return 0
    places = tokens if part.places is None else part.places
    return 2 * places * part.inputs * part.outputs


def _grows(stack: StackCount) -> bool:
    return stack.spec.tokens is None and stack.spec.reads == "target"


def _linear_step(stack: StackCount) -> int:
    """One token more through a tower, without scores and without the source's keys and values."""
    two, one = (_stack(stack, tokens, 0) for tokens in (2, 1))
    return sum(
        getattr(two, name) - getattr(one, name) for name in ("projections", "ffn", "head", "other")
    )


def _score_step(stack: StackCount, length: Lengths) -> int:
    """Scores and mixing of one token that sees ``tokens`` keys, or a window of them."""
    operations = 0
    for group in stack.groups:
        for attention in group.layer.attentions:
            spec = attention.spec
            keys = length.source if spec.cross else length.target
            if spec.window is not None:
                keys = min(keys, spec.window)
            operations += group.repeat * _scores(spec, 1, keys)
    return operations


def _terms(stack: StackCount, item: _Stack, length: Lengths, batch: int) -> tuple[Term, ...]:
    """The lines of one tower, as 2 × batch × tokens × what each token is multiplied with."""
    tokens = length.of(stack.spec)
    lines = {
        "attention projections": item.projections,
        "attention scores and mixing": item.scores,
        "feed-forward": item.ffn,
        "head": item.head,
        "other": item.other,
    }
    terms = []
    for label, operations in lines.items():
        if not operations:
            continue
        count = batch * operations
        each, rest = divmod(operations, 2 * tokens)
        factors = f"2 × {tokens} × {each}" if not rest else f"{operations}"
        if label.startswith("attention scores"):
            each, rest = divmod(operations, 4 * tokens * tokens)
            factors = f"4 × {tokens}² × {each}" if not rest else f"{operations}"
        formula = f"{batch} × {factors} = {count:,}"
        terms.append(Term(f"{stack.spec.name} {label}", count, formula))
    return tuple(terms)


_FEWEST_BITS = 16


def count_maps(spec: ModelSpec, length: Lengths, *, batch: int, dtype: str) -> MapCount:
    """Count layers × heads × queries × keys; linear attention has no maps.

    dtype: of the weights; where it has fewer than 16 bits, maps have 16.
    """
    maps, terms = 0, []
    for stack in spec.stacks:
        tokens = length.of(stack)
        for group in stack.groups:
            for attention in group.layer.attentions:
                if attention.linear:
                    continue
                keys = length.source if attention.cross else tokens
                label = f"{stack.name}{' cross' if attention.cross else ''} maps"
                maps += group.repeat * attention.heads
                terms.append(product(label, (group.repeat, attention.heads, tokens, keys)))
    values = batch * sum(term.count for term in terms)
    size = max(bits(dtype), _FEWEST_BITS)
    return MapCount(values, values * size // 8, size, maps, tuple(terms))


DEFAULT_TOKENS = 2048
"""The length that is counted where none is asked for and the positions reach as far."""


def count_cost(
    spec: ModelSpec,
    *,
    tokens: int | None = None,
    source_tokens: int | None = None,
    batch: int = 1,
    dtype: str = "bfloat16",
    cache_dtype: str | None = None,
) -> CostReport:
    """Count a design for ``batch`` sequences of ``tokens``.

    tokens: ``DEFAULT_TOKENS`` or, where it is shorter, the longest sequence of the design.
    source_tokens: what an encoder reads; as many as ``tokens``, unless the design fixes them.
    cache_dtype: as ``dtype``.

    Raises:
        UsageError: an unknown dtype, or lengths and batches below 1.
    """
    if batch < 1:
        raise UsageError(f"batch must be 1 or more, not {batch}")
    length = lengths(spec, _usual(spec) if tokens is None else tokens, source_tokens)
    parameters = count_parameters(spec)
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
        flops=count_flops(spec, parameters, length, batch=batch),
        maps=count_maps(spec, length, batch=batch, dtype=dtype),
        weight_bytes=byte_count(parameters.total, dtype),
        buffer_bytes=byte_count(parameters.buffer_total, dtype),
    )


def _usual(spec: ModelSpec) -> int:
    longest = spec.main.tokens or spec.main.max_positions
    return min(DEFAULT_TOKENS, longest or DEFAULT_TOKENS)
