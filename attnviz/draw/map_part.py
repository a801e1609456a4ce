"""Draw the part of one head's map around a cursor, as large as fits, and locate its cells.

Cells have the colours and glyphs of every other map; those next to the cursor stand out a little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment
from rich.style import Style

from attnviz.draw.axes import Axes
from attnviz.draw.blocks import BOLD, DIM, Line, text_line
from attnviz.draw.heatmap import row_label
from attnviz.draw.labels import fit, width
from attnviz.draw.maps import Fit, Place, cell_lines, cell_steps
from attnviz.draw.provenance import share
from attnviz.draw.regions import region_marks
from attnviz.draw.scale import coarse_steps
from attnviz.draw.theme import Theme

_LONGEST_NAME = 12
_WRITTEN = 4
"""The least columns of a cell that shows its weight, such as ``.07``."""


@dataclass(frozen=True)
class MapPart:
    """A map with a cursor, drawn as far as it fits.

    weights: (query, key); NaN where there is none. axes: the labels of both axes.
    cursor: the query and key whose cell, row and column are highlighted.
    corner: the first query and key to draw; it moves if the cursor would not be visible.
    limit: the absolute value with the full colour, for values of either sign; 0 for weights.
    """

    weights: NDArray[np.floating]
    axes: Axes
    cursor: Place
    corner: Place
    limit: float = 0.0

    def ends_on_diagonal(self, plan: Fit, lines: int, columns: int) -> bool:
        """Return True if a whole causal map fits, with each token at the end of its row.

        plan: the layout of the cells. lines, columns: the available lines and width in characters.
        """
        names = self.axes.queries
        ends = (plan.wide * (place + 1) + 1 + width(name) for place, name in enumerate(names))
        fits = plan.tall * len(names) <= lines and max(ends, default=0) <= columns
        return self.axes.diagonal and plan.wide > 1 and fits

    def gutter(self, columns: int) -> int:
        """Return the width in characters of the token numbers and tokens at the left of the map.

        columns: the available width of the whole in characters.
        """
        names = min(max(map(width, self.axes.queries), default=0), _LONGEST_NAME)
        return min(names + self.axes.digits + 2, columns // 2)


class MapPicture(NamedTuple):
    """The drawn lines of a part of a map, and the positions of its cells, for mouse clicks.

    left, top: the character and the line of the first cell. corner: its query and key.
    plan: the layout of the cells. shape: the numbers of queries and keys of the map.
    whole: whether all of the map is drawn.
    """

    lines: list[Line]
    left: int
    top: int
    corner: Place
    plan: Fit
    shape: tuple[int, ...]
    whole: bool

    def cell_at(self, column: int, line: int) -> Place | None:
        """Return the query and key of the cell at a position of the screen; None outside cells.

        column, line: the position in characters and lines.
        """
        if column < self.left or line < self.top:
            return None
        row = (line - self.top) // self.plan.tall * self.plan.rows
        query = self.corner.query + row * self.plan.factors[0]
        key = self.corner.key + (column - self.left) // self.plan.wide * self.plan.factors[1]
        inside = query < self.shape[0] and key < self.shape[1]
        return Place(query, key) if inside else None


def map_part(part: MapPart, plan: Fit, theme: Theme, lines: int, columns: int) -> MapPicture:
    """Return as much of a map around its cursor as fits.

    plan: the layout of the cells. lines, columns: the available lines and width in characters.
    The tokens stand on the diagonal if the whole map fits that way; else they stand at the left,
    and the key of the cursor above its cells.
    """
    axes = part.axes
    gutter = 0 if part.ends_on_diagonal(plan, lines, columns) else part.gutter(columns)
    top = min(gutter, 1)
    steps = cell_steps(part.weights, plan.factors, axes.causal, part.limit)
    seen = (lines - top) // plan.tall * plan.rows, (columns - gutter) // plan.wide
    lit = [at // by for at, by in zip(part.cursor, plan.factors, strict=True)]
    start = [at // by for at, by in zip(part.corner, plan.factors, strict=True)]
    first = Place(*map(_first_seen, start, lit, seen, steps.shape))
    corner = Place(first.query * plan.factors[0], first.key * plan.factors[1])
    here = Place(lit[0] - first.query, lit[1] - first.key)
    shown = steps[first.query :, first.key :][: max(seen[0], 1), : max(seen[1], 1)]

    def text(row: int, column: int) -> str:
        if plan.wide < _WRITTEN and row != here.query and column != here.key:
            return ""
        weight = float(part.weights[corner.query + row, corner.key + column])
        return _short_value(weight, plan.wide, part.limit)

    drawn: list[Line] = []
    if gutter:
        drawn.append(_name_above(part, gutter + here.key * plan.wide, columns, theme))
    written = plan.factors == (1, 1) and plan.wide > 1
    coarse = coarse_steps(theme.palette)[shown] if theme.coarse else shown
    for line, cells in enumerate(cell_lines(coarse, plan, theme, text if written else None, here)):
        query = corner.query + line // plan.tall * plan.rows * plan.factors[0]
        named = line % plan.tall == (plan.tall - 1) // 2
        if gutter:
            chosen = query <= part.cursor.query < query + plan.rows * plan.factors[0]
            at = part.cursor.query if chosen else query
            name = row_label(axes, at, gutter - axes.digits - 2, True, theme) if named else ""
            style = theme.accent() if chosen else _ink(part, at, theme)
            drawn.append([Segment(fit(name, gutter), style if named else None), *cells])
        else:  # the token ends its row, on the diagonal
            style = BOLD if query == part.cursor.key else _ink(part, query, theme)
            style = theme.accent() if query == part.cursor.query else style
            end = text_line(" ", (axes.queries[query], style)) if named else []
            drawn.append([*cells[: query + 1], *end])
    return MapPicture(
        lines=drawn,
        left=gutter,
        top=top,
        corner=corner,
        plan=plan,
        shape=part.weights.shape,
        whole=shown.shape == steps.shape,
    )


def _first_seen(corner: int, place: int, seen: int, total: int) -> int:
    """Return the first row or column to draw, of which ``seen`` of ``total`` fit.

    The ``corner`` drawn before stays if the cursor's place is visible, or else moves by a quarter
    of what is seen, not with every move of the cursor.
    """
    seen = max(seen, 1)
    if not corner <= place < corner + seen:
        corner = place - seen // 4 if place < corner else place - seen + 1 + seen // 4
    return max(min(corner, total - seen), 0)


def _short_value(value: float, wide: int, limit: float) -> str:
    """Return a weight as ``.53``, if ``wide`` is under four as ``.5``; empty if it rounds to 0."""
    size = abs(value)
    if wide < _WRITTEN:
        return "" if size < 0.05 else "1." if size >= 0.95 else f"{size:.1f}"[1:]
    if size < 0.005:
        return ""
    sign = "-" if value < 0 else "+"
    return sign + share(size) if limit and wide > _WRITTEN else share(size)


def _name_above(part: MapPart, column: int, columns: int, theme: Theme) -> Line:
    """Return the line above the map with the number and the token of the cursor's key."""
    sign = "v" if theme.ascii else "▾"
    name = f"{part.axes.column(part.cursor.key)} {part.axes.keys[part.cursor.key]}"
    if column + width(f"{sign} {name}") <= columns:
        return text_line(" " * column, (f"{sign} {name}", theme.accent()))
    before = fit(name, min(width(name), column - 1))
    return text_line(" " * (column - 1 - width(before)), (f"{before} {sign}", theme.accent()))


def _ink(part: MapPart, query: int, theme: Theme) -> Style:
    """Return the style of a query's label: the colour of its region, if the text has regions."""
    regions = part.axes.query_regions
    tint = region_marks(regions)[regions[query]].tint if regions else None
    return (theme.ink(tint) if tint is not None else None) or DIM
