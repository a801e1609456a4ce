"""The map of one head in a pane: all of it or a part, the cursor's row and column lit.

Cells have the same steps, scale and glyphs as every other map. If a causal map fits whole, its
tokens stand on the diagonal; else they stand at the left, and the cursor's key above its column.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.color import Color, ColorSystem
from rich.segment import Segment
from rich.style import Style

from attnviz.draw.axes import Axes
from attnviz.draw.blocks import BOLD, DIM, Line, text_line
from attnviz.draw.labels import fit, width
from attnviz.draw.maps import cell_steps
from attnviz.draw.palette import DIVERGING, STEPS, colour_table, contrasting
from attnviz.draw.theme import Theme

_LONGEST_NAME = 12
_VALUES = 4
"""The columns of a cell from which on it shows its weight, such as ``.07``."""

_LEVELS = 15
"""The levels of a scale in 256 colours: odd, so that a signed scale has a level for zero."""

_LIGHT = 0.25

_ACCENTS = {"magma": "4fd0ff", "blues": "ffb000", DIVERGING: "7dff7d"}
_ACCENT = "ff5c5c"


def accent(theme: Theme, ground: bool = False) -> Style:
    """Return the style of the cursor: a colour that the palette lacks, or reversed."""
    if not theme.colour:
        return Style(reverse=True, bold=True)
    colour = bytes.fromhex(_ACCENTS.get(theme.palette, _ACCENT))
    shade = Color.from_rgb(*colour)
    if not ground:
        return Style(color=shade, bold=True)
    return Style(color=Color.from_rgb(0, 0, 0), bgcolor=shade, bold=True)


class Place(NamedTuple):
    """A place of a map: a query and a key."""

    query: int
    key: int


class Size(NamedTuple):
    """The size of cells.

    zoom: how many tokens share a cell. near: with one token per cell, 0 for the smallest cells,
    else the lines of a cell, and half its columns: from 2 on cells show their weights.
    """

    zoom: int
    near: int = 0


NEAREST = 4


class Form(NamedTuple):
    """The shape of cells: columns and lines of one, and how many rows of cells share a line."""

    wide: int
    tall: int
    rows: int


@dataclass(frozen=True)
class Shown:
    """A map that is to be drawn.

    weights: (query, key), NaN if there is none. limit: of signed values; 0 for weights.
    corner: the first query and key to show; it moves if the cursor would not be seen.
    size: None for the largest cells with which the whole map is seen.
    joined: whether there are only 256 colours, so that the scale has fewer steps.
    """

    weights: NDArray[np.floating]
    axes: Axes
    cursor: Place
    corner: Place
    size: Size | None = None
    limit: float = 0.0
    joined: bool = False


class MapPicture(NamedTuple):
    """The lines of a map, and the places of its cells.

    left, top: of the first cell. corner: its query and key. size, form: of the cells.
    whole: whether all of the map is seen.
    """

    lines: Sequence[Line]
    left: int
    top: int
    corner: Place
    size: Size
    form: Form
    whole: bool

    def cell_at(self, column: int, line: int, axes: Axes) -> Place | None:
        """Return the query and key at a place of the pane, or None if no cell is there."""
        if column < self.left or line < self.top:
            return None
        row = (line - self.top) * self.form.rows // self.form.tall
        query = self.corner.query + row * self.size.zoom
        key = self.corner.key + (column - self.left) // self.form.wide * self.size.zoom
        if query >= len(axes.queries) or key >= len(axes.keys):
            return None
        return Place(query, key)


def form_of(size: Size, theme: Theme) -> Form:
    """Return how cells of a size are drawn."""
    if size.near:
        return Form(2 * size.near, size.near, 1)
    return Form(1, 1, 2 if theme.half_blocks else 1)


def largest(axes: Axes, lines: int, columns: int, theme: Theme) -> Size:
    """Return the largest cells with which the whole map fits in so many lines and columns."""
    queries, keys = len(axes.queries), len(axes.keys)
    for near in range(NEAREST, 0, -1):
        if near * queries <= lines and 2 * near * keys <= columns:
            return Size(1, near)
    down = max(lines, 1) * form_of(Size(1), theme).rows
    return Size(max(math.ceil(queries / down), math.ceil(keys / max(columns, 1))))


def draw_map(shown: Shown, theme: Theme, lines: int, columns: int) -> MapPicture:
    """Return the map in at most so many lines and columns."""
    axes, theme = shown.axes, theme.signed if shown.limit else theme
    fitting = (near for near in range(NEAREST, 0, -1) if _diagonal_fits(axes, near, lines, columns))
    near = next(fitting, 0) if shown.size is None else shown.size.near
    if near and _diagonal_fits(axes, near, lines, columns):
        return _picture(shown, theme, Size(1, near), lines, columns, 0)
    gutter = min(max(map(width, axes.queries), default=0), _LONGEST_NAME) + axes.digits + 2
    gutter = min(gutter, columns // 2)
    size = shown.size or largest(axes, lines - 1, columns - gutter, theme)
    return _picture(shown, theme, size, lines, columns, gutter)


def _diagonal_fits(axes: Axes, near: int, lines: int, columns: int) -> bool:
    """Return whether a whole causal map fits with the names at the ends of its rows."""
    ends = (2 * near * (place + 1) + 1 + width(name) for place, name in enumerate(axes.queries))
    return axes.diagonal and near * len(axes.queries) <= lines and max(ends, default=0) <= columns


# One picture ---------------------------------------------------------------------------------


def _picture(
    shown: Shown, theme: Theme, size: Size, lines: int, columns: int, gutter: int
) -> MapPicture:
    axes, cursor, form = shown.axes, shown.cursor, form_of(size, theme)
    steps = _steps(shown, (size.zoom, size.zoom), theme)
    top = 1 if gutter else 0
    room = max((lines - top) // form.tall * form.rows, 1), max((columns - gutter) // form.wide, 1)
    places = [place // size.zoom for place in cursor]
    first = [
        _first(corner // size.zoom, *each)
        for corner, *each in zip(shown.corner, places, room, steps.shape, strict=True)
    ]
    part = steps[first[0] : first[0] + room[0], first[1] : first[1] + room[1]]
    corner = Place(first[0] * size.zoom, first[1] * size.zoom)
    lit = Place(places[0] - first[0], places[1] - first[1])
    drawn: list[Line] = []
    if gutter:
        drawn.append(_tag(axes, cursor, gutter + lit.key * form.wide, columns, theme))
    for line, (row, cells) in enumerate(
        _cells(part, form, lit=lit, shown=shown, size=size, corner=corner, theme=theme)
    ):
        start = corner.query + row * size.zoom
        span = range(start, min(start + form.rows * size.zoom, len(axes.queries)))
        named = line % form.tall == (form.tall - 1) // 2
        if gutter:
            name = _name(axes, span, cursor, gutter, theme) if named else Segment(" " * gutter)
            drawn.append([name, *cells])
        else:
            drawn.append([*cells[: start + 1], *_on_diagonal(axes, start, cursor, theme) * named])
    return MapPicture(
        lines=drawn,
        left=gutter,
        top=top,
        corner=corner,
        size=size,
        form=form,
        whole=part.shape == steps.shape,
    )


def _first(corner: int, place: int, window: int, total: int) -> int:
    """Return the first cell to show: the corner, or another if the cursor would not be seen.

    The map then moves by a quarter of what is seen, not with every step of the cursor.
    """
    if not corner <= place < corner + window:
        corner = place - window // 4 if place < corner else place - window + 1 + window // 4
    return max(min(corner, total - window), 0)


@lru_cache(maxsize=8)
def _merged(palette: str) -> NDArray[np.intp]:
    """Return for each step the one that replaces it in 256 colours: few, all of different colours.

    Equal neighbours are then sent together, which saves most of what a map costs over ssh.
    """
    table = colour_table(palette)
    first: dict[int | None, int] = {}
    kept = []
    for step in range(STEPS):
        level = round(round(step * (_LEVELS - 1) / (STEPS - 1)) * (STEPS - 1) / (_LEVELS - 1))
        number = Color.from_rgb(*table[level]).downgrade(ColorSystem.EIGHT_BIT).number
        kept.append(first.setdefault(number, level))
    return np.array([*kept, -1])


def _steps(shown: Shown, factors: tuple[int, int], theme: Theme) -> NDArray[np.intp]:
    steps = cell_steps(shown.weights, factors, shown.axes.causal, shown.limit)
    return _merged(theme.palette)[steps] if shown.joined else steps


def _cells(
    steps: NDArray[np.intp],
    form: Form,
    lit: Place,
    shown: Shown,
    size: Size,
    corner: Place,
    theme: Theme,
) -> Iterator[tuple[int, Line]]:
    """Yield the cells of a part line by line, each with the row of its first cell."""
    if form.rows == 1:
        for row, each in enumerate(steps.tolist()):
            bare = _wide(each, row, form=form, lit=lit, shown=shown, corner=None, theme=theme)
            values = corner if size.zoom == 1 else None
            middle = (form.tall - 1) // 2
            for line in range(form.tall):
                valued = _wide(
                    each, row, form=form, lit=lit, shown=shown, corner=values, theme=theme
                )
                yield row, valued if line == middle else bare
        return
    if len(steps) % 2:
        steps = np.vstack([steps, np.full(steps.shape[1], -1)])
    for row in range(0, len(steps), 2):
        upper, lower = steps[row].tolist(), steps[row + 1].tolist()
        place = lit.key if lit.query in (row, row + 1) else len(upper)
        drawn = _halves(upper[:place], lower[:place], theme)
        if place < len(upper):
            other = lower if lit.query == row else upper
            drawn.append(_half(other[place], lit.query == row, theme))
            drawn += _halves(upper[place + 1 :], lower[place + 1 :], theme)
        yield row, drawn


def _halves(upper: list[int], lower: list[int], theme: Theme) -> Line:
    """Draw two rows in one line; equal cells need only a background, which takes fewer bytes."""
    line: Line = []
    for alike, run in groupby(zip(upper, lower, strict=True), key=lambda pair: pair[0] == pair[1]):
        above, below = zip(*run, strict=True)
        if not alike:
            line += theme.stacked(above, below)
            continue
        for step, same in groupby(above):
            line.append(theme.cells(step, len(list(same))))
    return line


def _half(other: int, above: bool, theme: Theme) -> Segment:
    """Return the cursor as half a character; the other half shows step ``other``."""
    style = accent(theme)
    if other >= 0:
        style += Style(bgcolor=Color.from_rgb(*colour_table(theme.palette)[other]))
    return Segment("▀" if above else "▄", style)


def _wide(
    row: list[int],
    place: int,
    form: Form,
    lit: Place,
    shown: Shown,
    corner: Place | None,
    theme: Theme,
) -> Line:
    """Return one line of cells; wide cells and the cursor's row and column show their numbers.

    corner: the query and key of the first cell; None for a line without numbers.
    """
    line: Line = []
    for column, step in enumerate(row):
        here = place == lit.query, column == lit.key
        text = ""
        if step >= 0 and corner is not None and (any(here) or form.wide >= _VALUES):
            value = shown.weights[corner.query + place, corner.key + column]
            text = _number(float(value), form.wide, shown.limit)
        if all(here):
            line.append(Segment(text.center(form.wide), accent(theme, ground=True)))
        elif text and not theme.colour:
            line.append(Segment(text.center(form.wide), BOLD if any(here) else None))
        elif step >= 0 and any(here) and corner is not None and theme.colour:
            line.append(Segment(text.center(form.wide), _lit(step, theme)))
        else:
            line.append(theme.cells(step, form.wide, text))
    return line


def _lit(step: int, theme: Theme) -> Style:
    """Return the style of a cell in the cursor's row or column: its colour made lighter."""
    red, green, blue = (
        round(part + (255 - part) * _LIGHT) for part in colour_table(theme.palette)[step]
    )
    ink = Color.from_rgb(*contrasting((red, green, blue)))
    return Style(color=ink, bgcolor=Color.from_rgb(red, green, blue), bold=True)


