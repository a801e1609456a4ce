"""A matrix of numbers on Matplotlib's axes, for figures that a person composes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnviz.draw.palette import full_weight
from attnviz.errors import UnsupportedError
from attnviz.records import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes

_NAMES = {"viridis": "viridis", "magma": "magma", "blues": "Blues", "grey": "Greys"}


def draw_matrix(
    values: Floats,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    palette: str,
    limit: float,
    signed: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw numbers (row, column) as coloured cells with their names, and return the axes.

    palette: as of reports. limit: the number with the last colour. signed: True draws from
        ``-limit`` in two colours. ax: the axes to draw on; a new figure's by default.
    Raises UnsupportedError without Matplotlib.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise UnsupportedError("plot() draws with matplotlib: pip install matplotlib") from error
    if ax is None:
        _, ax = pyplot.subplots()
    colours = "RdBu_r" if signed else _NAMES[palette.partition("@")[0]]
    limit *= 1.0 if signed else full_weight(palette)
    ax.imshow(values, cmap=colours, vmin=-limit if signed else 0.0, vmax=limit)
    ax.set_xticks(range(len(columns)), columns, rotation="vertical")
    ax.set_yticks(range(len(rows)), rows)
    ax.set_title(title)
    return ax
