"""The GPUs that ``--gpu`` names: what serving a model takes of their memory, and how fast it is.

Speeds are bounds by a roofline, from the vendors' numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

from attnviz.count.params.cache import BITS, bits, count_cache, largest, settled_length
from attnviz.count.params.cost import BuiltCount, CostReport
from attnviz.count.params.specs import ExpertsSpec, FeedForwardSpec, LayerGroup, LayerSpec, total
from attnviz.errors import UsageError
from attnviz.models.shapes import configs_directory, nearest
from attnviz.reading import read_toml

_LOGIT_BYTES = 4


class Gpu(NamedTuple):
    """One GPU model, as a file in ``configs/gpus`` describes it.

    name, aliases: the names that a user may type. vendor: the maker. year: of its launch.
    memory_mib: the memory in MiB. bandwidth: of the memory, in bytes a second. flops: the most
        floating-point operations a second, by dtype. source: where these numbers are from.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    year: int
    memory_mib: int
    bandwidth: float
    flops: dict[str, float]
    source: str

    @property
    def memory(self) -> int:
        """Return the size of the GPU's memory in bytes."""
        return 2**20 * self.memory_mib

    def rate(self, dtype: str) -> float:
        """Return the most operations a second on parameters of a dtype, such as ``bfloat16``.

        This is the fastest rate of an equal or a wider dtype, as parameters may be widened before
        they are multiplied, and whole numbers be turned into floats.
        """
        whole, least = dtype.startswith("int"), bits(dtype)
        rates = (
            rate
            for name, rate in self.flops.items()
            if BITS[name] >= least and (whole or not name.startswith("int"))
        )
        return max(rates, default=self.flops["float32"])


def all_cards() -> tuple[Gpu, ...]:
    """Return every known GPU, by ascending memory; GPUs of equal memory by ascending speed."""
    cards = []
    for path in (configs_directory() / "gpus").glob("*.toml"):
        table = read_toml(path, "a table of cards")
        for card in table["card"]:
            aliases = tuple(card.pop("aliases"))
            cards.append(Gpu(vendor=table["vendor"], aliases=aliases, **card))
    return tuple(sorted(cards, key=lambda card: (card.memory, card.bandwidth, card.name)))


def find_cards(typed: Sequence[str]) -> tuple[Gpu, ...]:
    """Return the GPUs of these names, each once, in the order in which they were typed.

    typed: names or aliases, several of them separated by commas; ``all`` is every GPU.
    Raises UsageError for an unknown name, with the nearest known one.
    """
    cards = all_cards()
    chosen: dict[str, Gpu] = {}
    for name in ",".join(typed).strip(", ").split(","):
        wanted = _plain(name)
        named = [
            card for card in cards if wanted in ("all", *map(_plain, (card.name, *card.aliases)))
        ]
        if not named:
            known = (name for card in cards for name in (card.name, *card.aliases))
            near = nearest(name.strip().upper(), known) or "; --gpu all lists those that are known"
            raise UsageError(f"no card {name.strip()!r}{near}")
        chosen |= {card.name: card for card in named}
    return tuple(chosen.values())


def _plain(name: str) -> str:
    """Return a GPU's name without what people type in several ways: case, vendor, dashes."""
    return re.sub(r"nvidia|amd|[^a-z0-9]", "", name.lower())


class Need(NamedTuple):
    """The bytes of GPU memory that serving a model takes, for ``step`` tokens in one pass.

    activations, logits: None for a ``BuiltCount``, which does not count them.
    """

    step: int
    weights: int
    cache: int
    activations: int | None
    logits: int | None
    overhead: int

    @property
    def total(self) -> int:
        return sum(size or 0 for size in self[1:])


