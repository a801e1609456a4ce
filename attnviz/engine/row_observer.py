"""The protocol by which attention is handed over in blocks of queries, and how large they are."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from attnviz.records import Kind

__all__ = ["BLOCK_CELLS", "RowObserver", "hand_over", "rows_of_a_block"]

BLOCK_CELLS = 2**20
"""Weights of a block, all heads and texts together: 4 MB as float32."""


class RowObserver(Protocol):
    """Told of the attention of several texts while it passes by, some queries at a time."""

    @property
    def norms(self) -> bool:
        """Whether the norms of what is moved are wanted as well."""
        ...

    def wants(self, kind: Kind, layer: int) -> bool:
        """Whether the weights of this layer are to be handed over."""
        ...

    def observe(
        self,
        text: int,
        kind: Kind,
        layer: int,
        start: int,
        weights: NDArray[np.floating],
        norms: NDArray[np.floating] | None,
    ) -> None:
        """Take the weights (head, rows, keys) of one text's queries from ``start`` on.

        Where causal, the keys after the block's last query may be left out.
        norms: ‖v_j W_O^h‖ of what each key moves, (head, key); None unless they are wanted.
        """
        ...


def rows_of_a_block(texts: int, heads: int, keys: int, cells: int = BLOCK_CELLS) -> int:
    """How many queries go into a block of at most ``cells`` weights; at least one."""
    return max(1, cells // (texts * heads * keys))


def hand_over(
    observer: RowObserver,
    text: int,
    kind: Kind,
    layer: int,
    weights: NDArray[np.floating],
    norms: NDArray[np.floating] | None,
    cells: int,
) -> None:
    """Pass on a whole matrix (head, query, key) block by block."""
    heads, queries, keys = weights.shape
    rows = rows_of_a_block(1, heads, keys, cells)
    for start in range(0, queries, rows):
        observer.observe(text, kind, layer, start, weights[:, start : start + rows], norms)
