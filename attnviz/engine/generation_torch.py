"""A growing text through a model that torch runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.head_run import open_heads
from attnviz.errors import UnsupportedError
from attnviz.models.model import Model, Reader
from attnviz.records import Input, Kind, Tokens

Floats = NDArray[np.floating]


def open_reader(
    model: Model, tokens: Tokens, kind: Kind, removed: Collection[tuple[int, int]]
) -> Reader:
    """What reads the growing text; UnsupportedError where the model does not tell what follows."""
    return _WholePasses(model, tokens, kind)


class _WholePasses:
    """Reads the whole text anew each time."""

    def __init__(self, model: Model, tokens: Tokens, kind: Kind) -> None:
        self._source = None if kind == "self" else tokens
        self._run, _ = open_heads(model, kind, self._given(tokens.ids[:1]), causal=True)

    def _given(self, ids: Sequence[int]) -> Input:
        read = Tokens.bare(ids)
        return Input(read) if self._source is None else Input(self._source, read)

    def read(self, ids: Sequence[int]) -> tuple[Floats, dict[int, Floats]]:
        """See ``Reader``."""
        found = self._run(self._given(ids))
        if found.logits is None:
            raise UnsupportedError("no logits")
        rows = {layer: weights[:, -1] for layer, weights in found.weights.items()}
        return found.logits[-1], rows
