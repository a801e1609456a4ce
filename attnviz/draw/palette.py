"""Colour scales: a weight in [0, 1] as a colour, from the anchors of well-known palettes.

viridis and magma are matplotlib's (van der Walt & Smith 2015, CC0). All run from dark to bright,
but for blues on paper, which run from white to dark as the interactive page's do.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

RGB = tuple[int, int, int]


class Tint(NamedTuple):
    """A colour of a palette.

    step: the colour level, 0 to 255. palette: empty for the user's palette.
    """

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
"""The scale of values of either sign: bright blue below zero, dark at zero, bright orange above.

Blue and orange differ for every common kind of colour blindness (Okabe & Ito 2008).
"""

_ANCHORS = PALETTES | {DIVERGING: "8fd0ff 3a9be0 1f5f97 17324d 161618 4d3116 96560f e08a1e ffcf8a"}
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


@lru_cache
def colour_table(name: str) -> tuple[RGB, ...]:
    """Return the 256 colours of a palette, evenly spaced between its given colours (anchors).

    name: in ``PALETTES``, or anchors such as ``181c24 56b4e9``; KeyError for any other name.
    """
    spelled = name if " " in name else _ANCHORS[name]
    anchors = [tuple(bytes.fromhex(anchor)) for anchor in spelled.split()]
    table = []
    for step in range(STEPS):
        place = step * (len(anchors) - 1) / (STEPS - 1)
        left = min(int(place), len(anchors) - 2)
        share = place - left
        ends = zip(anchors[left], anchors[left + 1], strict=True)
        red, green, blue = (round(low + (high - low) * share) for low, high in ends)
        table.append((red, green, blue))
    return tuple(table)


def paper_table(name: str) -> tuple[RGB, ...]:
    """Return the 256 colours of a palette for pictures and pages, whose background is white."""
    return colour_table(_ON_PAPER.get(name, name))


_GROUND, _FAINTEST = bytes((24, 28, 36)), 0.3


def shades(colour: str) -> str:
    """Return a palette from a faint shade of a colour to the colour itself, as two anchors.

    colour: RRGGBB in hexadecimal.
    """
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


_LIGHT = 0.25

_ACCENTS = {"magma": "4fd0ff", "blues": "ffb000", DIVERGING: "7dff7d"}
_ACCENT = "2ea8e6"


def accent_colour(name: str) -> RGB:
    """Return the colour of a cursor on top of a palette: one that the palette does not contain."""
    red, green, blue = bytes.fromhex(_ACCENTS.get(name, _ACCENT))
    return red, green, blue


def lighter(colour: RGB) -> RGB:
    """Return a colour a quarter of the way to white."""
    red, green, blue = (round(part + (255 - part) * _LIGHT) for part in colour)
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
