"""What a transformer is made of, as plain numbers: the input of every count.

A ``ModelSpec`` is made of stacks, a stack of groups of equal layers, a layer of attentions, a
feed-forward part and norms. All are exact integers in named tuples, which are made in a fraction of
the time of dataclasses, and need the standard library only, so that counting starts at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

MOST = 10**15
"""The largest size that is believed: beyond it a slip of the keyboard is likelier."""


class Dense(NamedTuple):
    """A weight matrix that multiplies, with its bias.

    label: what it is, in words.
    inputs, outputs: its widths; a convolution's inputs are kernel × channels.
    bias: whether it has one number per output more.
    places: how often a sequence passes through it, once in a pooler; None for at every token.
    tied: its matrix belongs to another part and is not counted again, but it still multiplies.
    """

    label: str
    inputs: int
    outputs: int
    bias: bool = False
    places: int | None = None
    tied: bool = False


class LookupTable(NamedTuple):
    """Learned rows that are looked up or added, never multiplied: embeddings, tokens, scales."""

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
    """Numbers that a checkpoint stores but no training step changes."""

    label: str
    numbers: int


class LatentSpec(NamedTuple):
    """Keys and values squeezed through a narrow vector (MLA: DeepSeek-V2, 2024).

    kv_lora: width of the vector that keys and values are rebuilt from.
    rope_dim, nope_dim: widths of a head's query and key that carry the position, and that do not.
    q_lora: width of the squeezed query, or None where queries are projected in one step.
    down_bias: whether the projections down have biases.
    """

    kv_lora: int
    rope_dim: int
    nope_dim: int
    q_lora: int | None = None
    down_bias: bool = False


class AttentionSpec(NamedTuple):
    """One attention of one layer.

    d_model: width of what it reads and writes.
    heads, kv_heads: query heads, and key/value heads they share.
    head_dim, value_dim: width of a head's query and key, and of its value.
    query_bias, key_bias, value_bias, output_bias: which projections have one.
    window: tokens that a query sees, itself among them; None for all.
    keeps_all: keys and values of all tokens are kept all the same, where a window hides them.
    latent: the squeezed keys and values, or None.
    linear: a running state of head_dim × value_dim a head takes the place of the weights.
    cross: keys and values come from another stack, of width ``source_width``.
    source_width: width of what keys and values are made from; None for d_model.
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
    """The part of a layer that works on each token alone.

    d_model, d_ff: outer and inner width.
    gated: a third matrix gates the inner layer (Shazeer 2020).
    up_bias, down_bias: biases of the matrices inwards (gate among them) and outwards.
    activation: ``relu``, ``gelu``, ``silu``, …, for display only.
    """

    d_model: int
    d_ff: int
    gated: bool = False
    up_bias: bool = False
    down_bias: bool = False
    activation: str = ""


class ExpertsSpec(NamedTuple):
    """A mixture of experts in the place of one feed-forward part.

    expert: one routed expert.
    experts, active: how many there are, and how many a token passes through.
    shared: the expert that every token passes through, or None.
    router_bias: whether the router has one number per expert more.
    parts: what else is there, as a gate on the shared expert.
    buffers: numbers of the router that are stored and not trained.
    """

    expert: FeedForwardSpec
    experts: int
    active: int
    shared: FeedForwardSpec | None = None
    router_bias: bool = False
    parts: tuple[Part, ...] = ()
    buffers: tuple[Buffer, ...] = ()


class LayerSpec(NamedTuple):
    """One block: its attentions, its feed-forward part or None, its norms and what else it has."""

    attentions: tuple[AttentionSpec, ...]
    feed_forward: FeedForwardSpec | ExpertsSpec | None = None
    norms: tuple[Norm, ...] = ()
    parts: tuple[Part, ...] = ()
    buffers: tuple[Buffer, ...] = ()


class LayerGroup(NamedTuple):
    """Layers that are all alike.

    layer: one of them.
    repeat: how many times a token passes through one.
    indices: which layers of the stack they are; None where they are all there are.
    shared: whether they are one and the same layer, whose numbers count once (ALBERT).
    """

    layer: LayerSpec
    repeat: int
    indices: tuple[int, ...] | None = None
    shared: bool = False


class StackSpec(NamedTuple):
    """A stack of layers with what stands before and behind it.

    name: ``decoder``, ``encoder``, ``vision``, …
    groups: its layers, equal ones together.
    causal: a token sees earlier ones only; such a stack keeps keys and values when it writes.
    embeddings: token, position and type tables, patch embeddings, special tokens.
    norms: the norms outside the layers.
    parts: poolers, projectors and whatever else multiplies or adds.
    head: the matrix onto the vocabulary, or None; ``tied`` where it is the token table.
    tokens: how many tokens this stack always sees, as an image's patches; None where it varies.
    max_positions: the longest sequence its positions allow, or None.
    reads: which tokens it sees: ``target`` (what is written), ``source`` (what is read first).
    buffers: numbers that are stored and not trained.
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
        """Return how many layers a token passes through."""
        return sum(group.repeat for group in self.groups)


class ModelSpec(NamedTuple):
    """A whole model, or as much of one as was asked for.

    name: how it was asked for.
    source: where its numbers come from: a URL, a paper, a file; empty for a shape typed in.
    stacks: in the order in which a sequence passes through them.
    embeddings: the tables that several stacks share.
    parts: what belongs to no stack, as projectors between them.
    notes: sentences that a person should read next to the numbers.
    architecture: the model class whose weights are counted; empty if there is none.
    dtype: the checkpoint's own dtype where its config names one, else empty.
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
        """Return the stack that a person means: the last that writes, else the last of all."""
        writing = [stack for stack in self.stacks if stack.causal]
        return (writing or list(self.stacks))[-1]


def group_layers(layers: Sequence[LayerSpec]) -> tuple[LayerGroup, ...]:
    """Group equal layers, in the order of the first of each kind."""
    places: dict[LayerSpec, list[int]] = {}
    for index, layer in enumerate(layers):
        places.setdefault(layer, []).append(index)
    return tuple(
        LayerGroup(layer, len(indices), tuple(indices) if len(places) > 1 else None)
        for layer, indices in places.items()
    )
