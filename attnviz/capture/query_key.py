"""Hand over what attention weights are made of: queries, keys, the scale and what is hidden."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import attention_scores, softmax
from attnviz.errors import UnsupportedError
from attnviz.models.model import Model, NumpyModel, QueryKeyModel
from attnviz.records import Tokens

__all__ = ["ObserveHeads", "QueriesKeys", "observe_queries_keys", "products", "softened"]

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


def observe_queries_keys(
    model: Model, tokens: Tokens, wants: Callable[[int], bool], observe: ObserveHeads
) -> tuple[str, ...]:
    """Run ``model`` over ``tokens`` and hand over each wanted layer; what a reader must know of it.

    Of an encoder–decoder it is the encoder. Raises UnsupportedError where the architecture does
    not show its queries and keys, or does more with them than scale, add and soften.
    """
    if isinstance(model, QueryKeyModel):
        bias = _future(len(tokens)) if model.causal else None

        def hand_over(layer: int, query: Floats, key: Floats) -> None:
            observe(QueriesKeys(layer, query, key, 1 / math.sqrt(query.shape[-1]), bias))

        model.run_queries_keys(tokens, wants, hand_over)
        return (*model.info.notes, *model.notes_for(tokens))
    if isinstance(model, NumpyModel):
        raise UnsupportedError(
            f"{model.info.name!r} does not show its queries and keys: choose another --model"
        )
    from attnviz.capture.query_key_torch import observe_torch  # torch only where needed

    observe_torch(model, tokens, wants, observe)
    return model.info.notes


def products(query: Floats, key: Floats) -> Floats:
    """The bare scores q·k: (..., query, head_dim) and (..., key, head_dim) to (..., query, key)."""
    scores: Floats = attention_scores(query, key, 1.0)
    return scores


def softened(scores: Floats, scale: float, bias: Floats | None = None) -> Floats:
    """The weights (..., query, key) of bare scores: softmax(scores · scale + bias) over keys."""
    scaled = scores * scale
    weights: Floats = softmax(scaled if bias is None else scaled + bias)
    return weights


def _future(tokens: int) -> Floats:
    """A bias (1, query, key) that hides every later key."""
    return np.triu(np.full((1, tokens, tokens), -np.inf, np.float32), 1)
