"""What the colours or glyphs of values of either sign mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from rich.segment import Segment

from attnviz.ablate.numbers import NumberScale
from attnviz.draw.blocks import DIM, Block, Line, flow, text_line
from attnviz.draw.diverging import diverging_steps, sign_glyph
from attnviz.draw.labels import at_blanks
from attnviz.draw.palette import DIVERGING
from attnviz.draw.theme import Theme

__all__ = ["sign_legend"]

_SAMPLES = (-1.0, -0.25, 0.0, 0.25, 1.0)


def sign_legend(
    scale: NumberScale, theme: Theme, room: int, unit: str, written: bool = False
) -> Block:
    """Sample cells with their values; the range is the same both ways.

    written: the cells hold their numbers, so that glyphs need to show the size alone.
    """
    theme = replace(theme, palette=DIVERGING)
    sizes = written and not theme.colour
    power = f" x 1e{scale.power}" if scale.power else ""
    samples = _words(f"{unit}{power}", room)
    for factor in _SAMPLES:
        if factor >= 0 or (scale.signed and not sizes):
            samples.append(_sample(factor * scale.limit, scale, theme, sizes))
    root = "sqrt(size)" if theme.ascii else "√size"
    mark = "colour" if theme.colour else "glyph"
    samples += _words(f"{mark}: {root}", room)
    if scale.signed:
        samples += _words("same range both ways", room)
    blocks = [Block((sample,), Segment.get_line_length(sample)) for sample in samples]
    return flow(blocks, room, gap=2, between=0)


def _words(text: str, room: int) -> list[Line]:
    return [text_line((line, DIM)) for line in at_blanks(text, room)]


def _sample(value: float, scale: NumberScale, theme: Theme, sizes: bool) -> Line:
    """A value and what it looks like."""
    number = "0" if value == 0 else scale.text(value).lstrip("+" if sizes else "")
    if theme.colour:
        step = int(diverging_steps(np.array(value), scale.limit))
        return [Segment(f"{number} ", DIM), theme.cells(step, 2)]
    return text_line(f"{sign_glyph(value, scale.limit, theme.ascii) * 2} ", (number, DIM))
