"""Counts what serving a model takes of a card, and bounds how fast it can be: a roofline.

Memory is exact for weights and cache, and an estimate for the rest: ``Need`` says how each part is
counted. Times are what no program can undercut: each step reads its weights and the cache once at
the card's bandwidth and computes its operations at the card's rate, whichever takes longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

from attnviz.count.params.cards import Gpu
from attnviz.count.params.counting.cache import (
    Lengths,
    count_cache,
    largest,
    lengths,
    settled_length,
)
from attnviz.count.params.counting.cost import CostReport
from attnviz.count.params.counting.parameters import StackCount
from attnviz.count.params.specs import AttentionSpec, ExpertsSpec, FeedForwardSpec, LayerSpec

_LOGIT_BYTES = 4


class Need(NamedTuple):
    """Bytes that serving takes.

    step: the tokens that pass the layers at once: a chunk of the prompts, or one token of each
        sequence if those are more. A stack that is not causal takes the whole batch at once.
    weights: parameters and buffers. cache: keys and values of ``batch`` sequences.
    activations: of the widest layer, for ``step`` tokens. Attention weights are not materialised.
    logits: in float32, of each sequence's last token; of all tokens if the model is not causal.
    overhead: what the driver, kernels and the allocator take; assumed.
    """

    step: int
    weights: int
    cache: int
    activations: int
    logits: int
    overhead: int

    @property
    def total(self) -> int:
        """Return the sum of all bytes."""
        return sum(self[1:])

    @property
    def own(self) -> int:
        """Return the bytes that every card takes for itself if several share the rest."""
        return self.activations + self.logits + self.overhead


class Decode(NamedTuple):
    """The bound of decoding: one token for each of ``batch`` sequences.

    read: bytes of weights and cache that a step reads. operations: of the step.
    seconds: the least time of the step. bound: what takes that long.
    """

    batch: int
    read: int
    operations: int
    seconds: float
    bound: Literal["bandwidth", "compute"]

    @property
    def each(self) -> float:
        """Return the most tokens a second of one sequence."""
        return 1 / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Return the most tokens a second of all sequences together."""
        return self.batch / self.seconds


class CardFit(NamedTuple):
    """What one card makes of a model.

    need: of the counted length and batch. free: bytes that stay free, negative if it does not fit.
    cards: how many such cards have room for weights and cache, if each takes ``need.own`` for
        itself; None if none has room beyond that. What splitting a model costs is left out.
    batch: the most sequences of the counted length. context: the most tokens of each of the counted
        sequences; None if the memory sets no limit. Both are 0 if not a single one fits.
    rate: operations a second.
    prefill: the least seconds of a pass over all prompts.
    decode, full: the bound of decoding with the counted batch, and with ``batch``; None if that
        does not fit, or if the model does not write.
    """

    card: Gpu
    need: Need
    free: int
    cards: int | None
    batch: int | None
    context: int | None
    rate: float
    prefill: float
    decode: Decode | None
    full: Decode | None

    @property
    def fits(self) -> bool:
        return self.free >= 0


