"""The two labelled axes of a map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from attnviz.draw.blocks import DIM, Line, text_line
from attnviz.draw.labels import width

_LONGEST_LABEL = 16
_WIDEST_CELL = 9
_VALUE_CELL = 4


@dataclass(frozen=True)
class Axes:
    """The labels of the two axes, safe to print.

    queries, keys: one label a row, one a column.
    causal: cells with key > query stay blank.
    """

    queries: Sequence[str]
    keys: Sequence[str]
    causal: bool = False

    @cached_property  # every row of the map asks for it
    def label_width(self) -> int:
        """The columns that the query labels take, with the blank behind them."""
        return min(max(map(width, self.queries), default=0), _LONGEST_LABEL) + 1

    def cell_width(self, room: int, values: bool) -> int:
        """The columns of a cell when the whole map may take ``room``; 0 if it must be pooled."""
        widest = max(map(width, self.keys), default=0) + 1
        wanted = min(max(widest, _VALUE_CELL if values else 2), _WIDEST_CELL)
        return min((room - self.label_width) // max(len(self.keys), 1), wanted)


def tick_line(numbers: Sequence[int], indent: int, cell: int) -> Line:
    """Numbers over their columns, ``cell`` columns apart, as many as fit two blanks apart.

    None reaches beyond the last column.
    """
    text = ""
    for place, number in enumerate(numbers):
        column = place * cell
        fits = column + len(str(number)) <= cell * len(numbers)
        if column >= len(text) + (2 if text else 0) and fits:
            text = text.ljust(column) + str(number)
    return text_line(" " * indent, (text, DIM))
