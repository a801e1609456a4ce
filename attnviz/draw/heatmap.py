"""Draws one head's map in full, with the tokens of both axes.

The upper half of a causal map is empty: each row ends on the diagonal, and the token there names
the row and the column. Other maps have their queries at the left and their keys above.

Of a map that has a cursor the part around it is drawn as large as fits, which knows where its cells
are; those next to the cursor stand out a little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from rich.segment import Segment
from rich.style import Style

from attnviz.draw.blocks import (
    BOLD,
    DIM,
    Block,
    Line,
    text_line,
    tick_line,
    widest,
    without_trailing_blanks,
)
from attnviz.draw.labels import at_blanks, cut, fit, width
from attnviz.draw.maps import (
    MOST_LINES,
    Fit,
    Place,
    cell_lines,
    cell_steps,
    coarse_steps,
    fitted,
    pooling,
)
from attnviz.draw.numbers import NumberScale
from attnviz.draw.prose import faint_lines
from attnviz.draw.provenance import share
from attnviz.draw.regions import RegionMark, band_line, region_marks
from attnviz.draw.theme import Theme
from attnviz.records import REST, Floats

_LEAST_NAME = 8  # columns for tokens behind a downsampled map
_BAND = 2  # columns of the band of regions at the left of a map

# The axes -------------------------------------------------------------------------------------

LONGEST_LABEL = 16
_WIDEST_CELL = 10
_LEAST_WORD = 5  # four letters and a blank

Header = Literal["words", "cut words", "numbers"]


class KeyCells(NamedTuple):
    """The layout of a map that has one line for each query.

    wide: the width of one cell in characters. header: how keys are named above their cells; None
        for no names. values: whether each weight is written in its cell.
    """

    wide: int
    header: Header | None
    values: bool


@dataclass(frozen=True)
class Axes:
    """The labels of the two axes, safe to print.

    queries, keys: one label for each row, and one for each column.
    causal: whether cells with key > query stay blank.
    value: the width in characters of a value in its cell, with the blank behind it.
    rows, columns: the token index of each query and of each key in its text; empty if the axes are
        whole texts.
    query_regions, key_regions: the region of each query and key; empty if there are none.
    """

    queries: Sequence[str]
    keys: Sequence[str]
    causal: bool = False
    value: int = 4
    rows: Sequence[int] = ()
    columns: Sequence[int] = ()
    query_regions: Sequence[str] = ()
    key_regions: Sequence[str] = ()

    def row(self, query: int) -> int:
        """Return the token index of a query in its text. query: its index among the rows."""
        return self.rows[query] if self.rows else query

    def column(self, key: int) -> int:
        """Return the token index of a key in its text. key: its index among the columns."""
        return self.columns[key] if self.columns else key

    @property
    def diagonal(self) -> bool:
        """Return whether each row can end in its own token, which then labels row and column."""
        return self.causal and len(self.queries) == len(self.keys)

    @cached_property  # every row of the map asks for it
    def label_width(self) -> int:
        """Return the width in characters of the query labels, with the blank behind them."""
        return min(max(map(width, self.queries), default=0), LONGEST_LABEL) + 1

    @property
    def digits(self) -> int:
        """Return how many digits the largest token index of a row or column has."""
        return len(str(max(self.row(len(self.queries) - 1), self.column(len(self.keys) - 1))))

    def value_room(self) -> int:
        """Return the width in characters of a map with each value written in its cell."""
        count = len(self.keys)
        names = self.diagonal_label if self.diagonal else self.label_width + self.digits
        return self.value * count + 1 + names

    @cached_property
    def diagonal_label(self) -> int:
        """Return the width of the labels that may reach beyond a causal map: its last quarter."""
        lowest = self.queries[-max(len(self.keys), 1) // 4 :]
        return max(min(width(label), LONGEST_LABEL) for label in lowest)

    def cells(self, max_width: int, values: bool) -> KeyCells | None:
        """Return the layout of a map with a line for each query, or None if it does not fit.

        The keys are named by their words in one line, cut to no less than four letters, or else by
        numbers that the rows have as well.
        values: True if each weight should be written in its cell.
        """
        count, least = max(len(self.keys), 1), self.value if values else 2
        if self.diagonal:
            names = self.diagonal_label
            fits = [wide for wide in (least, 2) if wide * count + 1 + names <= max_width]
            return KeyCells(fits[0], None, values and fits[0] >= self.value) if fits else None
        whole = min(max([*map(width, self.keys), least - 1]) + 1, _WIDEST_CELL)
        cell = min((max_width - self.label_width) // count, whole)
        if cell >= min(whole, _LEAST_WORD):
            return KeyCells(cell, "words" if cell >= whole else "cut words", values)
        cell = (max_width - self.label_width - self.digits - 1) // count
        if cell < 2:
            return None
        fit = values and cell >= self.value
        return KeyCells(self.value if fit else min(cell, self.digits + 1), "numbers", fit)

    @property
    def band(self) -> int:
        """Return the width in characters of the band of regions at the left; 0 without regions."""
        return _BAND if self.key_regions else 0


# The map --------------------------------------------------------------------------------------


def heatmap(
    weights: Floats,
    axes: Axes,
    theme: Theme,
    max_width: int,
    values: bool = False,
    lines: int = MOST_LINES,
    limit: float = 0.0,
) -> Block:
    """Return a map of ``weights`` (query, key) with its labels.

    NaN stays blank. Each query has a line if that fits, even beyond ``lines`` in maps that are not
    square; else two queries share a line, or cells are downsampled and a caption says so.
    values: True writes each weight in its cell if the cells are wide enough. lines: the most lines.
    """
    theme = theme.signed if limit else theme
    max_width -= axes.band
    cells = _plan(axes, max_width, values, lines)
    if cells is None:
        plan = _dense_fit(axes, theme, max_width, lines)
        drawn = _dense(weights, axes, plan, theme, max_width, limit)
        drawn += _room_for_values(axes, max_width) if values else []
        return Block(tuple(drawn), widest(drawn))
    plan = Fit(cells.wide, False, (1, 1))
    steps = cell_steps(weights, plan.factors, axes.causal, limit)

    def text(query: int, key: int) -> str:
        return _value(float(weights[query, key]), theme, limit)

    drawn = []
    for query, line in enumerate(cell_lines(steps, plan, theme, text if cells.values else None)):
        if axes.diagonal:
            room = max(max_width - cells.wide * (query + 1) - 1, 1)
            label = cut(axes.queries[query], room, theme.ellipsis)
            drawn.append([*line[: query + 1], Segment(f" {label}")])
        else:
            numbered = cells.header == "numbers"
            label = row_label(axes, query, axes.label_width - 1, numbered, theme)
            drawn.append(without_trailing_blanks([Segment(label), *line]))
    note = [] if cells.values or not values else _room_for_values(axes, max_width)
    indent = 0 if axes.diagonal else axes.label_width
    indent += axes.digits + 1 if cells.header == "numbers" else 0
    drawn = _banded(_header(axes, cells, theme), drawn, axes, plan, indent, theme)
    drawn = [*drawn, *note, *_key_names(axes, cells, theme, max_width)]
    return Block(tuple(drawn), widest(drawn))


def _plan(axes: Axes, max_width: int, values: bool, lines: int) -> KeyCells | None:
    """Return the layout of a map with a line for each query; None if it does not fit."""
    square = len(axes.queries) == len(axes.keys)
    return None if square and len(axes.keys) > lines else axes.cells(max_width, values)


def _banded(
    above: Sequence[Line], rows: Sequence[Line], axes: Axes, plan: Fit, indent: int, theme: Theme
) -> list[Line]:
    """Return the lines of a map with the regions at their left and below, if the axes have any.

    above: the lines over the first row. rows: the lines of the map. plan: the layout of the cells.
    indent: the characters before the first cell.
    """
    if not axes.key_regions:
        return [*above, *rows]
    marks = region_marks([*axes.query_regions, *axes.key_regions])
    step = plan.rows * plan.factors[0]
    asking = axes.query_regions[::step] or [REST[-1]] * len(rows)
    marks.setdefault(REST[-1], RegionMark(" ", None))
    cells = [(name, plan.wide) for name in axes.key_regions[:: plan.factors[1]]]
    blank = Segment(" " * _BAND)

    def mark(name: str) -> Line:
        """Return the letter of a region on its colour, and a blank."""
        letter, tint = marks[name]
        style = theme.ground(tint) if tint is not None and theme.colour else None
        return [Segment(theme.spell(letter), style), Segment(" ")]

    return [
        *([blank, *line] for line in above),
        *([*mark(name), *line] for name, line in zip(asking, rows, strict=True)),
        [blank, Segment(" " * indent), *band_line(cells, marks, theme)],
    ]


def quality(axes: Axes, theme: Theme, max_width: int, values: bool, lines: int) -> tuple[int, ...]:
    """Return how well a map can be drawn, as a tuple for comparisons: larger is better."""
    max_width -= axes.band
    cells = _plan(axes, max_width, values, lines)
    if cells is None:
        return (-max(_dense_fit(axes, theme, max_width, lines).factors), 0, 0)
    rank = {"numbers": 0, "cut words": 1, "words": 2, None: 2}[cells.header]
    return (-1, int(cells.values), rank)


def _value(weight: float, theme: Theme, limit: float) -> str:
    """Return a weight in three characters: ``.07``, ``1.0``; a dot for one that rounds to zero.

    limit: 0 for weights. For values of either sign, the absolute value with the full colour; such a
        value is as wide as its cell, such as ``+.07``.
    """
    if limit:
        scale = NumberScale(limit)
        return (scale.fitted(weight, scale.room) or "").rjust(scale.room)
    if weight < 0.005:
        return theme.trace if weight > 0 else "0"
    return share(weight)


def row_label(axes: Axes, query: int, max_width: int, numbered: bool, theme: Theme) -> str:
    """Return a query's label aligned at the right and a blank, behind its index if ``numbered``."""
    label = cut(axes.queries[query], max(max_width, 1), theme.ellipsis)
    index = f"{axes.row(query):>{axes.digits}} " if numbered else ""
    return index + " " * (max_width - width(label)) + label + " "