class Decode(NamedTuple):
    """A lower bound on the time of a generation step for ``batch`` sequences, one token each.

    read: the bytes of parameters and cache that the step reads. operations: the floating-point
        operations that it computes. seconds: the least time, bytes / bandwidth or operations /
        rate. bound: which of these is larger.
    """

    batch: int
    read: int
    operations: int
    seconds: float
    bound: Literal["bandwidth", "compute"]

    @property
    def each(self) -> float:
        """Return the most tokens per second that one sequence can get."""
        return 1 / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Return the most tokens per second that all sequences together can get."""
        return self.batch / self.seconds


class CardFit(NamedTuple):
    """Whether a GPU can run a model, and how fast at most.

    need: the memory for the counted length and batch. free: bytes that stay free, negative if it
        does not fit. cards: how many such GPUs are needed if they share parameters and cache, and
        each holds all other memory; None if no number is enough. The cost of splitting is left out.
    batch: the most sequences of the counted length. context: the most tokens of each of the counted
        sequences. For both, 0 if not a single one fits, None if the memory sets no limit.
    rate: the operations a second of the GPU. prefill: the least seconds of a pass over all prompts.
    decode: the speed of generation with the counted batch; full: with ``batch`` sequences. Each is
        None if that does not fit, or if the model does not generate. All are None for a
        ``BuiltCount``, which does not count operations.
    """

    card: Gpu
    need: Need
    free: int
    cards: int | None
    batch: int | None
    context: int | None
    rate: float
    prefill: float | None
    decode: Decode | None
    full: Decode | None

    @property
    def fits(self) -> bool:
        return self.free >= 0


def fit_cards(
    cost: CostReport | BuiltCount, cards: Sequence[Gpu], *, chunk: int, overhead: int
) -> tuple[CardFit, ...]:
    """Return for each GPU whether it can run the model of ``cost``, and how fast at most.

    The length, the batch and the dtypes are those for which ``cost`` was counted. chunk: the most
    prompt tokens in one pass. overhead: the bytes for driver, kernels and allocator.
    """

    @cache  # the same numbers are tried for each card
    def need(tokens: int, batch: int) -> Need:
        return _need(cost, tokens, batch, chunk)._replace(overhead=overhead)

    known = cost if isinstance(cost, CostReport) else None
    needed, settled = need(cost.tokens, cost.batch), max(settled_length(cost.cache), chunk)
    shared = needed.weights + needed.cache
    stored = cost.dtype if cost.storage is None else cost.storage.narrowest or "int4"

    def prefill(card: Gpu, rate: float) -> float | None:
        """Return the least seconds of a pass over all prompts, of whose logits the last count."""
        if known is None:
            return None
        operations, read = known.flops.total_visible, 0
        if known.spec.main.causal:
            operations -= known.flops.head - known.flops.head // known.tokens
            read = _weights_read(known, known.batch * known.tokens)
        return max(operations / rate, read / card.bandwidth)

    def fit(card: Gpu) -> CardFit:
        batch = largest(lambda batch: need(cost.tokens, batch).total, card.memory, settled)
        free, rate = card.memory - needed.total, card.rate(stored)
        return CardFit(
            card=card,
            need=needed,
            free=free,
            cards=-(-shared // (free + shared)) if free + shared > 0 else None,
            batch=batch,
            context=largest(lambda n: need(n, cost.batch).total, card.memory, settled),
            rate=rate,
            prefill=prefill(card, rate),
            decode=_decode(known, card, rate, cost.batch) if known and free >= 0 else None,
            full=_decode(known, card, rate, batch) if known and batch else None,
        )

    return tuple(map(fit, cards))


def _need(cost: CostReport | BuiltCount, tokens: int, batch: int, chunk: int) -> Need:
    """Return the GPU memory that serving ``batch`` sequences takes, without the overhead."""
    cached = cost.cache_at(tokens, batch)
    kept = cached.bytes if cached else 0
    weights = (cost.weight_bytes or 0) + cost.buffer_bytes
    if isinstance(cost, BuiltCount):
        return Need(0, weights, kept, None, logits=None, overhead=0)
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
    return Need(step, weights, kept, widest * cost.maps.bits // 8, logits=logits, overhead=0)


def _layer_width(layer: LayerSpec) -> int:
    """Return the numbers of a token: its residual, that after the norm, the widest part's own."""
    inside = [_forward_width(layer.feed_forward)]
    for spec in layer.attentions:  # query, key, values, latent vectors
        latent = spec.latent
        shared = 0 if latent is None else latent.kv_lora + latent.rope_dim + (latent.q_lora or 0)
        inside.append((spec.heads + spec.kv_heads) * (spec.head_dim + spec.value_dim) + shared)
    return 2 * layer.attentions[0].d_model + max(inside)


def _forward_width(spec: FeedForwardSpec | ExpertsSpec | None) -> int:
    """Return how many inner numbers a token has: up, gate, product, in all active experts."""
    if spec is None:
        return 0
    if isinstance(spec, ExpertsSpec):
        inner = _forward_width(spec.expert) + spec.expert.d_model
        return spec.active * inner + _forward_width(spec.shared)
    return (2 + spec.gated) * spec.d_ff


def _decode(cost: CostReport, card: Gpu, rate: float, batch: int) -> Decode | None:
    """Return the bound of a generation step; None if the model does not generate."""
    if not cost.spec.main.causal:
        return None
    length, dtype = cost.at(cost.tokens), cost.cache_dtype
    read = count_cache(cost.spec, length, batch=batch, dtype=dtype, seen=True).bytes
    read += _weights_read(cost, batch)
    operations = batch * (cost.flops.per_token + cost.flops.scores_per_token)
    reading, computing = read / card.bandwidth, operations / rate
    bound: Literal["bandwidth", "compute"] = "bandwidth" if reading >= computing else "compute"
    return Decode(batch, read, operations, max(reading, computing), bound)


def _weights_read(cost: CostReport, tokens: int) -> int:
    """Return the bytes of parameters that a step of this many tokens loads.

    Of tables a step looks up single rows, unless they are the LM head too. Keys and values of a
    source are cached. Of E experts, k of which are active, it loads those that a token was sent to:
    with even routing E × (1 − (1 − k/E)^tokens), which is k for one token.
    Of quantised parameters, what it does not load counts at its own size, all else at the mean.
    """
    stacks = [stack for stack in cost.spec.stacks if stack.causal]
    weights, stored = cost.weight_bytes or 0, cost.storage

    def idle(group: LayerGroup) -> float:
        spec = group.layer.feed_forward
        return (1 - spec.active / spec.experts) ** tokens if isinstance(spec, ExpertsSpec) else 0

    if stored is not None and stored.experts is not None and len(cost.spec.stacks) == 1:
        head = stacks[0].head
        tables = 0 if head is not None and head.tied else stored.tables or 0
        unread = max((idle(group) for group in stacks[0].groups), default=0)
        return round(weights - tables - stored.experts * unread)
    numbers = 0.0
    for stack in stacks:
        numbers += sum(part.number for part in stack.placed if part.share != "embedding")
        if stack.head is not None and stack.head.tied:
            numbers += stack.head.inputs * stack.head.outputs
        for group in stack.groups:
            forward = group.layer.feed_forward
            if isinstance(forward, ExpertsSpec):
                experts = group.stored * total(forward.expert.terms) * forward.experts
                numbers -= experts * idle(group)
            for attention in group.layer.attentions:
                numbers -= attention.cross * group.stored * total(attention.terms, "key", "value")
    return weights * round(numbers) // max(cost.total, 1)
