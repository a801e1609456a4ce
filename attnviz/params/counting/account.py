"""Everything that a design costs: parameters, operations, cache, attention maps."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.errors import UsageError
from attnviz.params.accounts.account import Account
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
from attnviz.params.specs import AttentionDesign, Dense, Design, ExpertsDesign, Part

__all__ = ["DEFAULT_TOKENS", "account", "count_flops", "count_maps"]


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
    design: Design, parameters: ParameterCount, length: Lengths, *, batch: int
) -> FlopCount:
    """Count the forward pass of ``batch`` sequences."""
    stacks = [
        (stack, _stack(stack, length.of(stack.design), length.source))
        for stack in parameters.stacks
    ]
    between = sum(_dense(part, length.target) for part in design.parts)
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
            design = attention.design
            keys = source if design.cross else tokens
            projections += group.repeat * _projections(attention, tokens, keys)
            scores += group.repeat * _scores(design, tokens, keys)
            visible += group.repeat * _visible(design, tokens, keys, stack.design.causal)
        if group.layer.feed_forward is not None:
            ffn += group.repeat * tokens * _feed_forward(group.layer.feed_forward)
    tower = stack.design
    parts = (*tower.embeddings, *tower.parts)
    inside = [(part, group.repeat) for group in tower.groups for part in group.layer.parts]
    other = sum(_dense(part, tokens) for part in parts)
    other += sum(times * _dense(part, tokens) for part, times in inside)
    head = _dense(tower.head, tokens) if tower.head is not None else 0
    return _Stack(projections, scores, visible, ffn, head, other)


def _projections(count: AttentionCount, tokens: int, keys: int) -> int:
    extra = sum(_dense(part, tokens) for part in count.design.parts)
    here = count.query + count.output + count.latent
    return 2 * (tokens * here + keys * (count.key + count.value)) + extra


def _scores(design: AttentionDesign, tokens: int, keys: int) -> int:
    """Scores and mixing of all pairs; of linear attention, of each token with the state."""
    if design.linear:
        return 4 * tokens * design.heads * design.head_dim * design.value_dim
    return 2 * tokens * keys * design.heads * (design.head_dim + design.value_dim)


def _visible(design: AttentionDesign, tokens: int, keys: int, causal: bool) -> int:
    """The share of ``_scores`` that no mask hides: n²/2 pairs, less (n − window)²/2."""
    if design.linear or design.cross or (not causal and design.window is None):
        return _scores(design, tokens, keys)
    hidden = 0 if design.window is None else max(tokens - design.window, 0)
    halves = tokens**2 - hidden**2
    if not causal:  # a band on both sides of the diagonal
        halves = min(2 * halves, 2 * tokens**2)
    return halves * design.heads * (design.head_dim + design.value_dim)


def _feed_forward(count: FeedForwardCount) -> int:
    """One token through the feed-forward part, or through its active experts."""
    design = count.design
    if not isinstance(design, ExpertsDesign):
        return 2 * (count.up + count.gate + count.down)
    wide = design.expert.d_model * design.expert.d_ff * (2 + design.expert.gated)
    shared = design.shared
    common = 0 if shared is None else shared.d_model * shared.d_ff * (2 + shared.gated)
    gates = sum(_dense(part, 1) for part in design.parts)
    router = design.expert.d_model * design.experts
    return 2 * (design.active * wide + common + router) + gates


def _dense(part: Part, tokens: int) -> int:
    if not isinstance(part, Dense):
        return 0
    places = tokens if part.places is None else part.places
    return 2 * places * part.inputs * part.outputs


def _grows(stack: StackCount) -> bool:
    return stack.design.tokens is None and stack.design.reads == "target"


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
            design = attention.design
            keys = length.source if design.cross else length.target
            if design.window is not None:
                keys = min(keys, design.window)
            operations += group.repeat * _scores(design, 1, keys)
    return operations


def _terms(stack: StackCount, item: _Stack, length: Lengths, batch: int) -> tuple[Term, ...]:
    """The lines of one tower, as 2 × batch × tokens × what each token is multiplied with."""
    tokens = length.of(stack.design)
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
        terms.append(Term(f"{stack.design.name} {label}", count, formula))
    return tuple(terms)


_FEWEST_BITS = 16


def count_maps(design: Design, length: Lengths, *, batch: int, dtype: str) -> MapCount:
    """Count layers × heads × queries × keys; linear attention has no maps.

    dtype: of the weights; where it has fewer than 16 bits, maps have 16.
    """
    maps, terms = 0, []
    for stack in design.stacks:
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


def account(
    design: Design,
    *,
    tokens: int | None = None,
    source_tokens: int | None = None,
    batch: int = 1,
    dtype: str = "bfloat16",
    cache_dtype: str | None = None,
) -> Account:
    """Count a design for ``batch`` sequences of ``tokens``.

    tokens: ``DEFAULT_TOKENS`` or, where it is shorter, the longest sequence of the design.
    source_tokens: what an encoder reads; as many as ``tokens``, unless the design fixes them.
    cache_dtype: as ``dtype``.

    Raises:
        UsageError: an unknown dtype, or lengths and batches below 1.
    """
    if batch < 1:
        raise UsageError(f"batch must be 1 or more, not {batch}")
    length = lengths(design, _usual(design) if tokens is None else tokens, source_tokens)
    parameters = count_parameters(design)
    return Account(
        design=design,
        tokens=length.target,
        source_tokens=length.source,
        batch=batch,
        dtype=dtype,
        cache_dtype=cache_dtype or dtype,
        bits=bits(dtype),
        parameters=parameters,
        cache=count_cache(design, length, batch=batch, dtype=cache_dtype or dtype),
        flops=count_flops(design, parameters, length, batch=batch),
        maps=count_maps(design, length, batch=batch, dtype=dtype),
        weight_bytes=byte_count(parameters.total, dtype),
        buffer_bytes=byte_count(parameters.buffer_total, dtype),
    )


def _usual(design: Design) -> int:
    longest = design.main.tokens or design.main.max_positions
    return min(DEFAULT_TOKENS, longest or DEFAULT_TOKENS)
