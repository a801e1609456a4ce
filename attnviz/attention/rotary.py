"""Rotary positions: Su et al. 2021, "RoFormer", section 3.4, and the ways of stretching them.

Pair p of a head's dimensions is turned by the angle position · theta^(−2p / dims). As in Llama,
whose checkpoints keep the rows of their projections in that order, p is paired with p + dims / 2,
where the paper pairs neighbours.

A model that was trained on short texts reads longer ones where its wavelengths are stretched. The
ways are those of transformers' ``modeling_rope_utils.py``, and are rounded as there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array, namespace

Powers = NDArray[np.float32]
"""theta^(2p / dims) of each pair p: radians of a wavelength over 2π."""

_ONE = np.float32(1)


class Stretch(Protocol):
    """A way of stretching wavelengths.

    scale: what cosines and sines are multiplied by, and scores with its square.
    """

    @property
    def scale(self) -> float: ...

    def frequencies(self, powers: Powers, theta: float, tokens: int) -> Powers:
        """Radians per position of each pair, in a text of so many tokens."""
        ...


@dataclass(frozen=True)
class Linear:
    """All wavelengths alike (Chen et al. 2023, "Position Interpolation")."""

    factor: float
    scale: float = 1.0

    def frequencies(self, powers: Powers, theta: float, tokens: int) -> Powers:
        found: Powers = _ONE / powers / np.float32(self.factor)
        return found


@dataclass(frozen=True)
class Llama3:
    """Only long wavelengths (Grattafiori et al. 2024, "The Llama 3 Herd of Models").

    Those above context / low are stretched in full, those below context / high not at all.
    context: tokens of the texts that the model was trained on before.
    """

    factor: float
    low: float
    high: float
    context: int
    scale: float = 1.0

    def frequencies(self, powers: Powers, theta: float, tokens: int) -> Powers:
        found = _ONE / powers
        lengths = np.float32(2 * math.pi) / found
        share = (np.float32(self.context) / lengths - self.low) / (self.high - self.low)
        share = np.clip(share, 0, 1).astype(np.float32)
        mixed: Powers = (1 - share) * (found / np.float32(self.factor)) + share * found
        return mixed


@dataclass(frozen=True)
class Yarn:
    """Pairs that turn often stay, those that hardly turn are stretched (Peng et al. 2023, "YaRN").

    fast, slow: turns within the context from which on a pair stays, and below which it is
        stretched in full. whole: whether the pairs between are counted from whole ones.
    """

    factor: float
    context: int
    scale: float
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True

    def frequencies(self, powers: Powers, theta: float, tokens: int) -> Powers:
        dims = 2 * len(powers)
        first, last = (self._pair(turns, theta, dims) for turns in (self.fast, self.slow))
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        width = last - first or 0.001
        pairs = np.arange(len(powers), dtype=np.float32)
        stretched = np.clip((pairs - np.float32(first)) / np.float32(width), 0, 1)
        stays = _ONE - stretched
        slower = _ONE / (np.float32(self.factor) * powers)
        mixed: Powers = slower * (1 - stays) + _ONE / powers * stays
        return mixed

    def _pair(self, turns: float, theta: float, dims: int) -> float:
        """Return the pair, not a whole one, that turns so often within the context."""
        return dims * math.log(self.context / (turns * 2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True)
class LongRope:
    """Each wavelength by a factor of its own (Ding et al. 2024, "LongRoPE").

    short, long: of texts up to the context, and of longer ones.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    context: int
    scale: float

    def frequencies(self, powers: Powers, theta: float, tokens: int) -> Powers:
        factors = self.long if tokens > self.context else self.short
        found: Powers = _ONE / (np.asarray(factors, np.float32) * powers)
        return found


@dataclass(frozen=True)
class Rotary:
    """Which dimensions of a head are turned, and how fast.

    theta: base of the wavelengths. dims: of each head's, the first ones, that are turned; None for
        all of them. stretch: how wavelengths are stretched, None for not.
    """

    theta: float
    dims: int | None = None
    stretch: Stretch | None = None

    def frequencies(self, head_dim: int, tokens: int = 1) -> list[float]:
        """Radians per position of each pair of dimensions, in a text of so many tokens.

        Raises ValueError for an odd number of dimensions.
        """
        dims = head_dim if self.dims is None else self.dims
        if dims < 2 or dims % 2 or dims > head_dim:
            raise ValueError(f"rotary positions turn pairs, they need an even head_dim, got {dims}")
        # Rounded at each step as a float32 computation rounds. NumPy's own float32 power is off by
        # a unit in one place of six, which at position 1,000 turns a vector visibly differently
        # from transformers; the float64 power, rounded, is not.
        exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
        powers = (np.float64(self.theta) ** exponents.astype(np.float64)).astype(np.float32)
        if self.stretch is None:
            found = _ONE / powers
        else:
            found = self.stretch.frequencies(powers, self.theta, tokens)
        frequencies: list[float] = found.tolist()
        return frequencies

    def tables(self, positions: Array, head_dim: int, like: Array) -> tuple[Array, Array]:
        """Cosine and sine of every angle, each of shape (..., token, dims).

        positions: (..., token), counted from 0. ``like`` gives the library, the device, the type.
        The angles are computed in float32 whatever the type: checkpoints were trained so.
        """
        xp = namespace(like)
        places = xp.asarray(positions, dtype=xp.float32, device=like.device)
        tokens = 1 if self.stretch is None else int(xp.max(places)) + 1
        found = self.frequencies(head_dim, tokens)
        speeds = xp.asarray(found, dtype=xp.float32, device=like.device)
        half = places[..., None] * speeds
        angles = xp.concat([half, half], axis=-1)
        scale: Any = 1.0 if self.stretch is None else self.stretch.scale
        cos, sin = xp.cos(angles), xp.sin(angles)
        if scale != 1.0:
            cos, sin = cos * scale, sin * scale
        return xp.astype(cos, like.dtype), xp.astype(sin, like.dtype)


def apply_rotary(x: Array, cos: Array, sin: Array) -> Array:
    """Turn each head's vectors by their position: x (..., head, token, head_dim), same shape out.

    The tables broadcast against x: as (token, dims), or as (batch, 1, token, dims) where each text
    of the batch has positions of its own. Dimensions beyond ``dims`` stay as they are.
    """
    xp, dims = namespace(x), cos.shape[-1]
    x, rest = x[..., :dims], x[..., dims:]
    turned = xp.concat([-x[..., dims // 2 :], x[..., : dims // 2]], axis=-1)
    x = x * cos + turned * sin
    return xp.concat([x, rest], axis=-1) if rest.shape[-1] else x