def _header(axes: Axes, cells: KeyCells, theme: Theme) -> list[Line]:
    """Return the lines above the map that name the keys: by words, or by numbers where they fit."""
    if cells.header is None:
        return []
    indent = axes.label_width
    if cells.header == "numbers":
        numbers = list(map(axes.column, range(len(axes.keys))))
        return [tick_line(numbers, indent + axes.digits + 1, cells.wide)]
    line = [Segment(" " * indent)]
    for label in axes.keys:
        # A cut word has no ellipsis where that would leave it less than four letters.
        shown = cut(label, cells.wide - 1, theme.ellipsis)
        if width(shown) < len(theme.ellipsis) + 4 and shown != label:
            shown = fit(label, cells.wide - 1, "")
        line.append(Segment(fit(" " * ((cells.wide - width(shown)) // 2) + shown, cells.wide)))
    return [without_trailing_blanks(line)]


def _key_names(axes: Axes, cells: KeyCells, theme: Theme, max_width: int) -> list[Line]:
    """Return lines that list the keys by number, if neither the map nor its rows name them."""
    alike = list(axes.keys) == list(axes.queries) and axes.rows == axes.columns
    numbers = map(str, map(axes.column, range(len(axes.keys))))
    if cells.header != "numbers" or alike or list(axes.keys) == list(numbers):
        return []
    names = " ".join(f"{axes.column(key)} {label}" for key, label in enumerate(axes.keys))
    return faint_lines(f"columns: {names}", theme, max_width)


def _room_for_values(axes: Axes, max_width: int) -> list[Line]:
    """Return lines that say which width the map would need to write values in its cells."""
    needed = axes.value_room()
    lines = at_blanks(f"values need {needed} columns (--width {needed})", max_width)
    return [text_line((line, DIM)) for line in lines]


# Long texts ----------------------------------------------------------------------------------


def _dense_labels(axes: Axes, max_width: int) -> int:
    """Return the width of the row labels of a downsampled map, at most half of ``max_width``."""
    labels = _LEAST_NAME if axes.diagonal else min(axes.label_width - 1, LONGEST_LABEL)
    return min(axes.digits + 1 + labels + 1, max(max_width // 2, 2))


def _dense_fit(axes: Axes, theme: Theme, max_width: int, lines: int) -> Fit:
    columns = max(max_width - _dense_labels(axes, max_width), 1)
    return fitted(len(axes.queries), len(axes.keys), lines, columns, theme)


def _dense(
    weights: Floats, axes: Axes, plan: Fit, theme: Theme, max_width: int, limit: float
) -> list[Line]:
    """Return a map with small cells; each line has the index and the text of its first query."""
    steps = cell_steps(weights, plan.factors, axes.causal, limit)
    queries = plan.factors[0] * plan.rows
    indent = 0 if axes.diagonal else _dense_labels(axes, max_width)
    drawn: list[Line] = []
    above: list[Line] = []
    if not axes.diagonal:
        starts = list(map(axes.column, range(0, len(axes.keys), plan.factors[1])))
        above.append(tick_line(starts, indent, plan.wide))
    for number, cells in enumerate(cell_lines(steps, plan, theme)):
        first = number * queries
        named = queries if axes.diagonal and plan.factors == (1, 1) else 1
        name = " ".join((f"{axes.row(first):>{axes.digits}}", *axes.queries[first : first + named]))
        if axes.diagonal:
            used = plan.wide * min((number + 1) * plan.rows, steps.shape[1])
            kept = without_trailing_blanks(cells)
            blank = " " * (used - widest([kept]) + 1)
            label = cut(name, max(max_width - used - 1, 1), theme.ellipsis)
            drawn.append([*kept, Segment(blank + label, DIM)])
        else:
            label = fit(name, indent - 1, theme.ellipsis)
            drawn.append([Segment(f"{label} ", DIM), *without_trailing_blanks(cells)])
    drawn = _banded(above, drawn, axes, plan, indent, theme)
    words = theme.spell(pooling(plan.factors, limit > 0))
    return [*drawn, *faint_lines(words, theme, max_width)]


# The part around a cursor ----------------------------------------------------------------------


_LONGEST_NAME = 12
_WRITTEN = 4  # the least columns of a cell that shows its weight, such as ``.07``


@dataclass(frozen=True)
class MapPart:
    """A map with a cursor, drawn as far as it fits.

    weights: (query, key); NaN where there is none. axes: the labels of both axes.
    cursor: the query and key whose cell, row and column are highlighted.
    corner: the first query and key to draw; it moves if the cursor would not be visible.
    """

    weights: Floats
    axes: Axes
    cursor: Place
    corner: Place
    limit: float = 0.0

    def ends_on_diagonal(self, plan: Fit, lines: int, columns: int) -> bool:
        """Return True if a whole causal map fits, with each token at the end of its row."""
        names = self.axes.queries
        ends = (plan.wide * (query + 1) + 1 + width(name) for query, name in enumerate(names))
        fits = plan.tall * len(names) <= lines and max(ends, default=0) <= columns
        return self.axes.diagonal and plan.wide > 1 and fits

    def gutter(self, columns: int) -> int:
        """Return the width in characters of the token numbers and tokens at the left of the map."""
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
        """Return the query and key of the cell at a position of the screen; None outside cells."""
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


def _first_seen(corner: int, cursor: int, seen: int, total: int) -> int:
    """Return the first row or column to draw, of which ``seen`` of ``total`` fit.

    The ``corner`` drawn before stays if the cursor's cell is visible, or else moves by a quarter
    of what is seen, not with every move of the cursor.
    """
    seen = max(seen, 1)
    if not corner <= cursor < corner + seen:
        corner = cursor - seen // 4 if cursor < corner else cursor - seen + 1 + seen // 4
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
