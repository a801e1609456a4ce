"""Values of either sign as a grid of heads: blue below zero, orange above, on one scale.

Maps of such values have a ``limit``; the colour bar of both is ``signed_scale``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale
from attnviz.draw.palette import DIVERGING
from attnviz.draw.scale import signed_tint


def signed_grid(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[int, int], float],
    scale: NumberScale,
    unclear: Collection[tuple[int, int]] = (),
    why: str = "",
) -> doc.HeadGrid:
    """A cell for each value by (row, column), in its colour and written with two digits or more.

    scale: of the values; what its power is belongs into the title or a ``signed_scale``.
    unclear: cells that stay faint; why: what their tips say.
    """
    limit = scale.limit
    cells = {}
    for place, value in values.items():
        grey = place in unclear
        root = 0.0 if grey else math.copysign(math.sqrt(abs(value) / (limit or 1.0)), value)
        tip = f"{rows[place[0]]}{columns[place[1]]}: {value:.6g}{f', {why}' * grey}"
        tint = None if grey else signed_tint(value, limit)
        cells[place] = doc.Cell(root, tint, scale.fitted(value, scale.room) or "", tip=tip)
    return doc.HeadGrid(rows, columns, cells)


def signed_scale(scale: NumberScale, unit: str, change: str = "Δ") -> doc.Scale:
    """The colour bar: the same range both ways where there are two signs.

    unit: of the values, such as ``nats``. change: what the colour is proportional to the root of.
    """
    first = -1.0 if scale.signed else 0.0
    ticks = [
        (
            (root - first) / (1 - first),
            scale.text(root * abs(root) * scale.limit) if root else "0",
        )
        for root in (-1.0, -0.5, 0.0, 0.5, 1.0)
        if root >= first
    ]
    start = 0 if scale.signed else 128
    after = f"symmetric scale; colour ∝ √|{change}|" if scale.signed else "colour ∝ √value"
    return doc.Scale(ticks, f"{unit}{scale.times}", after, start, palette=DIVERGING)
