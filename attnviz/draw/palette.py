"""Colour scales: a weight in [0, 1] as a colour, from the anchors of well-known palettes.

Blues are the default on every terminal, page and picture: from dark to bright on a dark ground,
from white to dark on paper. viridis and magma are matplotlib's (van der Walt & Smith 2015, CC0).
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import NamedTuple

from attnviz.errors import UsageError

RGB = tuple[int, int, int]


class Tint(NamedTuple):
    """A colour level, 0 to 255, of a palette, which is empty for the user's palette."""

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
    "blues": "12171e 15335a 1d5c9e 3f8fdc 84bdf5 cfe6ff",
    "grey": "141414 fafafa",
}
"""Anchor colours by palette name, from weight 0 to weight 1."""

DEFAULT = "blues"

DIVERGING = "diverging"
"""The scale of values of either sign: bright blue below zero, dark at zero, bright orange above.

Blue and orange differ for every common kind of colour blindness (Okabe & Ito 2008).
"""

FEW = {"blues": "blues-256"}
"""The palettes that have another form for terminals of 256 colours, which have few blues."""

_FEW_BLUES = (
    "121212 00005f 000087 0000af 005f87 005faf 005fd7 0087d7 "
    "0087ff 5fafff 87afff 87d7ff afd7ff d7d7ff d7ffff"
)
_ANCHORS = PALETTES | {
    "blues-256": _FEW_BLUES,
    DIVERGING: "a8d4ff 6cb0ff 2f6fb0 1c3a5c 12171e 4d3413 9a5f14 f0a04b ffd9a8",
}
_SERIES = {
    "56b4e9": "0072b2", "e69f00": "d55e00", "009e73": "009e73", "cc79a7": "cc79a7",
    "f0e442": "8a7d00", "d55e00": "e69f00", "0072b2": "56b4e9", "999999": "666666",
}  # fmt: skip
"""Hues of curves on a dark ground (Okabe & Ito 2008), and those as visible on white."""

_ON_PAPER = {f"{dark} {dark}": f"{light} {light}" for dark, light in _SERIES.items()} | {
    "blues": "ffffff d3e3f5 86b4e2 3a7fc4 134a8e 062a5c",
    DIVERGING: "17528a 2f86cf 74b5e8 c3dff5 ffffff fbdfb8 f0a951 d87a10 8f4a06",
}
"""Colours for white paper in place of those for a dark ground; zero is white there."""

SERIES_SIGNS = "●○◆◇■□▲△"
"""Signs that distinguish curves without their hues."""

STEPS = 256
"""Entries of a colour table."""


def series_tint(number: int) -> Tint:
    """Return the colour of a curve by its number from 0; curve 8 has the colour of curve 0."""
    hue = [*_SERIES][number % len(_SERIES)]
    return Tint(0, f"{hue} {hue}")


def contrasted(name: str, full: float) -> str:
    """Return a palette whose last colour begins at weight ``full``, in (0, 1]; else UsageError."""
    if not 0 < full <= 1:
        raise UsageError(f"expected a contrast above 0 and up to 1, got {full}")
    return name if full == 1 else f"{name}@{full!r}"


def full_weight(name: str) -> float:
    """Return the weight from which a palette has its last colour, in (0, 1]."""
    return float(name.partition("@")[2] or 1)


def raised(step: int, name: str) -> int:
    """Return the colour level that a step of √weight has in a palette, with its contrast."""
    return min(round(step / math.sqrt(full_weight(name))), STEPS - 1)


def anchors_of(name: str, paper: bool = False) -> list[str]:
    """Return the given colours of a palette as RRGGBB. paper: whether they are for white paper."""
    own = name.partition("@")[0]
    own = _ON_PAPER.get(own.removesuffix("-256"), own) if paper else own
    return (own if " " in own else _ANCHORS[own]).split()


