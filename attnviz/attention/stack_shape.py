"""The sizes and settings of a stack of layers, and the trace of a pass through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from attnviz.attention.activations import Activation
from attnviz.attention.functional import Floats
from attnviz.attention.rotary import Rotary

Norm = Literal["rms", "rms-from-one", "layer"]
"""The norm: RMS norm (Zhang & Sennrich 2019), RMS norm with one plus the stored gain (Gemma), or
LayerNorm (Ba et al. 2016)."""

Order = Literal["before", "after", "parallel"]
"""Norms stand before attention and feed-forward (GPT-2, Llama), after each of them (BERT), or
before both, which then read the same residual (GPT-NeoX)."""


@dataclass(frozen=True)
class StackShape:
    """The sizes of a NumPy model's stack of layers, and which variant of each part it uses.

    layers, heads, kv_heads: ``heads // kv_heads`` query heads share a key/value head.
    head_dim: width of one head's query and key. vocabulary: number of tokens in the vocabulary.
    context: the longest sequence of tokens that the stack accepts. norm, order, activation: see
        their types. The feed-forward is gated if the tensors have a ``gate`` (Shazeer 2020).
    norm_eps: added under the norm's root.
    causal: whether a query sees no later key. windows: for each layer the number of keys that a
        query sees, itself included, None for all of them; empty if no layer has a window.
    rotary: rotary positions of query and key, or None; unturned: layers without them.
    scaled: whether the scores are divided by √head_dim.
    embedding_scale: a number that multiplies the token embeddings.
    padding: the id of the padding token, if positions are counted from the row after it and padding
        tokens get that row itself (RoBERTa); None if they are counted from the first row.
    head_activation: the activation between ``prediction`` and ``prediction_norm``.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    norm: Norm
    norm_eps: float
    order: Order
    activation: Activation
    causal: bool
    rotary: Rotary | None = None
    unturned: frozenset[int] = frozenset()
    windows: tuple[int | None, ...] = ()
    scaled: bool = True
    embedding_scale: float = 1.0
    padding: int | None = None
    head_activation: Activation = "gelu"


class LayerTrace(NamedTuple):
    """The additions of one layer to the residual over one text.

    weights: the attention weights that were stored. values: (head, key, value_dim), one for each
        query head.
    output: the output projection by head (width, head, value_dim). bias: its bias (width,) or None.
    fed: the output of the feed-forward, (token, width).
    """

    weights: Floats
    values: Floats
    output: Floats
    bias: Floats | None
    fed: Floats


class Trace(NamedTuple):
    """One pass over a text as a sum: the embedding and each layer's additions.

    embedded: the residual (token, width) before the first layer. layers: the additions of each
        layer. residual: after the last layer.
    """

    embedded: Floats
    layers: Sequence[LayerTrace]
    residual: Floats
