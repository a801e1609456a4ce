"""The description of a transformer in plain numbers, and the parameters that it has.

A ``ModelSpec`` consists of stacks, a stack of groups of equal layers, a layer of attentions, a
feed-forward part and norms. All are named tuples of exact integers, which are made in a fraction of
the time of dataclasses and need only the standard library, so that counting starts at once. Every
parameter belongs to a ``Term``: a product that is written out, so that a person can check it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from attnviz.errors import UsageError

MOST = 10**15
"""The largest size that is accepted: beyond it a typing error is likelier."""


class Term(NamedTuple):
    """A summand of a count, with its arithmetic.

    label: what is counted, in words. number: the count.
    formula: the arithmetic in numbers, such as ``4096 × 4096 = 16,777,216``.
    symbols: the same arithmetic in names, such as ``d_model × heads × head_dim``; may be empty.
    role: the share it belongs to: ``query``, ``key``, ``value``, ``output``, ``latent`` (matrices
        that heads share), ``bias``, ``norm``, ``up``, ``gate``, ``down``, ``router``,
        ``embedding``, ``head``, ``other``.
    factors: the sizes whose product is the count: of a matrix (inputs, outputs), of equal ones
        (copies, inputs, outputs); empty if it is no product.
    """

    label: str
    number: int
    formula: str
    symbols: str = ""
    role: str = "other"
    factors: tuple[int, ...] = ()


def product(label: str, *factors: int, role: str = "other", symbols: str = "") -> Term:
    """Return the product of ``factors`` as a term whose formula shows the multiplication."""
    number = math.prod(factors)
    formula = f"{number:,}"
    if len(factors) > 1:
        formula = f"{' × '.join(map(str, factors))} = {formula}"
    return Term(label, number, formula, symbols, role, factors)


def total(terms: Iterable[Term], *roles: str) -> int:
    """Return the sum of the terms' numbers, or only of those with one of the ``roles``."""
    return sum(term.number for term in terms if not roles or term.role in roles)


class Dense(NamedTuple):
    """A weight matrix that multiplies, with its bias; a part of a layer, stack or model.

    label: its name in tables.
    inputs, outputs: its widths; a convolution has kernel × channels inputs.
    bias: whether each output has a bias.
    places: how often a sequence passes through it, such as once in a pooler; None for every token.
    tied: whether its matrix belongs to another part, so that it multiplies but is not counted
        again.
    """

    label: str
    inputs: int
    outputs: int
    bias: bool = False
    places: int | None = None
    tied: bool = False


class LookupTable(NamedTuple):
    """Learned rows that are looked up or added, never multiplied: embeddings, tokens, scales.

    label: its name in tables. rows, width: how many rows, and the numbers in each.
    """

    label: str
    rows: int
    width: int


class Norm(NamedTuple):
    """A normalisation over ``width`` features; RMS norms have a scale, layer norms a shift too."""

    label: str
    width: int
    scale: bool = True
    shift: bool = False


Part: TypeAlias = Dense | LookupTable | Norm


def terms_of(parts: Iterable[Part], role: str = "other") -> tuple[Term, ...]:
    """Return the terms of matrices, tables and norms; norms have the role ``norm``.

    role: the share of the parameters that the other terms belong to.
    Of a tied matrix only the bias is counted here.
    """
    terms = []
    for part in parts:
        match part:
            case Dense(label, inputs, outputs):
                if not part.tied:
                    terms.append(product(label, inputs, outputs, role=role))
                if part.bias:
                    terms.append(product(f"{label} bias", outputs, role=role))
            case LookupTable(label, rows, width):
                terms.append(product(label, *[rows] * (rows != 1), width, role=role))
            case Norm(label, width):
                if vectors := part.scale + part.shift:
                    terms.append(product(label, *[2] * (vectors > 1), width, role="norm"))
    return tuple(terms)


Buffers: TypeAlias = tuple[tuple[str, int], ...]
"""Names and sizes of arrays that a checkpoint stores but that are not trained."""


class LatentSpec(NamedTuple):
    """Keys and values compressed into a latent vector (MLA: DeepSeek-V2, 2024).

    kv_lora: width of the vector from which keys and values are computed.
    rope_dim, nope_dim: widths of the parts of a head's query and key with and without positions.
    q_lora: width of the latent vector of queries, None if they are projected in one step.
    down_bias: whether the projections to the latent vectors have biases.
    """

    kv_lora: int
    rope_dim: int
    nope_dim: int
    q_lora: int | None = None
    down_bias: bool = False


