"""What the colours or glyphs of the maps mean, in one line."""

from __future__ import annotations

import numpy as np
from rich.segment import Segment

from attnviz.render.blocks import DIM, Block, text_line
from attnviz.render.palette import STEPS
from attnviz.render.scale import weight_steps
from attnviz.render.theme import Theme

__all__ = ["legend"]

_WEIGHTS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)


def _number(weight: float) -> str:
    return f"{weight:.2f}".rstrip("0").rstrip(".").removeprefix("0") or "0"


def legend(theme: Theme) -> Block:
    """Sample cells and the weights they stand for; the scale is the square root of the weight."""
    line = text_line(("weight", DIM))
    if theme.colour:
        for weight, step in zip(_WEIGHTS, weight_steps(np.array(_WEIGHTS)), strict=True):
            line += text_line((f"  {_number(weight)} ", DIM), theme.cells(int(step), 2).text)
            line[-1] = theme.cells(int(step), 2)
        line += text_line(("   colour = square root of the weight", DIM))
    else:
        starts = [
            (step / (STEPS - 1)) ** 2
            for glyph in theme.ramp
            for step in range(STEPS)
            if theme.glyph(step) == glyph and (step == 0 or theme.glyph(step - 1) != glyph)
        ]
        for glyph, start in zip(theme.ramp, starts, strict=True):
            line += text_line(f"  {glyph * 2} ", (f"from {_number(start)}", DIM))
    return Block((line,), Segment.get_line_length(line))
