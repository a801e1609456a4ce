"""The cheapest way to pair the rows of a table with its columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def cheapest_pairs(costs: NDArray[np.floating]) -> list[tuple[int, int]]:
    """Return the pairs (row, column) of a table with the least sum of costs, ordered by row.

    Each row gets a column of its own, or each column a row if there are fewer columns. The
    Hungarian method with shortest augmenting paths (Jonker & Volgenant 1987), O(rows² · columns).
    Raises ValueError for costs that are not finite.
    """
    table = np.asarray(costs, np.float64)
    if not np.isfinite(table).all():
        raise ValueError("the cheapest pairs need finite costs")
    rows, columns = table.shape
    if rows > columns:
        return sorted((row, column) for column, row in cheapest_pairs(table.T))
    # Column 0 stands for no column; row_of[j] is the row that has column j, counted from 1.
    row_prices, column_prices = np.zeros(rows + 1), np.zeros(columns + 1)
    row_of = np.zeros(columns + 1, int)
    for row in range(1, rows + 1):
        row_of[0], column = row, 0
        reach = np.full(columns + 1, np.inf)
        came_from = np.zeros(columns + 1, int)
        done = np.zeros(columns + 1, bool)
        while row_of[column]:
            done[column] = True
            at = row_of[column]
            spare = table[at - 1] - row_prices[at] - column_prices[1:]
            nearer = ~done[1:] & (spare < reach[1:])
            reach[1:][nearer], came_from[1:][nearer] = spare[nearer], column
            following = int(np.where(done, np.inf, reach)[1:].argmin()) + 1
            step = reach[following]
            row_prices[row_of[done]] += step
            column_prices[done] -= step
            reach[~done] -= step
            column = following
        while column:
            row_of[column], column = row_of[came_from[column]], came_from[column]
    taken = np.flatnonzero(row_of[1:])
    return sorted((int(row_of[column + 1]) - 1, int(column)) for column in taken)
