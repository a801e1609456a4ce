"""Rotary positions in Llama's half-split convention, for NumPy arrays and torch tensors alike.

Su et al. 2021, "RoFormer", section 3.4: pair p of a head's dimensions is turned by the angle
position · theta^(−2p / head_dim). Llama pairs dimension p with p + head_dim / 2, where the paper
pairs neighbours; that is the order in which Llama checkpoints keep the rows of their projections.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array, namespace

__all__ = ["apply_rotary", "rotary_tables"]


def rotary_tables(
    positions: Array, head_dim: int, theta: float, like: Array
) -> tuple[Array, Array]:
    """Cosine and sine of every angle, each of shape (..., token, head_dim).

    positions: (..., token), counted from 0. ``like`` gives the library, the device and the type.
    The angles are computed in float32 whatever the type, because the checkpoints were trained so.
    Raises ValueError for an odd ``head_dim``.
    """
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"rotary positions turn pairs: head_dim must be even, got {head_dim}")
    xp = namespace(like)
    frequencies = _frequencies(head_dim, theta).tolist()
    places = xp.asarray(positions, dtype=xp.float32, device=like.device)
    half = places[..., None] * xp.asarray(frequencies, dtype=xp.float32, device=like.device)
    angles = xp.concat([half, half], axis=-1)
    return xp.astype(xp.cos(angles), like.dtype), xp.astype(xp.sin(angles), like.dtype)


def apply_rotary(x: Array, cos: Array, sin: Array) -> Array:
    """Turn each head's vectors by their position: x (..., head, token, head_dim), same shape out.

    The tables broadcast against x: as (token, head_dim), or as (batch, 1, token, head_dim) where
    each text of the batch has positions of its own.
    """
    half = x.shape[-1] // 2
    turned = namespace(x).concat([-x[..., half:], x[..., :half]], axis=-1)
    return x * cos + turned * sin


def _frequencies(head_dim: int, theta: float) -> NDArray[np.float32]:
    """Radians per position of each pair, rounded at each step as a float32 computation rounds.

    NumPy's own float32 power is off by a unit in one place of six, which at position 1,000 turns
    a vector visibly differently from transformers; the float64 power, rounded, is not.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = np.float64(theta) ** exponents.astype(np.float64)
    return np.float32(1) / powers.astype(np.float32)
