"""The two labelled axes of a map, and the room that their labels get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from attnviz.draw.blocks import DIM, Line, text_line
from attnviz.draw.labels import width

LONGEST_LABEL = 16
_WIDEST_CELL = 10
_LEAST_WORD = 5  # four letters and a blank

Header = Literal["words", "cut words", "numbers"]


class KeyCells(NamedTuple):
    """How a map with one line for each query is drawn.

    wide: columns of one cell. header: how keys are named above the columns, None for not at all.
    values: whether each weight is written in its cell.
    """

    wide: int
    header: Header | None
    values: bool


@dataclass(frozen=True)
class Axes:
    """The labels of the two axes, safe to print.

    queries, keys: one label for each row, and one for each column.
    causal: whether cells with key > query stay blank.
    value: the columns that a value takes in its cell, with the blank behind it.
    rows, columns: the numbers of the queries and of the keys in their texts; empty if the axes are
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
        """Return the number of a query in its text. query: its index among the rows."""
        return self.rows[query] if self.rows else query

    def column(self, key: int) -> int:
        """Return the number of a key in its text. key: its index among the columns."""
        return self.columns[key] if self.columns else key

    @property
    def diagonal(self) -> bool:
        """Return whether each row can end in its own token, which then names row and column."""
        return self.causal and len(self.queries) == len(self.keys)

    @cached_property  # every row of the map asks for it
    def label_width(self) -> int:
        """Return the columns that the query labels take, with the blank behind them."""
        return min(max(map(width, self.queries), default=0), LONGEST_LABEL) + 1

    @property
    def digits(self) -> int:
        """Return how many columns the largest number takes."""
        return len(str(max(self.row(len(self.queries) - 1), self.column(len(self.keys) - 1))))

    def cells(self, room: int, values: bool) -> KeyCells | None:
        """Return how a map with a line for each query is drawn in ``room`` columns, or None.

        Columns get their words in one line, cut to no less than four letters, or else numbers that
        the rows have as well. None means that neither fits.
        values: True if each weight should be written in its cell.
        """
        count, least = max(len(self.keys), 1), self.value if values else 2
        if self.diagonal:
            widths = [min(width(label), LONGEST_LABEL) for label in self.queries[-count // 4 :]]
            fits = [wide for wide in (least, 2) if wide * count + 1 + max(widths) <= room]
            return KeyCells(fits[0], None, values and fits[0] >= self.value) if fits else None
        whole = min(max([*map(width, self.keys), least - 1]) + 1, _WIDEST_CELL)
        cell = min((room - self.label_width) // count, whole)
        if cell >= min(whole, _LEAST_WORD):
            return KeyCells(cell, "words" if cell >= whole else "cut words", values)
        cell = (room - self.label_width - self.digits - 1) // count
        if cell < 2:
            return None
        fit = values and cell >= self.value
        return KeyCells(self.value if fit else min(cell, self.digits + 1), "numbers", fit)

    def value_room(self) -> int:
        """Return the columns that a map with values in its cells takes."""
        count = len(self.keys)
        if not self.diagonal:
            return self.label_width + self.digits + 1 + self.value * count
        widths = [min(width(label), LONGEST_LABEL) for label in self.queries[-count // 4 :]]
        return self.value * count + 1 + max(widths)


def tick_line(numbers: Sequence[int], indent: int, cell: int) -> Line:
    """Draw as many numbers as fit over their columns, which are ``cell`` columns apart.

    indent: the columns before the first cell.
    Two blanks separate numbers over cells of one column. No number reaches beyond the last column.
    """
    text, gap = "", 1 if cell > 1 else 2
    for place, number in enumerate(numbers):
        column = place * cell
        fits = column + len(str(number)) <= cell * len(numbers)
        if column >= len(text) + (gap if text else 0) and fits:
            text = text.ljust(column) + str(number)
    return text_line(" " * indent, (text, DIM))
