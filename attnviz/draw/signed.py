"""Values of either sign as a grid of heads and a ranking: blue below zero, orange above.

Maps of such values have a ``limit``; ``signed_scale`` is the colour bar of grids and maps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from attnviz.draw import document as doc
from attnviz.draw.maps import signed_tint
from attnviz.draw.numbers import NumberScale
from attnviz.draw.palette import DIVERGING


def signed_grid(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[int, int], float],
    scale: NumberScale,
    unclear: Collection[tuple[int, int]] = (),
    why: str = "",
) -> doc.HeadGrid:
    """Return a grid of signed values, each in its colour and with two digits or more.

    rows, columns: their names. values: by (row, column).
    scale: the number format; the title or a ``signed_scale`` should state its power-of-ten factor.
    unclear: cells that are drawn faint. why: the reason, for their tips.
    """
    limit = scale.limit
    cells = {}
    for position, value in values.items():
        grey = position in unclear
        root = 0.0 if grey else math.copysign(math.sqrt(abs(value) / (limit or 1.0)), value)
        tip = f"{rows[position[0]]}{columns[position[1]]}: {value:.6g}{f', {why}' * grey}"
        tint = None if grey else signed_tint(value, limit)
        text = scale.fitted(value, scale.room) or ""
        cells[position] = doc.Cell(root, tint, text, tip=tip, values={"value": value})
    return doc.HeadGrid(rows, columns, cells)


def signed_scale(scale: NumberScale, unit: str, change: str = "Δ") -> doc.Scale:
    """Return the colour bar of signed values; with both signs its range is symmetric.

    unit: of the values, such as ``nats``. change: the symbol of the measured change.
    """
    first = -1.0 if scale.signed else 0.0
    ticks = [
        ((root - first) / (1 - first), scale.text(root * abs(root) * scale.limit) if root else "0")
        for root in (-1.0, -0.5, 0.0, 0.5, 1.0)
        if root >= first
    ]
    start = 0 if scale.signed else 128
    after = f"symmetric scale; colour ∝ √|{change}|" if scale.signed else "colour ∝ √value"
    return doc.Scale(ticks, f"{unit}{scale.times}", after, start, palette=DIVERGING)


Place = tuple[int, int]
"""A layer, and a head or another part of that layer, both from 0."""


def layer_grid(
    values: Mapping[Place, float],
    scale: NumberScale,
    title: str,
    column: Callable[[int], str],
    *,
    base: int = 0,
    unclear: Collection[Place] = (),
    blank: Iterable[Place] = (),
    bar: doc.Scale | None = None,
) -> doc.HeadGrid:
    """Return a grid of values by (layer, column), with a row for each layer that has any.

    scale: the number format of the values. column: returns the name of a column.
    base: the number of the first layer as shown, 0 or 1.
    unclear: cells whose 95% CI includes zero, drawn faint. blank: cells without a value.
    bar: the colour bar; None leaves it out, and the title then states the power-of-ten factor.
    """
    cells = {*values, *blank}
    layers, columns = (sorted({cell[axis] for cell in cells}) for axis in (0, 1))
    at = {cell: (layers.index(cell[0]), columns.index(cell[1])) for cell in values}
    grid = signed_grid(
        [f"L{layer + base}" for layer in layers],
        [column(number) for number in columns],
        {at[cell]: value for cell, value in values.items()},
        scale,
        {at[cell] for cell in unclear},
        "95% CI includes 0",
    )
    if bar is not None:
        grey = [("grey: 95% CI includes 0", False)] * bool(unclear)
        return grid._replace(title=[(title, True), *grey], scale=bar)
    return grid._replace(title=[(title + scale.times, True), *colour_words(scale, unclear)])


def colour_words(
    scale: NumberScale, unclear: Collection[Place], short: bool = False
) -> list[tuple[str, bool]]:
    """Return the end of the title of a grid without a colour bar: what its colours mean.

    unclear: the cells whose 95% CI includes zero. short: leaves out the colour below zero.
    """
    words = [f"orange +{', blue -' * (not short)}" if scale.signed else "shade: size"]
    words += ["grey: CI includes 0"] * bool(unclear)
    return [(word, False) for word in words]


def one_line(grid: doc.HeadGrid, columns: int) -> doc.HeadGrid:
    """Return the grid with a title of one line; if it is too long, what grey means is left out.

    columns: the width in characters. A table below the grid shows the intervals behind the grey.
    """
    wide = sum(len(words) + 3 for words, _ in grid.title) - 3
    return grid if wide <= columns else grid._replace(title=grid.title[:2])


def ranked_table(
    title: str,
    names: Sequence[str],
    values: Sequence[float],
    scale: NumberScale,
    columns: Iterable[tuple[str | doc.Column, Sequence[str]]],
    grey: Sequence[bool] = (),
) -> doc.Table:
    """Return a table with a row for each name: a bar for its value, and further columns.

    names, values: of the rows. scale: the number format of the values. columns: (title, cells of
        all rows); a title that is a string makes a column of numbers. Columns with only empty cells
        are left out. grey: True for rows that chance explains, drawn faint below the others.
    """
    filled = [(column, cells) for column, cells in columns if any(cells)]
    faint = grey or [False] * len(names)
    lines = zip(names, *(cells for _, cells in filled), strict=True)
    rows = list[doc.Row]()
    for line, value, unclear in zip(lines, values, faint, strict=True):
        bar = 0.0 if math.isnan(value) else value, scale.limit
        rows.append(doc.Row(line, bar, tone="faint" if unclear else "plain"))
    rows.sort(key=lambda row: row.tone == "faint")
    titles = [doc.Column(name) if isinstance(name, str) else name for name, _ in filled]
    heading: doc.Words = [(title, True)] if title else ()
    return doc.Table([doc.Column("", right=False), *titles], rows, heading, ranked=True)


def explained(table: doc.Table, column: str, words: str) -> doc.Table:
    """Return the table with a line above it that explains a column, if it has that column."""
    if column not in [known.title for known in table.columns]:
        return table
    return table._replace(title=[*table.title, (f"{column}: {words}", False)])


def interval_text(ends: Sequence[float] | None, scale: NumberScale) -> str:
    """Return an interval as a string such as ``[+0.296, +0.566]``; empty if ``ends`` is None."""
    return f"[{', '.join(map(scale.text, ends))}]" if ends else ""
