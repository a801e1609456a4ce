"""Colours as tables of 256 steps, and the scales that choose a step.

viridis and magma are matplotlib's (van der Walt & Smith 2015, CC0); all run from dark to bright.

A weight's step is its square root: most weights of a row are small, and the root spreads them out
and keeps 0 and 1 in their places; weights above 1, as in value-weighted maps, count as 1. A value
of either sign has the root of its size, with the same range both ways; without colour, glyphs of
two families tell the sign.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DIVERGING",
    "PALETTES",
    "RGB",
    "STEPS",
    "Tint",
    "colour_table",
    "contrasting",
    "diverging_steps",
    "sign_glyph",
    "strength",
    "to_hex",
    "visible_cells",
    "weight_steps",
]

RGB = tuple[int, int, int]


class Tint(NamedTuple):
    """A colour: a step, 0 to 255, of a palette; an empty name is the reader's own palette."""

    step: int
    palette: str = ""


PALETTES = {
    "viridis": (
        "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c "
        "1f9f88 27ad81 3dbc74 5cc863 81d34d aadc32 d5e21a fde725"
    ),
    "magma": (
        "000004 0a0822 1d1147 36106b 51127c 6a1c81 832681 9c2e7f b73779 "
        "cf4070 e55064 f4695c fb8761 fea571 fec287 fde0a1 fcfdbf"
    ),
    "blues": "0a1128 0f2557 17408a 2563b4 4a8fd4 86bce9 c2e0f6 f2faff",
    "grey": "141414 fafafa",
}
"""Anchor colours by palette name, from weight 0 to weight 1."""

DIVERGING = "diverging"
"""The scale of both signs: bright blue below zero, dark at zero, bright orange above.

Blue and orange stay apart for every common kind of colour blindness (Okabe & Ito 2008).
"""

_ANCHORS = PALETTES | {
    DIVERGING: "8fd0ff 3a9be0 1f5f97 17324d 161618 4d3116 96560f e08a1e ffcf8a",
}

STEPS = 256
"""Entries of a colour table."""


@lru_cache
def colour_table(name: str) -> tuple[RGB, ...]:
    """The 256 colours of a palette, evenly spaced between its anchors. KeyError if unknown.

    In place of a name stand anchors of one's own, such as ``181c24 56b4e9``.
    """
    spelled = name if " " in name else _ANCHORS[name]
    anchors = [tuple(bytes.fromhex(anchor)) for anchor in spelled.split()]
    table = []
    for step in range(STEPS):
        place = step * (len(anchors) - 1) / (STEPS - 1)
        left = min(int(place), len(anchors) - 2)
        share = place - left
        mixed = [
            round(low + (high - low) * share)
            for low, high in zip(anchors[left], anchors[left + 1], strict=True)
        ]
        table.append((mixed[0], mixed[1], mixed[2]))
    return tuple(table)


def contrasting(colour: RGB) -> RGB:
    """Black or white, whichever stands out more from ``colour``; by 4.5 : 1 or more (WCAG 2.1)."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in colour)
    )
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return (0, 0, 0) if (luminance + 0.05) ** 2 > 1.05 * 0.05 else (255, 255, 255)


def to_hex(colour: RGB) -> str:
    """A colour as ``#rrggbb``."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


_MIDDLE = (STEPS - 1) / 2
_LEVELS = (0.125, 0.4, 0.7)
"""The roots from which a value is weak, middling or strong without colour."""
_HELPS, _HARMS = "░▒█", "-=≡"
_ASCII_HELPS, _ASCII_HARMS = "+*#", "-=%"


def diverging_steps(values: NDArray[np.floating], limit: float) -> NDArray[np.intp]:
    """Each value's step in 0 … 255, same shape: 0 at −limit, 255 at +limit; −1 for NaN.

    Zero is step 128; values beyond the limit count as the limit.
    """
    roots = np.sign(values) * np.sqrt(np.minimum(np.abs(values) / (limit or 1.0), 1.0))
    levels = np.floor(_MIDDLE + roots * _MIDDLE + 0.5)
    steps: NDArray[np.intp] = np.nan_to_num(levels, nan=-1.0).astype(np.intp)
    return steps


def strength(value: float, limit: float) -> int:
    """How strong a value is without colour: 0 (almost none) to 3, by its root's share of one."""
    root = min(abs(value) / (limit or 1.0), 1.0) ** 0.5
    return sum(root >= level for level in _LEVELS)


def sign_glyph(value: float, limit: float, ascii_only: bool) -> str:
    """One glyph for a value's sign and strength; a dot for almost none."""
    level = strength(value, limit)
    if not level:
        return "." if ascii_only else "·"
    if ascii_only:
        return (_ASCII_HELPS if value > 0 else _ASCII_HARMS)[level - 1]
    return (_HELPS if value > 0 else _HARMS)[level - 1]


def weight_steps(weights: NDArray[np.floating]) -> NDArray[np.intp]:
    """Each weight's step in 0 … 255 of a colour table, same shape; −1 for NaN."""
    levels = np.sqrt(np.clip(weights, 0.0, 1.0)) * (STEPS - 1)
    steps: NDArray[np.intp] = np.rint(np.nan_to_num(levels, nan=-1.0)).astype(np.intp)
    return steps


def visible_cells(queries: int, keys: int, causal: bool) -> NDArray[np.bool_]:
    """Which cells (query, key) a map draws: the future of a causal query stays blank."""
    cells = np.ones((queries, keys), dtype=bool)
    return np.tril(cells) if causal else cells
