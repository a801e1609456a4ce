"""A colour for each label, brighter the stronger it is; apart for common colour blindness.

The first ones are those of Okabe and Ito (2008); relations share the violets, their letter tells
them apart.
"""

from __future__ import annotations

from rich.color import Color
from rich.style import Style

from attnviz.draw.palette import RGB, STEPS, colour_table, contrasting
from attnviz.measures.registry import label_named

__all__ = ["label_colour", "label_palette", "label_step", "label_style", "shade"]

_DARK = (24, 28, 36)
_FAINTEST = 0.3


def label_colour(name: str) -> RGB:
    """The full colour of a label."""
    red, green, blue = bytes.fromhex(label_named(name).colour)
    return red, green, blue


def label_palette(name: str) -> str:
    """A label's colours as a palette, from strength 0 (dark, but seen) to 1 (full)."""
    full = label_colour(name)
    faint = [
        round(dark + (bright - dark) * _FAINTEST) for dark, bright in zip(_DARK, full, strict=True)
    ]
    return f"{bytes(faint).hex()} {bytes(full).hex()}"


def label_step(strength: float) -> int:
    """The step of a label's palette for a strength from 0 to 1."""
    return round(min(max(strength, 0.0), 1.0) * (STEPS - 1))


def shade(name: str, strength: float) -> RGB:
    """A label's colour at a strength."""
    return colour_table(label_palette(name))[label_step(strength)]


def label_style(name: str, strength: float) -> Style:
    """A cell of a label: its shade, and black or white ink."""
    ground = shade(name, strength)
    return Style(color=Color.from_rgb(*contrasting(ground)), bgcolor=Color.from_rgb(*ground))
