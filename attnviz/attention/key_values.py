"""A cache of the keys and values of the tokens read so far, so that none is computed twice.

Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2: the KV cache.
"""

from __future__ import annotations

import numpy as np

from attnviz.attention.functional import Floats

_FIRST = 64
"""Tokens that the cache has room for at first; the room doubles when it is full."""


class KeyValues:
    """The cached keys and values of one layer: projected, rotated and repeated for each query head.

    tokens: how many tokens are cached.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._room: tuple[Floats, Floats] | None = None

    def grown(self, key: Floats, value: Floats) -> tuple[Floats, Floats]:
        """Append the keys and values of further tokens to the cache.

        Return all keys and all values, (head, token, dim) each.
        """
        stop = self.tokens + key.shape[-2]
        if self._room is None or stop > self._room[0].shape[-2]:
            self._room = self._larger(key, stop, 0), self._larger(value, stop, 1)
        keys, values = self._room
        keys[:, self.tokens : stop], values[:, self.tokens : stop] = key, value
        self.tokens = stop
        return keys[:, :stop], values[:, :stop]

    def cut(self, tokens: int) -> None:
        """Remove all but the first ``tokens`` tokens from the cache."""
        self.tokens = min(self.tokens, tokens)

    def _larger(self, like: Floats, tokens: int, part: int) -> Floats:
        heads, _, dim = like.shape
        room = np.empty((heads, max(2 * tokens, _FIRST), dim), like.dtype)
        if self._room is not None:
            room[:, : self.tokens] = self._room[part][:, : self.tokens]
        return room
