"""A grid of numbers of either sign: diverging colours, what is in doubt grey, a colour bar."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.number_scale import NumberScale
from attnviz.draw.palette import DIVERGING
from attnviz.draw.scale import diverging_steps

_Place = tuple[int, int]


def signed_grid(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[_Place, float],
    scale: NumberScale,
    grey: Collection[_Place] = (),
) -> doc.HeadGrid:
    """A cell for each value by its (row, column); colours are full at the scale's limit.

    grey: what has no colour because its 95 % interval includes zero.
    """
    limit = scale.limit
    least = 4 if scale.power or limit >= 0.1 else 5  # two digits of the largest
    room = next((room for room in range(least, 7) if scale.fitted(limit, room)), 6)
    cells = {}
    for (row, column), value in values.items():
        doubtful = (row, column) in grey
        root = 0.0 if doubtful else math.copysign(math.sqrt(abs(value) / (limit or 1.0)), value)
        tint = doc.Tint(int(diverging_steps(np.array(value), limit)), DIVERGING)
        doubt = ", 95 % interval includes 0" * doubtful
        tip = f"{rows[row]}{columns[column]}: {value:.6g}{doubt}"
        text = scale.fitted(value, room) or ""
        cells[row, column] = doc.Cell(root, None if doubtful else tint, text, tip=tip)
    return doc.HeadGrid(list(rows), list(columns), cells)


def signed_bar(scale: NumberScale, unit: str, sizes: str = "|Δ|") -> doc.Scale:
    """The colour bar: the same range both ways where there are two signs.

    sizes: what the colour is proportional to the root of.
    """
    first = -1.0 if scale.signed else 0.0
    ticks = [
        (
            (root - first) / (1 - first),
            scale.text(math.copysign(root**2, root) * scale.limit) if root else "0",
        )
        for root in (-1.0, -0.5, 0.0, 0.5, 1.0)
        if root >= first
    ]
    start = 0 if scale.signed else 128
    after = f"symmetric scale; colour ∝ √{sizes}" if scale.signed else "colour ∝ √value"
    return doc.Scale(ticks, f"{unit}{scale.times}", after, start, palette=DIVERGING)
