"""How much of a head's attention goes from one region of a text to another, next to uniform.

For regions Q and K of a text

    share(Q, K) = mean over queries i in Q of Σ over keys j in K of A[i, j]
    uniform(Q, K) = mean over i in Q of the visible keys in K ÷ all visible keys of i

A sink makes most shares: so a head is said to attend to a region more than uniform attention only
by what it leaves to keys outside the attention sink. ``above`` is the mean over queries i of

    Σ_{j in K, not sink} A[i, j] / Σ_{j not sink} A[i, j] − the same of uniform attention

and it is clear if the share is above uniform, ``above`` is at least .10, and it is so many standard
errors from zero, over at least five queries, that one of all heads and pairs of regions would
rarely pass by chance. Neighbouring queries are alike: the errors are a rule of thumb.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.bootstrap import student_quantile
from attnviz.measures.labels import clear_deviations
from attnviz.measures.rows import AttentionRows, on_host
from attnviz.measures.sinks import LEAST_LEFT, sink_of
from attnviz.records import REST, AttentionRecord, Bools, Floats, RegionShares, Tokens

LEAST = 0.1  # how much more than uniform attention is worth a word, as for links between words
_ROWS = 4096  # the number of rows whose sums over regions are computed at once
_TARGET = "target"  # the region of a text without regions, which looks at one with regions


def regions_of(tokens: Tokens) -> dict[str, int]:
    """Return the sizes of a text's regions in tokens, in its order, those without a name last."""
    sizes = Counter(tokens.regions or [_TARGET] * len(tokens))
    return dict(sorted(sizes.items(), key=lambda region: region[0] in REST))


def _members(tokens: Tokens) -> NDArray[np.float64]:
    """Return a matrix (token, region): 1 where the token is in the region."""
    names, given = [*regions_of(tokens)], tokens.regions or [_TARGET] * len(tokens)
    return np.asarray([[name == of_token for name in names] for of_token in given], float)


class RegionSums:
    """Sums the attention of one layer between regions, from blocks of rows in any order.

    queries, keys: the tokens of both axes, with their regions.
    sink: (key,), whether each key belongs to the attention sink.
    """

    def __init__(self, queries: Tokens, keys: Tokens, sink: Bools) -> None:
        self._queries, self._keys = _members(queries), _members(keys)
        self._sink = sink
        self._sums: NDArray[np.float64] | None = None

    def add(self, weights: Floats, start: int, seen: Bools) -> None:
        """Add weights (head, rows, keys) from query ``start`` on; see ``seen`` (rows, keys)."""
        every, outside = (columns[: weights.shape[-1]] for columns in self._columns)
        both = (weights @ every.astype(weights.dtype)).astype(np.float64)  # (head, rows, regions)
        even = (seen @ every[:, : outside.shape[1]]) / np.maximum(seen.sum(-1, keepdims=True), 1)
        self._take(both, even, seen @ outside, start)

    def add_sums(self, rows: AttentionRows | None, even: AttentionRows) -> None:
        """Add all rows of a layer to the sums.

        rows: None adds nothing, so that ``even`` learns which columns will be asked of a layer.
        even: the rows of uniform attention over the same keys.
        """
        every, outside = self._columns
        evenly, left = even.mixed(every)[0], even.mixed(outside)[0] * even.visible[:, None]
        if rows is None:
            return
        both = on_host(rows.mixed(every))
        for start in range(0, len(left), _ROWS):
            part = slice(start, start + _ROWS)
            shares = evenly[part, : outside.shape[1]]
            self._take(both[:, part].astype(np.float64), shares, left[part], start)

    @property
    def _columns(self) -> tuple[Floats, Floats]:
        """Return the keys (key, column) of each region and its sink, and those without the sink."""
        keys, sink = self._keys, self._sink[:, None]
        return np.hstack([keys, keys * sink]), keys * ~sink

    def _take(self, both: Floats, even: Floats, left_even: Floats, start: int) -> None:
        """Add rows to the sums.

        both: (head, rows, twice the regions), weight on each region and on its sink. even: (rows,
            regions), of uniform attention. left_even: the keys seen outside the sink.
        """
        members, count = self._queries[start : start + len(even)], even.shape[1]
        left = both[..., :count] - both[..., count:]
        rest, rest_even = left.sum(-1, keepdims=True), left_even.sum(-1, keepdims=True)
        counts = (rest > LEAST_LEFT) & (rest_even > 0)
        gap = np.divide(left, rest, out=np.zeros_like(left), where=counts)
        gap -= np.where(counts, left_even / np.maximum(rest_even, 1), 0)
        parts = [both[..., :count], both[..., count:], gap, gap**2]
        parts += [np.broadcast_to(part, gap.shape) for part in (even, counts)]
        sums = np.einsum("rq,phrk->phqk", members, np.stack(parts))
        self._sums = sums if self._sums is None else self._sums + sums

    def sums(self) -> NDArray[np.float64]:
        """Return six sums over queries: (six, head, query region, key region).

        In this order: share, share on the sink, gap to uniform attention outside the sink, its
        square, share of uniform attention, and the number of queries with a gap.
        """
        assert self._sums is not None
        return self._sums


def shares(
    queries: Tokens, keys: Tokens, layers: Mapping[tuple[int, tuple[int, ...]], NDArray[np.float64]]
) -> RegionShares:
    """Return the attention shares of some heads between the regions of a text.

    queries, keys: the tokens, with their regions.
    layers: the sums of each layer, by its index and the indices of its heads. ``clear`` is judged
        for as many tests as these heads have pairs of regions.
    """
    sums = np.concatenate([*layers.values()], axis=1)
    sizes = np.asarray([*regions_of(queries).values()])[:, None]
    share, on_sink, gap, square, uniform, rows = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        above = np.where(rows > 0, gap / rows, np.nan)
        spread = np.sqrt(np.maximum(square - rows * above**2, 0) / (rows - 1) / rows)
    least = RegionShares.least_queries
    limit = student_quantile(clear_deviations(above.size), np.maximum(rows, least) - 1)
    clear = (above >= LEAST) & (rows >= least) & (above > limit * spread) & (share > uniform)
    return RegionShares(
        regions_of(queries),
        regions_of(keys),
        tuple((layer, head) for layer, heads in layers for head in heads),
        share=share / sizes,
        uniform=uniform / sizes,
        on_sink=on_sink / sizes,
        above=above,
        clear=clear,
    )


def region_shares(record: AttentionRecord) -> RegionShares | None:
    """Return heads' attention shares between the regions of a record; None without regions."""
    if not record.keys.regions:
        return None
    sink, layers = sink_of(record)[1], {}
    for layer in record.layers:
        sums = RegionSums(record.queries, record.keys, sink)
        sums.add(layer.weights, 0, record.seen(layer))
        layers[layer.layer, layer.heads] = sums.sums()
    return shares(record.queries, record.keys, layers)
