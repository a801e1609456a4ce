"""The weights of one query on the patches of its picture, and how far heads look, as parts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.provenance import share
from attnviz.draw.theme import Words
from attnviz.measures.pictures import contour, largest_part
from attnviz.records import Floats
from attnviz.token_layout import TokenLayout

SCALE = doc.WEIGHTS._replace(after="of its largest, or 3 × its mean")
"""The scale of maps on pictures, each of which has its own full colour."""

_LEAST_FULL = 3.0
"""The weight with the full colour, in means of the map, at least: a map that is nearly even would
hide its picture otherwise."""

_ONE_PART = 0.3  # least share of a map's weight in a part that is named by its rows
_LETTERS = {"local": "l", "sink: CLS": "C", "sink: registers": "R", "sink: one patch": "p"}


def on_picture(
    layout: TokenLayout,
    weights: Floats,
    name: str,
    *,
    query: int | None = None,
    grid: int = 0,
    below: Words | None = None,
) -> doc.Picture:
    """Return the picture of a grid with weights (token,) on it, and a line around 60% of them.

    name: of the map, such as a head's. query: the index of the token that looks, if it is one.
    below: a remark; by default which share of the patches lies inside the line.
    """
    values = layout.mapped(weights, grid)
    inside, finite = contour(values), values[np.isfinite(values)]
    kept = int((finite >= inside).sum()) if math.isfinite(inside) else 0
    area = f"{kept / len(finite):.0%}" if kept > 1 else "one patch"
    mark = None
    if query is not None and layout.grid[query] == grid:
        mark = (int(layout.row[query]), int(layout.column[query]))
    most = np.nan_to_num(values, nan=-1.0)
    row, column = np.unravel_index(most.argmax(), values.shape)
    asking = "" if query is None else f", where {layout.names()[query]} looks"
    return doc.Picture(
        layout.pictures[layout.grids[grid].picture],
        values,
        full=max(float(most.max()), _LEAST_FULL * float(finite.sum()) / max(len(finite), 1)),
        box=layout.grids[grid].box,
        contour=inside,
        mark=mark,
        words=[(name, True)],
        below=[(f"60% on {area}", False)] if below is None else below,
        alternative=(
            f"{name}{asking}: most on the patch in row {row}, column {column}, "
            f"{share(float(most.max()))}; 60% of the weight on {area}."
        ),
    )


def largest_region(weights: Floats) -> tuple[str, float]:
    """Return the rows and columns of the largest part of a map, and its share of all weight.

    weights: (row, column). The parts are of the patches that make up 60% of the weight.
    """
    inside = np.where(weights >= contour(weights), np.nan_to_num(weights), 0.0)
    part, spans = largest_part(inside), []
    for name, axis in (("row", 1), ("column", 0)):
        own = np.flatnonzero(part.any(axis)).tolist()
        spans.append(f"{name}s {own[0]}–{own[-1]}" if own[1:] else f"{name} {own[0]}")
    held = float(inside[part].sum() / np.nansum(weights))
    return ", ".join(spans) if held >= _ONE_PART else "several parts", held


def distance_grid(
    heads: Mapping[tuple[int, int], tuple[float, str]], uniform: float, base: int
) -> doc.HeadGrid:
    """Return the distance in patches of every head, with a letter for what it does.

    heads: the distance and the label by (layer, head). uniform: the distance of uniform attention.
    base: the number of the first layer and head in their names.
    """
    cells = {}
    for (layer, head), (distance, label) in heads.items():
        near = max(0.0, 1.0 - distance / uniform)
        cells[layer, head] = doc.Cell(
            near,
            doc.Tint(round(255 * near)),
            text=f"{distance:.1f}",
            letter=_LETTERS.get(label, ""),
            tip=f"L{layer + base}H{head + base}: {distance:.2f} patches {label}".strip(),
            values={"distance": distance},
        )
    given = {label for _, label in heads.values()}
    key = [doc.Key(None, words, letter) for words, letter in _LETTERS.items() if words in given]
    title = [
        ("How far each head looks", True),
        (f"patches, on average; uniform attention {uniform:.1f}", False),
    ]
    return doc.head_grid(cells, base, title=title, key=key)
