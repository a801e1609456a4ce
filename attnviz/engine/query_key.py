"""Hand over the queries and keys of a running model, whatever runs it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.queries_keys import ObserveHeads, QueriesKeys
from attnviz.errors import UnsupportedError
from attnviz.models.model import Model, NumpyModel, QueryKeyModel
from attnviz.records import Tokens

__all__ = ["Model", "observe_queries_keys"]

Floats = NDArray[np.floating]


def observe_queries_keys(
    model: Model, tokens: Tokens, wants: Callable[[int], bool], observe: ObserveHeads
) -> tuple[str, ...]:
    """Run ``model`` over ``tokens`` and hand over each wanted layer; what a reader must know of it.

    Of an encoder–decoder it is the encoder. Raises UnsupportedError where the architecture does
    not show its queries and keys, or does more with them than scale, add and soften.
    """
    notes = model.info.notes + model.notes_for(tokens)
    if isinstance(model, QueryKeyModel):
        if model.info.score not in (None, "scaled-dot"):
            raise UnsupportedError(
                f"{model.info.name!r} matches by {model.info.score} scores, which have no scale: "
                "choose scaled-dot"
            )
        bias = _future(len(tokens)) if model.causal else None

        def hand_over(layer: int, query: Floats, key: Floats) -> None:
            observe(QueriesKeys(layer, query, key, 1 / math.sqrt(query.shape[-1]), bias))

        model.run_queries_keys(tokens, wants, hand_over)
        return notes
    if isinstance(model, NumpyModel):
        raise UnsupportedError(
            f"{model.info.name!r} does not show its queries and keys: choose another --model"
        )
    from attnviz.engine.query_key_torch import observe_torch  # torch only where needed

    observe_torch(model, tokens, wants, observe)
    return notes


def _future(tokens: int) -> Floats:
    """A bias (1, query, key) that hides every later key."""
    return np.triu(np.full((1, tokens, tokens), -np.inf, np.float32), 1)
