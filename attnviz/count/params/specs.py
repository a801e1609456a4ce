"""The description of a transformer in plain numbers, from which everything is counted.

A ``ModelSpec`` consists of stacks, a stack of groups of equal layers, a layer of attentions, a
feed-forward part and norms. All are named tuples of exact integers, which are made in a fraction of
the time of dataclasses and need only the standard library, so that counting starts at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

MOST = 10**15
"""The largest size that is accepted: beyond it a typing error is likelier."""


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


class Buffer(NamedTuple):
    """Numbers that a checkpoint stores but that are not trained.

    label: their name in tables. numbers: how many.
    """

    label: str
    numbers: int


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
    buffers: tuple[Buffer, ...] = ()


class LayerSpec(NamedTuple):
    """The description of one layer.

    Its fields are its attentions, its feed-forward part or None, its norms, other parts and
    buffers.
    """

    attentions: tuple[AttentionSpec, ...]
    feed_forward: FeedForwardSpec | ExpertsSpec | None = None
    norms: tuple[Norm, ...] = ()
    parts: tuple[Part, ...] = ()
    buffers: tuple[Buffer, ...] = ()


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
    buffers: tuple[Buffer, ...] = ()

    @property
    def depth(self) -> int:
        """Return the number of layers that a token passes through."""
        return sum(group.repeat for group in self.groups)

    @property
    def attentions(self) -> Iterator[tuple[int, AttentionSpec]]:
        """Yield each attention with the number of layers that have it."""
        for group in self.groups:
            for attention in group.layer.attentions:
                yield group.repeat, attention


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
        writing = [stack for stack in self.stacks if stack.causal]
        return (writing or list(self.stacks))[-1]


def group_layers(layers: Sequence[LayerSpec]) -> tuple[LayerGroup, ...]:
    """Return groups of equal layers, in the order of the first layer of each kind."""
    places: dict[LayerSpec, list[int]] = {}
    for index, layer in enumerate(layers):
        places.setdefault(layer, []).append(index)
    return tuple(
        LayerGroup(layer, len(indices), tuple(indices) if len(places) > 1 else None)
        for layer, indices in places.items()
    )
