"""What attention weights are made of: queries, keys, a scale, what is hidden, and the softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import attention_scores, softmax

__all__ = ["ObserveHeads", "QueriesKeys", "products", "softmaxed"]

Floats = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class QueriesKeys:
    """The queries and keys of one layer over one text.

    layer: from 0.
    query, key: (heads, token, head_dim), one key head a query head, as they are multiplied.
    scale: what the model multiplies their products with.
    bias: (1 or heads, query, key), what it adds to the scaled products, -inf where a query does not
        see a key; None where nothing is added.
    """

    layer: int
    query: Floats
    key: Floats
    scale: float
    bias: Floats | None = None

    def head(self, head: int) -> tuple[Floats, Floats, Floats | None]:
        """Query and key (token, head_dim) and bias (query, key) of one head."""
        bias = self.bias
        if bias is not None:
            bias = bias[head if len(bias) > 1 else 0]
        return self.query[head], self.key[head], bias


ObserveHeads = Callable[[QueriesKeys], None]


def products(query: Floats, key: Floats) -> Floats:
    """The bare scores q·k: (..., query, head_dim) and (..., key, head_dim) to (..., query, key)."""
    scores: Floats = attention_scores(query, key, 1.0)
    return scores


def softmaxed(scores: Floats, scale: float, bias: Floats | None = None) -> Floats:
    """The weights (..., query, key) of bare scores: softmax(scores · scale + bias) over keys."""
    scaled = scores * scale
    weights: Floats = softmax(scaled if bias is None else scaled + bias)
    return weights
