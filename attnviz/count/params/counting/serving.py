"""Counts what serving a model takes of a card, and bounds how fast it can be: a roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

from attnviz.count.params.cards import Gpu
from attnviz.count.params.counting.cache import count_cache, largest, settled_length
from attnviz.count.params.counting.cost import CostReport
from attnviz.count.params.counting.parameters import StackCount
from attnviz.count.params.specs import AttentionSpec, ExpertsSpec, FeedForwardSpec, LayerSpec

_LOGIT_BYTES = 4


class Need(NamedTuple):
    """Bytes that serving takes; ``total`` is their sum.

    step: the tokens that pass the layers at once: a chunk of the prompts, or one token of each
        sequence if those are more. A stack that is not causal takes the whole batch at once.
    weights: parameters and buffers. cache: keys and values of all sequences.
    activations: of the widest layer, for ``step`` tokens, without attention weights.
    logits: in float32, of each sequence's last token; of all tokens if the model is not causal.
    overhead: what driver, kernels and allocator take; assumed.
    """

    step: int
    weights: int
    cache: int
    activations: int
    logits: int
    overhead: int

    @property
    def total(self) -> int:
        return sum(self[1:])


class Decode(NamedTuple):
    """The bound of a step that writes one token of each of ``batch`` sequences.

    read: bytes of weights and cache that it reads. operations: that it computes.
    seconds: the least time, bytes / bandwidth or operations / rate. bound: which of them.
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
    cards: how many such cards have room for weights and cache if each takes the rest for itself;
        None if none has. What splitting a model costs is left out.
    batch: the most sequences of the counted length. context: the most tokens of each of the counted
        sequences. 0 if not a single one fits, None if the memory sets no limit.
    rate: operations a second. prefill: the least seconds of a pass over all prompts.
    decode, full: of the counted batch, and of ``batch``; None if that does not fit, or if the model
        does not write.
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
    """Return for each card if it can run the model of ``cost``, and how fast.

    The length, the batch and the dtypes are those for which ``cost`` was counted.
    chunk: the most tokens of prompts that pass at once. overhead: bytes that other things take.
    """

    @cache  # the same numbers are tried for each card
    def need(tokens: int, batch: int) -> Need:
        return _need(cost, tokens, batch, chunk)._replace(overhead=overhead)

    needed, settled = need(cost.tokens, cost.batch), max(settled_length(cost.spec), chunk)
    shared = needed.weights + needed.cache
    found = []
    for card in cards:
        batch = largest(lambda batch: need(cost.tokens, batch).total, card.memory, settled)
        context = largest(lambda tokens: need(tokens, cost.batch).total, card.memory, settled)
        free = card.memory - needed.total
        fit = CardFit(
            card=card,
            need=needed,
            free=free,
            cards=-(-shared // (free + shared)) if free + shared > 0 else None,
            batch=batch,
            context=context,
            rate=card.rate(cost.dtype),
            prefill=_prefill_seconds(cost, card),
            decode=_decode(cost, card, cost.batch) if free >= 0 else None,
            full=_decode(cost, card, batch) if batch else None,
        )
        found.append(fit)
    return tuple(found)


# Memory ------------------------------------------------------------------------------------------


def _need(cost: CostReport, tokens: int, batch: int, chunk: int) -> Need:
    """Return the memory that serving ``batch`` sequences of ``tokens`` tokens takes.

    chunk: the most tokens of prompts that pass the layers at once. The overhead is left at zero.
    """
    spec, length = cost.spec, cost.at(tokens)
    step = widest = 0
    for stack in spec.stacks:
        passing = batch * length.of(stack)
        if stack.causal:
            passing = min(passing, max(chunk, batch))
        width = max(_layer_width(group.layer) for group in stack.groups)
        step, widest = max(step, passing), max(widest, passing * width)
    logits, head = 0, spec.main.head
    if head is not None:
        rows = 1 if spec.main.causal else head.places or length.of(spec.main)
        logits = batch * rows * head.outputs * _LOGIT_BYTES
    kept = count_cache(spec, length, batch=batch, dtype=cost.cache_dtype).bytes
    weights = cost.weight_bytes + cost.buffer_bytes
    return Need(step, weights, kept, widest * cost.maps.bits // 8, logits=logits, overhead=0)


def _layer_width(layer: LayerSpec) -> int:
    """Return how many numbers a token has in a layer at most: its own, normed, and inside."""
    inside = [*map(_attention_width, layer.attentions), _forward_width(layer.feed_forward)]
    return 2 * layer.attentions[0].d_model + max(inside)


def _attention_width(spec: AttentionSpec) -> int:
    """Return the numbers of a token's query, keys, values, mixed values and latent vectors."""
    latent = spec.latent
    shared = 0 if latent is None else latent.kv_lora + latent.rope_dim + (latent.q_lora or 0)
    return (spec.heads + spec.kv_heads) * (spec.head_dim + spec.value_dim) + shared


def _forward_width(spec: FeedForwardSpec | ExpertsSpec | None) -> int:
    """Return the inner numbers of a token: up, gate and their product, in all active experts."""
    if spec is None:
        return 0
    if isinstance(spec, ExpertsSpec):
        each = _forward_width(spec.expert) + spec.expert.d_model
        return spec.active * each + _forward_width(spec.shared)
    return (2 + spec.gated) * spec.d_ff


# Time --------------------------------------------------------------------------------------------


def _decode(cost: CostReport, card: Gpu, batch: int) -> Decode | None:
    """Return the bound of one step that writes a token of each of ``batch`` sequences.

    They have ``cost.tokens`` tokens each. The result is None if the model does not write.
    """
    if not cost.spec.main.causal:
        return None
    length, dtype = cost.at(cost.tokens), cost.cache_dtype
    read = count_cache(cost.spec, length, batch=batch, dtype=dtype, seen=True).bytes
    read += _weights_read(cost, batch)
    operations = batch * (cost.flops.per_token + cost.flops.scores_per_token)
    reading, computing = read / card.bandwidth, operations / card.rate(cost.dtype)
    bound: Literal["bandwidth", "compute"] = "bandwidth" if reading >= computing else "compute"
    return Decode(batch, read, operations, max(reading, computing), bound)


def _prefill_seconds(cost: CostReport, card: Gpu) -> float:
    """Return the least seconds of a pass over all prompts on a card.

    A model that writes computes the logits of the last token only.
    """
    operations, read = cost.flops.total_visible, 0
    if cost.spec.main.causal:
        operations -= cost.flops.head - cost.flops.head // cost.tokens
        read = _weights_read(cost, cost.batch * cost.tokens)
    return max(operations / card.rate(cost.dtype), read / card.bandwidth)


def _weights_read(cost: CostReport, tokens: int) -> int:
    """Return the bytes of weights that a step of this many tokens reads, at the mean dtype."""
    stacks = (stack for stack in cost.parameters.stacks if stack.spec.causal)
    numbers = round(sum(number for stack in stacks for number in _numbers_read(stack, tokens)))
    return cost.weight_bytes * numbers // max(cost.parameters.total, 1)


def _numbers_read(stack: StackCount, tokens: int) -> Iterator[float]:
    """Yield the parameters of a stack, then, negative, those that a step does not read.

    Of tables a step looks up single rows, unless they are the LM head too. Keys and values of a
    source are kept. Of E experts, k of which are active, it reads those that a token was sent to:
    with even routing E × (1 − (1 − k/E)^tokens), which is k for one token.
    """
    yield stack.total - stack.shares.embedding
    head = stack.spec.head
    if head is not None and head.tied:
        yield head.inputs * head.outputs
    for group in stack.groups:
        forward = group.layer.feed_forward
        if forward is not None and isinstance(forward.spec, ExpertsSpec):
            idle = (1 - forward.spec.active / forward.spec.experts) ** tokens
            yield -group.stored * forward.per_expert * forward.spec.experts * idle
        for attention in group.layer.attentions:
            if attention.spec.cross:
                yield -group.stored * (attention.key + attention.value)