@lru_cache
def colour_table(name: str, paper: bool = False) -> tuple[RGB, ...]:
    """Return the 256 colours of a palette, evenly spaced between its given colours (anchors).

    name: in ``PALETTES``, or anchors such as ``181c24 56b4e9``; KeyError for any other name.
    paper: whether the ground is white.
    """
    anchors = [tuple(bytes.fromhex(anchor)) for anchor in anchors_of(name, paper)]
    table = []
    for step in (raised(step, name) for step in range(STEPS)):
        position = step * (len(anchors) - 1) / (STEPS - 1)
        left = min(int(position), len(anchors) - 2)
        share = position - left
        ends = zip(anchors[left], anchors[left + 1], strict=True)
        red, green, blue = (round(low + (high - low) * share) for low, high in ends)
        table.append((red, green, blue))
    return tuple(table)


def paper_table(name: str) -> tuple[RGB, ...]:
    """Return the 256 colours of a palette for pictures and pages, whose background is white."""
    return colour_table(name, True)


def on_grounds(name: str, step: int, palette: str, ink: bool = False) -> str:
    """Return the declarations of a style property: a colour of a palette on paper, and on dark.

    name: the property. ink: whether it is that of a text on this colour, in black or white.
    """
    shades = [table[step] for table in (paper_table(palette), colour_table(palette))]
    light, dark = (to_hex(contrasting(shade) if ink else shade) for shade in shades)
    return f"{name}:{light}" + f";{name}:light-dark({light},{dark})" * (light != dark)


_GROUND, _FAINTEST = bytes((24, 28, 36)), 0.3


def shades(colour: str) -> str:
    """Return a palette from a faint shade of a colour RRGGBB to the colour, as two anchors."""
    full = bytes.fromhex(colour)
    mixed = zip(_GROUND, full, strict=True)
    faint = bytes(round(dark + (bright - dark) * _FAINTEST) for dark, bright in mixed)
    return f"{faint.hex()} {full.hex()}"


def contrasting(colour: RGB) -> RGB:
    """Return black or white, whichever contrasts more with ``colour``; 4.5 : 1 or more (WCAG)."""
    return (0, 0, 0) if (_luminance(colour) + 0.05) ** 2 > 1.05 * 0.05 else (255, 255, 255)


def _luminance(colour: RGB) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def written_on(colour: RGB, ground: RGB) -> RGB:
    """Return a colour that texts on ``ground`` can have: the same hue, at least 4.5 : 1 (WCAG)."""
    light = contrasting(ground)
    for step in range(21):
        ends = zip(colour, light, strict=True)
        red, green, blue = (round(own + (end - own) * step / 20) for own, end in ends)
        low, high = sorted((_luminance((red, green, blue)), _luminance(ground)))
        if (high + 0.05) / (low + 0.05) >= 4.5:
            return red, green, blue
    return light


_ACCENTS = {"magma": "4fd0ff", "blues": "ffb000", DIVERGING: "7dff7d"}
_ACCENT = "2ea8e6"


def accent_colour(name: str) -> RGB:
    """Return the colour of a cursor on top of a palette: one that the palette does not contain."""
    red, green, blue = bytes.fromhex(_ACCENTS.get(re.split("[-@]", name)[0], _ACCENT))
    return red, green, blue


_KEPT = 0.55
_FOG = (110, 110, 110, 0.7)


@lru_cache
def veils(name: str, *, paper: bool = False) -> tuple[tuple[int, int, int, float], ...]:
    """Return the colours (red, green, blue, opacity) in which 256 levels lie over a picture.

    The strongest level hides the picture. The weakest one is black, or white if the weakest colour
    of the palette is light, and lets 55 % of the picture through. A last entry, grey, is for places
    without a level.
    name: of the palette. paper: whether the palette is that for white paper.
    """
    table = paper_table(name) if paper else colour_table(name)
    ground = 255 - contrasting(table[0])[0]
    veil = []
    for step, colour in enumerate(table):
        own = (step / (STEPS - 1)) ** 1.5
        rest = (1 - own) * (1 - _KEPT)
        red, green, blue = (round((own * part + rest * ground) / (own + rest)) for part in colour)
        veil.append((red, green, blue, round(own + rest, 3)))
    return *veil, _FOG


def to_hex(colour: RGB) -> str:
    """Return a colour as ``#rrggbb``."""
    return "#{:02x}{:02x}{:02x}".format(*colour)