def fit_cards(
    cost: CostReport, cards: Sequence[Gpu], *, chunk: int, overhead: int
) -> tuple[CardFit, ...]:
    """Return what each card makes of the model at the length, batch and dtypes of ``cost``.

    chunk: the most tokens of prompts that pass at once. overhead: bytes that are taken besides.
    """

    @cache
    def need(tokens: int, batch: int) -> Need:
        return _need(cost, tokens, batch, chunk=chunk, overhead=overhead)

    settled = max(settled_length(cost.spec), chunk)
    needed = need(cost.tokens, cost.batch)
    found = []
    for card in cards:
        batch = largest(lambda batch: need(cost.tokens, batch).total, card.memory, settled)
        context = largest(lambda tokens: need(tokens, cost.batch).total, card.memory, settled)
        free, room = card.memory - needed.total, card.memory - needed.own
        writes = cost.spec.main.causal
        found.append(
            CardFit(
                card=card,
                need=needed,
                free=free,
                cards=-(-(needed.weights + needed.cache) // room) if room > 0 else None,
                batch=batch,
                context=context,
                rate=card.rate(cost.dtype),
                prefill=_prefill_seconds(cost, card),
                decode=decode_bound(cost, card, cost.batch) if writes and free >= 0 else None,
                full=decode_bound(cost, card, batch) if writes and batch else None,
            )
        )
    return tuple(found)


def _length(cost: CostReport, tokens: int) -> Lengths:
    """Return another length of a sequence, whose source is as long unless one was given."""
    source = None if cost.source_tokens == cost.tokens else cost.source_tokens
    return lengths(cost.spec, tokens, source)


# Memory ------------------------------------------------------------------------------------------


def _need(cost: CostReport, tokens: int, batch: int, *, chunk: int, overhead: int) -> Need:
    spec, length = cost.spec, _length(cost, tokens)
    steps = [
        min(batch * length.of(stack), max(chunk, batch))
        if stack.causal
        else batch * length.of(stack)
        for stack in spec.stacks
    ]
    widest = max(
        step * _layer_width(group.layer)
        for stack, step in zip(spec.stacks, steps, strict=True)
        for group in stack.groups
    )
    head = spec.main.head
    rows = 1 if spec.main.causal else length.of(spec.main)
    if head is not None and head.places is not None:
        rows = head.places
    kept = count_cache(spec, length, batch=batch, dtype=cost.cache_dtype)
    return Need(
        step=max(steps),
        weights=cost.weight_bytes + cost.buffer_bytes,
        cache=kept.bytes,
        activations=widest * cost.maps.bits // 8,
        logits=0 if head is None else batch * rows * head.outputs * _LOGIT_BYTES,
        overhead=overhead,
    )


def _layer_width(layer: LayerSpec) -> int:
    """Return how many numbers one token has in a layer at most: its own, normed, and inside."""
    inside = [*map(_attention_width, layer.attentions), _forward_width(layer.feed_forward)]
    return 2 * layer.attentions[0].d_model + max(inside)


def _attention_width(spec: AttentionSpec) -> int:
    """Return the numbers of a token's query, keys, values, mixed values and latent vectors."""
    latent = spec.latent
    shared = 0 if latent is None else latent.kv_lora + latent.rope_dim + (latent.q_lora or 0)
    keys = spec.kv_heads * (spec.head_dim + spec.value_dim)
    return spec.heads * (spec.head_dim + spec.value_dim) + keys + shared


def _forward_width(spec: FeedForwardSpec | ExpertsSpec | None) -> int:
    """Return the inner numbers of a token: up, gate and their product, in all active experts."""
    if spec is None:
        return 0
    if isinstance(spec, ExpertsSpec):
        each = _forward_width(spec.expert) + spec.expert.d_model
        return spec.active * each + _forward_width(spec.shared)
    return (2 + spec.gated) * spec.d_ff


# Time --------------------------------------------------------------------------------------------


def decode_bound(cost: CostReport, card: Gpu, batch: int) -> Decode:
    """Return the bound of one step of ``batch`` sequences that have ``cost.tokens`` each."""
    length = _length(cost, cost.tokens)
    kept = count_cache(cost.spec, length, batch=batch, dtype=cost.cache_dtype, seen=True)
    read = _weights_read(cost, batch) + kept.bytes
    operations = batch * (cost.flops.per_token + cost.flops.scores_per_token)
    reading, computing = read / card.bandwidth, operations / card.rate(cost.dtype)
    bound: Literal["bandwidth", "compute"] = "bandwidth" if reading >= computing else "compute"
    return Decode(batch, read, operations, max(reading, computing), bound)


def _prefill_seconds(cost: CostReport, card: Gpu) -> float:
    """Return the least seconds of a pass; a model that writes needs its last logits only."""
    operations, read = cost.flops.total_visible, 0
    if cost.spec.main.causal:
        operations -= cost.flops.head - cost.flops.head // cost.tokens
        read = _weights_read(cost, cost.batch * cost.tokens)
    return max(operations / card.rate(cost.dtype), read / card.bandwidth)


def _weights_read(cost: CostReport, tokens: int) -> int:
    """Return the bytes of weights that a step of so many tokens reads, at the mean dtype."""
    numbers = sum(
        sum(_numbers_read(stack, tokens)) for stack in cost.parameters.stacks if stack.spec.causal
    )
    return cost.weight_bytes * round(numbers) // max(cost.parameters.total, 1)


def _numbers_read(stack: StackCount, tokens: int) -> Iterator[float]:
    """Yield the parameters of a stack, less those that a step does not read.

    Of tables a step looks up single rows, unless they are the LM head too. Keys and values of a
    source are kept. Of experts it reads those that at least one token was sent to: with even
    routing E × (1 − (1 − k/E)^tokens) of E, which is k for one token.
    """
    yield stack.total - stack.shares.embedding
    head = stack.spec.head
    if head is not None and head.tied:
        yield head.inputs * head.outputs
    for group in stack.groups:
        forward = group.layer.feed_forward
        if forward is not None and isinstance(forward.spec, ExpertsSpec):
            experts, active = forward.spec.experts, forward.spec.active
            yield -group.stored * forward.per_expert * experts * (1 - active / experts) ** tokens
        for attention in group.layer.attentions:
            if attention.spec.cross:
                yield -group.stored * (attention.key + attention.value)
