"""What decides, beside its tensors, what a stack of layers computes; and what a pass leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.activations import Activation
from attnviz.attention.rotary import Rotary

Floats = NDArray[np.floating]

Norm = Literal["rms", "rms-from-one", "layer"]
"""Zhang & Sennrich 2019; the same with one plus the stored gain (Gemma); Ba et al. 2016."""

Order = Literal["before", "after", "parallel"]
"""Norms stand before attention and feed-forward (GPT-2, Llama), after each of them (BERT), or
before both, which then read the same residual (GPT-NeoX)."""


@dataclass(frozen=True)
class StackShape:
    """The sizes of a stack, and its choices among what the parts may do.

    layers, heads, kv_heads: ``heads // kv_heads`` query heads share a key/value head.
    head_dim: width of one head's query and key. vocabulary: tokens that it knows.
    context: the longest sequence of tokens it takes.
    norm, order, activation: the feed-forward is gated where there is a ``gate`` (Shazeer 2020).
    norm_eps: under the norm's root.
    causal: whether a query sees no later key. windows: of each layer, how many keys a query sees,
        itself included, None for all of them; empty where that is so in every layer.
    rotary: rotary positions of query and key, None for none; unturned: layers without them.
    scaled: whether their products are divided by √head_dim.
    embedding_scale: by which the embeddings of tokens are multiplied.
    padding: the id of the padding token, where positions are counted from the row behind it, and
        such a token has that row itself (RoBERTa); None where they are counted from the first.
    head_activation: between ``prediction`` and ``prediction_norm``.
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
    """What one layer adds to the residual over one text.

    weights: what was kept of them. values: (head, key, value_dim), one a query head.
    output: the output projection by head (width, head, value_dim). bias: of it (width,), or None.
    fed: what the feed-forward adds, (token, width).
    """

    weights: Floats
    values: Floats
    output: Floats
    bias: Floats | None
    fed: Floats


class Trace(NamedTuple):
    """One text on its way: the residual before the first layer and behind the last one."""

    embedded: Floats
    layers: Sequence[LayerTrace]
    residual: Floats
