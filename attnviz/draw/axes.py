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

    def cells(self, max_width: int, values: bool) -> KeyCells | None:
        """Return the layout of a map with a line for each query, or None if it does not fit.

        The keys are named by their words in one line, cut to no less than four letters, or else by
        numbers that the rows have as well.
        max_width: in characters. values: True if each weight should be written in
            its cell.
        """
        count, least = max(len(self.keys), 1), self.value if values else 2
        if self.diagonal:
            widths = [min(width(label), LONGEST_LABEL) for label in self.queries[-count // 4 :]]
            fits = [wide for wide in (least, 2) if wide * count + 1 + max(widths) <= max_width]
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

    def value_room(self) -> int:
        """Return the width in characters of a map with each value written in its cell."""
        count = len(self.keys)
        if not self.diagonal:
            return self.label_width + self.digits + 1 + self.value * count
        widths = [min(width(label), LONGEST_LABEL) for label in self.queries[-count // 4 :]]
        return self.value * count + 1 + max(widths)


def tick_line(numbers: Sequence[int], indent: int, cell: int) -> Line:
    """Draw as many numbers as fit in one line, each over its cell.

    numbers: one for each cell. indent: the characters before the first cell. cell: the width of a
        cell in characters.
    Two blanks separate numbers over cells of one character. No number reaches beyond the last cell.
    """
    text, gap = "", 1 if cell > 1 else 2
    for place, number in enumerate(numbers):
        column = place * cell
        fits = column + len(str(number)) <= cell * len(numbers)
        if column >= len(text) + (gap if text else 0) and fits:
            text = text.ljust(column) + str(number)
    return text_line(" " * indent, (text, DIM))
