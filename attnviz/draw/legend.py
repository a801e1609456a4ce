"""What the colours or glyphs of the maps mean."""

from __future__ import annotations

import numpy as np
from rich.segment import Segment

from attnviz.draw.blocks import DIM, Block, Line, flow, text_line
from attnviz.draw.palette import STEPS
from attnviz.draw.scale import weight_steps
from attnviz.draw.theme import Theme

__all__ = ["legend"]

_WEIGHTS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)


def _number(weight: float) -> str:
    return f"{weight:.2f}".rstrip("0").rstrip(".").removeprefix("0") or "0"


def legend(theme: Theme, room: int, values: bool = False) -> Block:
    """Sample cells and the weights they stand for; the scale is the square root of the weight.

    values: say what stands in a cell for a weight that rounds to zero.
    """
    samples: list[Line] = [text_line(("weight", DIM))]
    if theme.colour:
        for weight, step in zip(_WEIGHTS, weight_steps(np.array(_WEIGHTS)), strict=True):
            samples.append([Segment(f"{_number(weight)} ", DIM), theme.cells(int(step), 2)])
        root = "sqrt(weight)" if theme.ascii else "√weight"
        samples.append(text_line((f"colour: {root}", DIM)))
    else:
        starts = [
            (max(step - 0.5, 0) / (STEPS - 1)) ** 2  # a weight takes the nearest step
            for glyph in theme.ramp
            for step in range(STEPS)
            if theme.glyph(step) == glyph and (step == 0 or theme.glyph(step - 1) != glyph)
        ]
        for glyph, start in zip(theme.ramp, starts, strict=True):
            samples.append(text_line(f"{glyph * 2} ", (f"from {_number(start)}", DIM)))
    if values:
        samples.append(text_line(f"{theme.trace} ", ("below .005", DIM)))
    blocks = [Block((sample,), Segment.get_line_length(sample)) for sample in samples]
    return flow(blocks, room, gap=2, between=0)