class AttentionSpec(NamedTuple):
    """The sizes and switches of one attention of one layer.

    d_model: width of its input and output.
    heads, kv_heads: query heads, and the key/value heads that they share.
    head_dim, value_dim: width of a head's query and key, and of its value.
    query_bias, key_bias, value_bias, output_bias: whether that projection has a bias.
    window: tokens that a query sees, itself included; None for all.
    keeps_all: whether keys and values of all tokens are cached although a window hides some.
    latent: the latent keys and values, or None. linear: whether a state of head_dim × value_dim
        numbers for each head replaces the attention weights.
    cross: whether keys and values come from another stack, of width ``source_width``.
    source_width: width of the input of keys and values; None for d_model.
    parts: norms of queries and keys, position bias tables, gates.
    """

    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    query_bias: bool = False
    key_bias: bool = False
    value_bias: bool = False
    output_bias: bool = False
    window: int | None = None
    keeps_all: bool = False
    latent: LatentSpec | None = None
    linear: bool = False
    cross: bool = False
    source_width: int | None = None
    parts: tuple[Part, ...] = ()

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return the parameters: d·(H·D) + d·(K·D) + d·(K·V) + (H·V)·d, biases, norms, others."""
        projections = (_latent if self.latent else _projections)(self)
        return (*projections, *_biases(self), *terms_of(self.parts))

    @property
    def per_head(self) -> dict[str, int]:
        """Return one head's parameters by role, without biases and shared latent matrices."""
        heads = {"query": self.heads, "key": self.kv_heads, "value": self.kv_heads}
        heads["output"] = self.heads
        numbers = {role: total(self.terms, role) // many for role, many in heads.items()}
        if (latent := self.latent) is not None and latent.q_lora is not None:  # as the way down is
            numbers["query"] = latent.q_lora * (latent.nope_dim + latent.rope_dim)
        return numbers


def _projections(spec: AttentionSpec) -> Iterator[Term]:
    d, source = spec.d_model, spec.source_width or spec.d_model
    read = "d_model" if source == d else "d_source"
    value = "head_dim" if spec.value_dim == spec.head_dim else "v_head_dim"
    shared = "heads" if spec.kv_heads == spec.heads else "kv_heads"
    for role, inputs, outputs, symbols in (
        ("query", d, spec.heads * spec.head_dim, "d_model × (heads × head_dim)"),
        ("key", source, spec.kv_heads * spec.head_dim, f"{read} × ({shared} × head_dim)"),
        ("value", source, spec.kv_heads * spec.value_dim, f"{read} × ({shared} × {value})"),
        ("output", spec.heads * spec.value_dim, d, f"(heads × {value}) × d_model"),
    ):
        yield product(role, inputs, outputs, role=role, symbols=symbols)


def _latent(spec: AttentionSpec) -> Iterator[Term]:
    """Yield the terms of latent attention (DeepSeek-V2): to latent vectors, from them to heads."""
    assert spec.latent is not None
    d, heads, (narrow, rope, nope, squeezed, _) = spec.d_model, spec.heads, spec.latent
    width, values = heads * (nope + rope), heads * spec.value_dim
    wide = "(heads × (nope_dim + rope_dim))"
    queries = [("query", "query", d, width, f"d_model × {wide}")]
    if squeezed is not None:
        queries = [
            ("query", "query down", d, squeezed, "d_model × q_lora"),
            ("query", "query up", squeezed, width, f"q_lora × {wide}"),
        ]
    for role, label, inputs, outputs, symbols in (
        *queries,
        ("latent", "key and value down", d, narrow + rope, "d_model × (kv_lora + rope_dim)"),
        ("key", "key up", narrow, heads * nope, "kv_lora × (heads × nope_dim)"),
        ("value", "value up", narrow, values, "kv_lora × (heads × v_head_dim)"),
        ("output", "output", values, d, "(heads × v_head_dim) × d_model"),
    ):
        yield product(label, inputs, outputs, role=role, symbols=symbols)


def _biases(spec: AttentionSpec) -> Iterator[Term]:
    widths = {
        "query": spec.query_bias * spec.heads * spec.head_dim,
        "key": spec.key_bias * spec.kv_heads * spec.head_dim,
        "value": spec.value_bias * spec.kv_heads * spec.value_dim,
        "output": spec.output_bias * spec.d_model,
    }
    if spec.latent is not None and spec.latent.down_bias:
        widths["down"] = spec.latent.kv_lora + spec.latent.rope_dim
        widths["query down"] = spec.latent.q_lora or 0
    return (product(f"{name} bias", size, role="bias") for name, size in widths.items() if size)


class FeedForwardSpec(NamedTuple):
    """The sizes and switches of the part of a layer that processes each token by itself.

    d_model, d_ff: outer and inner width.
    gated: whether a third matrix gates the inner layer (Shazeer 2020).
    up_bias, down_bias: whether the matrices inwards (with the gate) and outwards have biases.
    """

    d_model: int
    d_ff: int
    gated: bool = False
    up_bias: bool = False
    down_bias: bool = False

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return the parameters: 2·d_model·d_ff, 3·d_model·d_ff if gated, and biases."""
        return tuple(_matrices(self))


def _matrices(spec: FeedForwardSpec, prefix: str = "", *copies: int) -> Iterator[Term]:
    d, f, times = spec.d_model, spec.d_ff, "experts × " if copies else ""
    for role in ("up", "gate") if spec.gated else ("up",):
        yield product(f"{prefix}{role}", *copies, d, f, role=role, symbols=f"{times}d_model × d_ff")
    yield product(f"{prefix}down", *copies, f, d, role="down", symbols=f"{times}d_ff × d_model")
    if spec.up_bias:
        yield product(f"{prefix}up bias", *copies, *[2] * spec.gated, f, role="bias")
    if spec.down_bias:
        yield product(f"{prefix}down bias", *copies, d, role="bias")


class ExpertsSpec(NamedTuple):
    """A mixture of experts, which takes the place of a layer's feed-forward part.

    expert: one routed expert.
    experts, active: how many there are, and how many a token passes through.
    shared: the expert that every token passes through, or None.
    router_bias: whether the router has a bias for each expert.
    parts: other parts, such as a gate on the shared expert.
    buffers: numbers of the router that are stored but not trained.
    """

    expert: FeedForwardSpec
    experts: int
    active: int
    shared: FeedForwardSpec | None = None
    router_bias: bool = False
    parts: tuple[Part, ...] = ()
    buffers: Buffers = ()

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return the parameters of all experts, the router, the shared expert and other parts."""
        d, shared = self.expert.d_model, self.shared
        return (
            *_matrices(self.expert, "experts ", self.experts),
            product("router", d, self.experts, role="router", symbols="d_model × experts"),
            *[product("router bias", self.experts, role="bias")] * self.router_bias,
            *(() if shared is None else _matrices(shared, "shared expert ")),
            *terms_of(self.parts),
        )


class LayerSpec(NamedTuple):
    """One layer: its attentions, its feed-forward part or None, its norms, and other parts."""

    attentions: tuple[AttentionSpec, ...]
    feed_forward: FeedForwardSpec | ExpertsSpec | None = None
    norms: tuple[Norm, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def named_attentions(self) -> Iterator[tuple[str, AttentionSpec]]:
        """Yield (name in tables, attention) for each attention of the layer."""
        for spec in self.attentions:
            kind = "self " * (len(self.attentions) > 1)
            if spec.cross or spec.linear:
                kind = "cross " if spec.cross else "linear "
            yield f"{kind}attention", spec

    @property
    def placed(self) -> Iterator[PlacedTerm]:
        """Yield the parameters of the layer."""
        for name, attention in self.named_attentions:
            yield from (PlacedTerm(term, "attention", name) for term in attention.terms)
        if self.feed_forward is not None:
            name = "experts" if isinstance(self.feed_forward, ExpertsSpec) else "feed-forward"
            yield from (PlacedTerm(term, "feed_forward", name) for term in self.feed_forward.terms)
        for term in terms_of((*self.norms, *self.parts)):
            norm = term.role == "norm"
            yield PlacedTerm(term, "norm" if norm else "other", "norms" if norm else term.label)

    @property
    def idle(self) -> int:
        """Return the parameters of the experts that one token does not pass through."""
        mixture = self.feed_forward
        if not isinstance(mixture, ExpertsSpec):
            return 0
        return (mixture.experts - mixture.active) * total(mixture.expert.terms)


class LayerGroup(NamedTuple):
    """A group of equal layers of a stack.

    layer: one of them. repeat: how many times a token passes through one.
    indices: which layers of the stack they are; None for all layers.
    shared: whether they are the same layer, whose parameters count once (ALBERT).
    """

    layer: LayerSpec
    repeat: int
    indices: tuple[int, ...] | None = None
    shared: bool = False

    @property
    def stored(self) -> int:
        """Return how many of the layers have their own parameters."""
        return 1 if self.shared else self.repeat

    @property
    def kind(self) -> str:
        """Return the attention of the layers in a few words, such as ``sliding 4,096``."""
        words = []
        for spec in self.layer.attentions:
            if spec.cross or spec.linear:
                words.append("cross" if spec.cross else "linear")
            elif spec.window is not None:
                words.append(f"sliding {spec.window:,}")
            else:
                words.append("latent" if spec.latent is not None else "full")
        forward = self.layer.feed_forward
        if isinstance(forward, ExpertsSpec):
            words.append(f"{forward.active:,} of {forward.experts:,} experts")
        return ", ".join(words)


class StackSpec(NamedTuple):
    """The description of a stack of layers with the parts before and after it.

    name: ``decoder``, ``encoder``, ``vision``, …
    groups: its layers, equal ones together. causal: whether a token sees only earlier ones; such a
        stack caches keys and values while it generates.
    embeddings: token, position and type tables, patch embeddings, special tokens.
    norms: the norms outside the layers.
    parts: poolers, projectors and everything else that multiplies or adds.
    head: the matrix onto the vocabulary, or None; ``tied`` if it is the token table.
    tokens: how many tokens the stack always sees, such as an image's patches; None if this varies.
    max_positions: the longest sequence that its positions allow, or None.
    reads: which tokens it processes: ``target`` (generated ones) or ``source`` (the encoder's).
    buffers: numbers that are stored but not trained.
    """

    name: str
    groups: tuple[LayerGroup, ...]
    causal: bool = True
    embeddings: tuple[Part, ...] = ()
    norms: tuple[Norm, ...] = ()
    parts: tuple[Part, ...] = ()
    head: Dense | None = None
    tokens: int | None = None
    max_positions: int | None = None
    reads: Literal["target", "source"] = "target"
    buffers: Buffers = ()

    @property
    def depth(self) -> int:
        """Return the number of layers that a token passes through."""
        return sum(group.repeat for group in self.groups)

    @property
    def attentions(self) -> Iterator[tuple[int, AttentionSpec]]:
        """Yield (number of layers that have it, attention) for each attention of the stack."""
        for group in self.groups:
            for attention in group.layer.attentions:
                yield group.repeat, attention

    @property
    def placed(self) -> Iterator[PlacedTerm]:
        """Yield the parameters of the stack: outside the layers, then of each group of them."""
        yield from _outside(self.embeddings, "embedding", self)
        yield from _outside((*self.norms, *self.parts), "other", self)
        yield from _outside([] if self.head is None else [self.head], "head", self)
        for group in self.groups:
            for part in group.layer.placed:
                yield part._replace(stack=self, group=group)


class ModelSpec(NamedTuple):
    """The description of a whole model, or of a part of one, from which everything is counted.

    name: the requested name. source: where its numbers come from: a URL, a paper, a file; empty if
        the sizes were given by options.
    stacks: in the order in which a sequence passes through them.
    embeddings: the tables that several stacks share.
    parts: parts that belong to no stack, such as projectors between them.
    notes: sentences that a person should read next to the numbers.
    architecture: the model class whose parameters are counted; empty if there is none.
    dtype: the checkpoint's own dtype if its config names one, else empty.
    """

    name: str
    source: str
    stacks: tuple[StackSpec, ...]
    embeddings: tuple[Part, ...] = ()
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()
    architecture: str = ""
    dtype: str = ""

    @property
    def main(self) -> StackSpec:
        """Return the stack that represents the model: the last causal one, else the last one."""
        return ([stack for stack in self.stacks if stack.causal] or list(self.stacks))[-1]

    @property
    def common(self) -> LayerGroup:
        """Return the main stack's most frequent kind of layer; the first of equally frequent."""
        return max(self.main.groups, key=lambda group: group.repeat)

    @property
    def attention(self) -> AttentionSpec:
        """Return the self-attention of ``common``; its first attention if there is none."""
        attentions = self.common.layer.attentions
        return next((spec for spec in attentions if not spec.cross), attentions[0])

    @property
    def attention_only(self) -> bool:
        """Return True if the model is nothing but the attention of one layer."""
        alone = len(self.stacks) == self.common.repeat == len(self.common.layer.attentions) == 1
        return alone and self.total == total(self.attention.terms)

    @property
    def placed(self) -> Iterator[PlacedTerm]:
        """Yield all parameters, shared ones once: those of the stacks, then those outside them."""
        for stack in self.stacks:
            yield from stack.placed
        yield from _outside(self.embeddings, "embedding")
        yield from _outside(self.parts, "other")

    @property
    def total(self) -> int:
        """Return the number of parameters."""
        return sum(part.number for part in self.placed)

    @property
    def active(self) -> int:
        """Return how many parameters one token passes through; tables count in full, as usual."""
        groups = [group for stack in self.stacks for group in stack.groups]
        return self.total - sum(group.layer.idle * group.stored for group in groups)

    @property
    def buffers(self) -> tuple[Term, ...]:
        """Return the numbers that are stored but not trained; they are not part of the total."""
        terms: list[Term] = []
        for stack in self.stacks:
            terms += [product(label, numbers) for label, numbers in stack.buffers]
            for group in stack.groups:
                inner = getattr(group.layer.feed_forward, "buffers", ())
                terms += [product(label, group.stored, numbers) for label, numbers in inner]
        return tuple(terms)


def with_kv_heads(spec: ModelSpec, kv_heads: int) -> ModelSpec:
    """Return the model with ``kv_heads`` key/value heads in each attention (Ainslie et al. 2023).

    Raises UsageError if they do not divide the query heads, or no attention has any: attention with
    latent keys and values, and linear attention, stay as they are.
    """
    changed: list[int] = []

    def attention(own: AttentionSpec) -> AttentionSpec:
        if own.latent is not None or own.linear:
            return own
        if own.heads % kv_heads:
            raise UsageError(f"{own.heads} heads do not share {kv_heads} key/value heads evenly")
        changed.append(kv_heads)
        spans = {own.kv_heads * own.head_dim: kv_heads * own.head_dim}
        parts = [
            part._replace(width=spans.get(part.width, part.width))
            if isinstance(part, Norm) and part.label.startswith("key") and own.kv_heads > 1
            else part
            for part in own.parts
        ]
        return own._replace(kv_heads=kv_heads, parts=tuple(parts))

    def walk(value: Any) -> Any:
        if isinstance(value, AttentionSpec):
            return attention(value)
        if hasattr(value, "_fields"):
            return value._make(map(walk, value))
        return tuple(map(walk, value)) if isinstance(value, tuple) else value

    model: ModelSpec = walk(spec)
    if not changed:
        raise UsageError(f"{spec.name!r} has no attention with key/value heads of its own")
    return model


class PlacedTerm(NamedTuple):
    """A term of a model's parameter count, with the part of the model that it is in.

    share: the purpose that it counts for, one of ``SHARES``. name: of the part that it is in.
    stack: the stack that it belongs to, or None. group: the layers that have it, or None.
    """

    term: Term
    share: str
    name: str
    stack: StackSpec | None = None
    group: LayerGroup | None = None

    @property
    def number(self) -> int:
        """Return the parameters of the term, summed over all layers that have their own."""
        return self.term.number * (1 if self.group is None else self.group.stored)


def _outside(
    parts: Iterable[Part], role: str, stack: StackSpec | None = None
) -> Iterator[PlacedTerm]:
    for term in terms_of(parts, role):
        yield PlacedTerm(term, term.role, term.label, stack)


SHARES = ("attention", "feed_forward", "embedding", "norm", "head", "other")
"""The purposes of parameters: all inside the attentions; feed-forward parts with routers and
experts; token, position and type tables, patch embeddings, special tokens; norms outside the
attentions; the matrix onto the vocabulary if it is not the token table; poolers, projectors."""


def shares_of(placed: Iterable[PlacedTerm]) -> dict[str, int]:
    """Return the numbers of some parameters by purpose; they add up to the number of all."""
    shares = dict.fromkeys(SHARES, 0)
    for part in placed:
        shares[part.share] += part.number
    return shares


def group_layers(layers: Sequence[LayerSpec]) -> tuple[LayerGroup, ...]:
    """Return groups of equal layers, in the order of the first layer of each kind."""
    places: dict[LayerSpec, list[int]] = {}
    for index, layer in enumerate(layers):
        places.setdefault(layer, []).append(index)
    return tuple(
        LayerGroup(layer, len(indices), tuple(indices) if len(places) > 1 else None)
        for layer, indices in places.items()
    )