def _number(value: float, wide: int, limit: float) -> str:
    """Return a weight as ``.53``, in two columns as ``.5``; empty if it rounds to zero."""
    digits = 1 if wide < _VALUES else 2
    size = abs(value)
    if math.isnan(value) or size < 0.5 * 10.0**-digits:
        return ""
    if limit and wide > _VALUES:
        sign = "-" if value < 0 else "+"
        return sign + (f"{size:.2f}"[1:] if size < 0.995 else f"{size:.1f}")
    text = f"{size:.{digits}f}"
    if size < 1 - 0.5 * 10.0**-digits:
        return text[1:]
    return text[: digits + 1]


# Names ---------------------------------------------------------------------------------------


def _tag(axes: Axes, cursor: Place, column: int, columns: int, theme: Theme) -> Line:
    """Return the line with the name of the cursor's key above its column."""
    sign = "v" if theme.ascii else "▾"
    name = axes.keys[cursor.key]
    behind = f"{sign} {cursor.key} {name}"
    if column + width(behind) <= columns:
        return text_line(" " * column, (behind, accent(theme)))
    before = fit(f"{cursor.key} {name}", min(width(f"{cursor.key} {name}"), column - 1))
    return text_line(" " * (column - 1 - width(before)), (f"{before} {sign}", accent(theme)))


def _name(axes: Axes, span: range, cursor: Place, gutter: int, theme: Theme) -> Segment:
    """Return the name at the left of a line: of its first query, or of the cursor's."""
    here = cursor.query in span
    query = cursor.query if here else span.start
    room = gutter - axes.digits - 2
    name = axes.queries[query]
    name = fit(name, room, theme.ellipsis) if width(name) > room else name
    text = f"{query:>{axes.digits}} {' ' * (room - width(name))}{name}"
    return Segment(f"{fit(text, gutter - 1)} ", accent(theme) if here else DIM)


def _on_diagonal(axes: Axes, query: int, cursor: Place, theme: Theme) -> Line:
    """Return the name of a query at the end of its row, on the diagonal."""
    style = DIM
    if query == cursor.query:
        style = accent(theme)
    elif query == cursor.key:
        style = BOLD
    return text_line(" ", (axes.queries[query], style))
