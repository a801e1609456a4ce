"""Rotary positions: Su et al. 2021, "RoFormer", section 3.4, and the ways of stretching them.

Pair p of a head's dimensions is rotated by the angle position · theta^(−2p / dims). The pair
consists of dimensions p and p + dims / 2, as in Llama's checkpoints; the paper pairs neighbours.

A model that was trained on short texts can read longer ones if its wavelengths are stretched. The
ways are those of transformers' ``modeling_rope_utils.py``, with the same rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array, namespace

Powers = NDArray[np.float32]  # theta^(2p / dims) of each pair p: its wavelength over 2π
_ONE = np.float32(1)


@dataclass(frozen=True)
class Linear:
    """Stretches all wavelengths by one factor (Chen et al. 2023, "Position Interpolation")."""

    factor: float
    scale: float = 1.0

    def frequencies(self, powers: Powers, theta: float, tokens: int) -> Powers:
        return _ONE / powers / np.float32(self.factor)


@dataclass(frozen=True)
class Llama3:
    """Stretches only long wavelengths (Grattafiori et al. 2024, "The Llama 3 Herd of Models").

    Wavelengths above context / low are stretched in full, by ``factor``, those below context / high
    not at all. context: length in tokens of the texts that the model was first trained on.
    scale: multiplies cosines and sines.
    """

    factor: float
    low: float
    high: float
    context: int
    scale: float = 1.0

    def frequencies(self, powers: Powers, theta: float, tokens: int) -> Powers:
        speeds = _ONE / powers
        lengths = np.float32(2 * math.pi) / speeds
        share = (np.float32(self.context) / lengths - self.low) / (self.high - self.low)
        share = np.clip(share, 0, 1).astype(np.float32)
        return (1 - share) * (speeds / np.float32(self.factor)) + share * speeds


@dataclass(frozen=True)
class Yarn:
    """Stretches only the pairs that rotate slowly (Peng et al. 2023, "YaRN").

    fast, slow: a pair with at least ``fast`` turns within the context stays, one with at most
        ``slow`` is stretched in full. whole: whether these limits are rounded to whole pairs.
    """

    factor: float
    context: int
    scale: float
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True

    def frequencies(self, powers: Powers, theta: float, tokens: int) -> Powers:
        dims = 2 * len(powers)
        # The index, a fraction, of the pair with so many turns within the context.
        first, last = (
            dims * math.log(self.context / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (self.fast, self.slow)
        )
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        width = last - first or 0.001
        pairs = np.arange(len(powers), dtype=np.float32)
        stretched = np.clip((pairs - np.float32(first)) / np.float32(width), 0, 1)
        stays = _ONE - stretched
        slower = _ONE / (np.float32(self.factor) * powers)
        return slower * (1 - stays) + _ONE / powers * stays


@dataclass(frozen=True)
class LongRope:
    """Stretches each wavelength by its own number, for short and long texts (Ding et al. 2024)."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    context: int
    scale: float

    def frequencies(self, powers: Powers, theta: float, tokens: int) -> Powers:
        factors = self.long if tokens > self.context else self.short
        return _ONE / (np.asarray(factors, np.float32) * powers)


Stretch = Linear | Llama3 | Yarn | LongRope
"""A way of stretching wavelengths: ``frequencies`` returns the radians per position of each pair of
dimensions in a text of so many tokens, and cosines and sines are multiplied by ``scale``."""


@dataclass(frozen=True)
class Rotary:
    """The rotary positions of a head: which dimensions are rotated, and how fast.

    theta: base of the wavelengths. dims: number of leading dimensions of a head that are rotated,
        None for all. stretch: how wavelengths are stretched, None for not at all.
    """

    theta: float
    dims: int | None = None
    stretch: Stretch | None = None

    def frequencies(self, head_dim: int, tokens: int = 1) -> list[float]:
        """Return each pair's radians per position in a text; ValueError for an odd ``head_dim``."""
        dims = head_dim if self.dims is None else self.dims
        if dims < 2 or dims % 2 or dims > head_dim:
            raise ValueError(f"rotary positions turn pairs, they need an even head_dim, got {dims}")
        # Rounded at each step as a float32 computation rounds. NumPy's own float32 power is off by
        # a unit in one place of six, which at position 1,000 turns a vector visibly differently
        # from transformers; the float64 power, rounded, is not.
        exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
        powers = (np.float64(self.theta) ** exponents.astype(np.float64)).astype(np.float32)
        if self.stretch is None:
            speeds = _ONE / powers
        else:
            speeds = self.stretch.frequencies(powers, self.theta, tokens)
        return speeds.tolist()

    def tables(self, positions: Array, head_dim: int, like: Array) -> tuple[Array, Array]:
        """Return cosine and sine of the angle of every position and dimension: (..., token, dims).

        positions: (..., token), from 0. like: an array of the library, device and type to use.
        Angles are computed in float32 for every type, as in the training of checkpoints.
        """
        xp = namespace(like)
        places = xp.asarray(positions, dtype=xp.float32, device=like.device)
        tokens = 1 if self.stretch is None else int(xp.max(places)) + 1
        speeds = self.frequencies(head_dim, tokens)
        speeds = xp.asarray(speeds, dtype=xp.float32, device=like.device)
        half = places[..., None] * speeds
        angles = xp.concat([half, half], axis=-1)
        scale: Any = 1.0 if self.stretch is None else self.stretch.scale
        cos, sin = xp.cos(angles), xp.sin(angles)
        if scale != 1.0:
            cos, sin = cos * scale, sin * scale
        return xp.astype(cos, like.dtype), xp.astype(sin, like.dtype)


@lru_cache(maxsize=4)
def counted_tables(
    rotary: Rotary, places: range, head_dim: int, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Return ``Rotary.tables`` of the positions ``places``, cached for all layers of a pass."""
    return rotary.tables(np.arange(places.start, places.stop), head_dim, like=np.empty(0, dtype))


def apply_rotary(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate each head's vectors x (..., head, token, head_dim) by their position.

    cos, sin: from ``Rotary.tables``, of shape (token, dims), or (batch, 1, token, dims) if each
        text of the batch has its own positions. Dimensions beyond ``dims`` stay unchanged.
    """
    xp, dims = namespace(x), cos.shape[-1]
    x, rest = x[..., :dims], x[..., dims:]
    turned = xp.concat([-x[..., dims // 2 :], x[..., : dims // 2]], axis=-1)
    x = x * cos + turned * sin
    return xp.concat([x, rest], axis=-1) if rest.shape[-1] else x
