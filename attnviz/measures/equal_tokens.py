"""The attention weight on equal tokens, in several orders of the tokens of a text.

Few tokens of most texts are equal. Their pairs are found once for a text, and the weights on them
are picked from each layer. Where they are many, a product with a whole mask is faster.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.records import Bools, Ints

Weights = NDArray[np.floating]

_MOST = 16
"""The most pairs of equal tokens for each token of a text, if they are kept."""


class Pairs(NamedTuple):
    """Pairs of a query and an earlier key, in some orders of the tokens of a text.

    number: how many orders there are. queries, orders, keys: (pair,), by query, then by order.
    """

    number: int
    queries: Ints
    orders: Ints
    keys: Ints


def equal_pairs(orders: Ints) -> tuple[Pairs, Pairs] | None:
    """Return the pairs with earlier equal tokens of ids (order, token), and with those after."""
    length = orders.shape[1]
    places = np.argsort(orders, axis=-1, kind="stable")
    sorted_ids = orders[0][places[0]]  # those of every order
    earlier = np.arange(length) - np.searchsorted(sorted_ids, sorted_ids)  # equal ones before each
    if earlier.sum() > _MOST * length:
        return None
    late = np.repeat(np.arange(length), earlier)
    first = np.cumsum(earlier) - earlier  # the index of the first pair of each token
    early = late - 1 - (np.arange(len(late)) - np.repeat(first, earlier))
    queries, keys = places[:, late], places[:, early]
    return _pairs(queries, keys), _pairs(queries, keys + 1)


def _pairs(queries: Ints, keys: Ints) -> Pairs:
    """Return those pairs whose key is before the query. queries, keys: (order, pair)."""
    numbers = np.broadcast_to(np.arange(len(queries))[:, None], queries.shape)
    before = keys < queries  # what follows the token just before is the query itself
    found = np.stack([queries[before], numbers[before], keys[before]])
    return Pairs(len(queries), *found[:, np.lexsort(found[1::-1])])


def mass_on_pairs(
    weights: Weights, pairs: Pairs, start: int, seen: Bools | None
) -> tuple[Weights, Bools]:
    """Return each row's summed weight on the keys of its pairs, and which rows have pairs.

    weights: (..., rows, keys). start: the query of the first row. seen: boolean (rows, keys), the
        pairs that count; None if all do. The results are (..., orders, rows) and (orders, rows).
    """
    *heads, rows, width = weights.shape
    first, past = np.searchsorted(pairs.queries, [start, start + rows])
    row, order, key = (each[first:past] for each in pairs[1:])
    places, cells = (row - start) * pairs.number + order, (row - start) * width + key
    if seen is not None:
        kept = seen.reshape(-1)[cells]
        places, cells = places[kept], cells[kept]
    values = np.zeros((*heads, pairs.number, rows), weights.dtype)
    counts = np.zeros((pairs.number, rows), bool)
    begins = np.flatnonzero(np.diff(places, prepend=-1))
    if len(begins):
        at = np.divmod(places[begins], pairs.number)[::-1]
        found = np.take(weights.reshape(*heads, rows * width), cells, -1)
        values[(..., *at)] = np.add.reduceat(found, begins, -1)
        counts[at] = True
    return values, counts


def mass_on(weights: Weights, keys: Bools) -> tuple[Weights, Bools]:
    """Return weights on keys (orders, rows, keys), (..., orders, rows), and rows that have some."""
    chosen = np.moveaxis(keys, 0, -1).astype(weights.dtype)  # (rows, keys, orders)
    by_row = np.moveaxis(weights, -2, -3 if weights.ndim > 2 else 0)  # (..., rows, heads, keys)
    if weights.ndim == 2:
        by_row = weights[:, None, :]
    sums = np.matmul(by_row, chosen)  # (..., rows, heads, orders)
    values = sums[:, 0].T if weights.ndim == 2 else np.moveaxis(sums, -3, -1)
    return values, np.asarray(keys.any(-1))
