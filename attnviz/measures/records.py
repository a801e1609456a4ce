"""Attention followed through all layers, as it crosses the folders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.records import Kind, ModelInfo, Tokens

__all__ = ["Rollout"]


@dataclass(frozen=True)
class Rollout:
    """Attention followed through all layers (Abnar & Zuidema 2020).

    kind: the attention that was followed; cross attention cannot be.
    tokens: of both axes.
    matrix: float64 (query, key): how much of each output comes from each input token; rows sum to
        one.
    raw: float64 (query, key): the mean over the heads of the last layer's weights.
    layers: how many were followed.
    """

    model: ModelInfo
    kind: Kind
    causal: bool
    tokens: Tokens
    matrix: NDArray[np.float64]
    raw: NDArray[np.float64]
    layers: int

    def __post_init__(self) -> None:
        shape = (len(self.tokens), len(self.tokens))
        if self.matrix.shape != shape or self.raw.shape != shape:
            raise ValueError(
                f"expected matrices of shape {shape}, got {self.matrix.shape}, {self.raw.shape}"
            )
