"""Rows of attention that are read through sums, so that texts of any length can be measured.

With p = softmax(s), every statistic that is linear in a row is Σⱼ pᵢⱼ·vⱼ for some column v: the
mass on any set of tokens has a column of zeros and ones, the mean distance one of positions. A
backend computes such sums, the entropy and the largest weight where the attention is computed, and
keeps no weight. The keys that a query sees must be a range, as in causal attention and in windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.rows import Columns, Rows, TextFacts, Weights, counted
from attnviz.measures.sinks import rescaled
from attnviz.records import Bools
from attnviz.records import Ints as Ints

_FEW = 64  # the most equal tokens of which each pair is kept: larger groups have too many


class Reduced(NamedTuple):
    """The sums over the rows of one layer.

    Where a kernel computes them, all but ``pooled`` are tensors that stay on its device.
    mixed: (head, query, column), Σⱼ A[i, j]·columns[j]. total, entropy, largest: (head, query).
    signed: (head, query), the mean distance Σⱼ A[i, j]·(j − i) in tokens.
    far: (head, query), Σⱼ A[i, j]·|j − i|; None unless it was requested.
    pooled: (head, query bucket, key bucket) sums of weights; None if no buckets were requested.
    equal: (head, 2, order, query), the weight on earlier tokens that equal the query's, then that
        on the tokens after those; None if no equal tokens were given.
    """

    mixed: Weights
    total: Weights
    entropy: Weights
    largest: Weights
    signed: Weights
    far: Weights | None = None
    pooled: Weights | None = None
    equal: Weights | None = None


class EqualGroups(NamedTuple):
    """Groups of equal tokens: their order, and places (group, number), filled up with −1."""

    order: Ints
    places: Ints


class Equals:
    """The equal tokens of ids (order, token); queries see keys from ``first`` to ``past``."""

    def __init__(self, ids: Ints, first: Ints, past: Ints) -> None:
        self.ids = ids
        self._first, self._past = first, past

    @property
    def orders(self) -> int:
        return len(self.ids)

    @cached_property
    def sorted(self) -> tuple[Ints, Ints]:
        """Return two arrays (order, token) about the tokens sorted by their ids.

        The first has their places; the second has, for each sorted place, the index in this sorting
        at which its group of equal ids begins.
        """
        places = np.argsort(self.ids, axis=-1, kind="stable")
        ids = np.take_along_axis(self.ids, places, 1)
        new = np.diff(ids, axis=-1, prepend=ids[:, :1] - 1) != 0
        begins = np.where(new, np.arange(ids.shape[1]), 0)
        return places, np.maximum.accumulate(begins, axis=-1)

    @cached_property
    def latest(self) -> Ints:
        """Return for each token (order, token) the last equal one before it; −1 without one."""
        places, begins = self.sorted
        before = np.where(begins < np.arange(places.shape[1]), np.roll(places, 1, axis=-1), -1)
        latest = np.empty_like(places)
        np.put_along_axis(latest, places, before, 1)
        return latest

    @property
    def groups(self) -> Sequence[EqualGroups]:
        """Return the groups of equal tokens that are so many that ``pairs`` leaves them out."""
        return self._split[0]

    @property
    def pairs(self) -> NDArray[np.int32]:
        """Return (query, key, order) of each pair of equal tokens not in ``groups``, as (3, pair).

        The query sees the key. The key equals the query, or follows a token that does: then the
        order is greater by the number of orders. Pairs are sorted by the query.
        """
        return self._split[1]

    @cached_property
    def _split(self) -> tuple[Sequence[EqualGroups], NDArray[np.int32]]:
        large: dict[int, list[tuple[int, Ints]]] = {}
        pairs, every = [np.empty((3, 0), np.int32)], np.arange(self.ids.shape[1])
        for order, (places, begins) in enumerate(zip(*self.sorted, strict=True)):
            starts = np.flatnonzero(begins == every)
            sizes = np.diff(starts, append=len(every))
            for start, size in zip(starts[sizes > _FEW], sizes[sizes > _FEW], strict=True):
                of_size = large.setdefault(int(size - 1).bit_length(), [])
                of_size.append((order, places[start : start + size]))
            earlier = np.where(np.repeat(sizes, sizes) > _FEW, 0, every - begins)
            late, first = np.repeat(every, earlier), np.cumsum(earlier) - earlier
            early = begins[late] + np.arange(len(late)) - np.repeat(first, earlier)
            for after in range(2):
                queries, keys = places[late], places[early] + after
                seen = (keys < queries) & (keys >= self._first[queries])
                seen &= keys < self._past[queries]
                numbers = np.full(len(late), order + after * self.orders)
                pairs.append(np.stack([queries, keys, numbers])[:, seen].astype(np.int32))
        groups = []
        for same in large.values():
            filled = np.full((len(same), max(len(members) for _, members in same)), -1)
            for row, (_, places) in zip(filled, same, strict=True):
                row[: len(places)] = places
            groups.append(EqualGroups(np.asarray([order for order, _ in same]), filled))
        every_pair = np.concatenate(pairs, 1)
        return groups, every_pair[:, np.argsort(every_pair[0], kind="stable")]


class ReducedLayer(Protocol):
    """A layer's attention over a text, of which sums are computed; ``first`` ≤ keys < ``past``."""

    @property
    def heads(self) -> int: ...
    @property
    def first(self) -> Ints: ...
    @property
    def past(self) -> Ints: ...

    def parts(self, numbers: int) -> Iterator[tuple[Sequence[int], ReducedLayer]]:
        """Yield groups of heads, each with the layer cut to them, so that they fit in memory.

        numbers: how many values the caller keeps for each row of a head.
        """

    def reduced(
        self,
        columns: Columns,
        buckets: int | None = None,
        equals: Equals | None = None,
        *,
        far: bool = False,
    ) -> Reduced:
        """Return sums over the keys for each query of each head, without storing any weight.

        columns: (key, column), the factors of the weights in ``Reduced.mixed``. buckets: how many
        tokens a bucket of ``Reduced.pooled`` has; None computes none. equals: the text's equal
        tokens, for ``Reduced.equal``. far: True computes ``Reduced.far``.
        """

    def rows(self, start: int, stop: int) -> Weights:
        """Return the attention weights (head, rows, key) of the queries from start to stop."""

    def outputs(self, queries: Sequence[int]) -> Weights:
        """Return the heads' outputs (head, row, dim) of some queries; only while the layer runs."""

    def strongest(self, number: int, hidden: Bools) -> list[list[tuple[float, int, int]]]:
        """Return heads' largest (weight, query, key) in order, but for ``hidden`` keys (key,)."""

    def single(self, keys: Ints) -> Weights:
        """Return the weight (head, query) of each query on one key. keys: (query,), all seen."""

    def sources(self, shares: Weights) -> Weights:
        """Return Σᵢ shares[row, i]·Ā[i, key] (row, key), where Ā averages the heads."""


class _Ranges:
    """Rows whose queries see ranges of keys; see ``ReducedLayer``."""

    def __init__(self, text: TextFacts, first: Ints, past: Ints) -> None:
        self.text = text
        self.first, self.past = first, np.maximum(past, first)
        self.queries = np.arange(len(first))
        self.visible = self.past - self.first

    def sees(self, marked: Bools) -> Ints:
        before = _summed(marked.astype(np.int64))
        return np.asarray(before[self.past] - before[self.first])

    def inside(self, keys: Ints) -> Bools:
        """Return a mask (query,): whether each query sees its key in ``keys`` (query,)."""
        return np.asarray((keys >= self.first) & (keys < self.past))


class EvenRows(_Ranges):
    """The rows (1, query) of uniform attention over the keys that each query sees.

    asked: the columns that formulas have summed these rows over. The same formulas will ask for
        them of every other layer, which computes them all at once.
    """

    def __init__(self, text: TextFacts, first: Ints, past: Ints) -> None:
        super().__init__(text, first, past)
        self.asked: list[Columns] = []
        self._share = np.divide(1, self.visible, where=self.visible > 0, out=np.zeros(len(first)))
        self.total = np.asarray(self.visible > 0, np.float64)[None]
        self.largest = self._share[None]
        self.entropy = np.log(np.maximum(self.visible, 1))[None]

    @property
    def weights(self) -> Weights:
        keys = np.arange(len(self.text.keys))
        seen = (keys >= self.first[:, None]) & (keys < self.past[:, None])
        return rescaled(seen.astype(np.float64))[None]

    def mixed(self, columns: Columns) -> Weights:
        self.asked += [columns] if columns.ndim == 1 else [*columns.T]
        return self._even(columns)

    def _even(self, columns: Columns) -> Weights:
        before = _summed(columns.astype(np.float64))
        sums = (before[self.past] - before[self.first]).T * self._share
        return np.asarray(sums.T)[None]

    @cached_property
    def columns(self) -> tuple[Mapping[bytes, int], Columns]:
        """Return the index of each column asked for until now, and the columns (key, column)."""
        known = {_name(column): column for column in self.asked}
        places = {name: at for at, name in enumerate(known)}
        none = np.empty((len(self.text.keys), 0), bool)  # columns of zeros and ones stay small
        every = [none, *(column[:, None] for column in known.values())]
        return places, np.concatenate(every, 1)

    def at(self, keys: Ints) -> Rows:
        inside = self.inside(keys)
        return np.where(inside, self._share, 0)[None], inside

    def signed(self) -> Weights:
        return np.asarray(self._even(np.arange(len(self.text.keys))) - self.queries * self.total)

    def far(self) -> Weights:
        before = _summed(np.arange(len(self.text.keys), dtype=np.float64))
        first, past, own = self.first, self.past, np.clip(self.queries, self.first, self.past)
        back = self.queries * (own - first) - (before[own] - before[first])
        ahead = before[past] - before[own] - self.queries * (past - own)
        return np.asarray((back + ahead) * self._share)[None]

    @cached_property
    def equals(self) -> Equals:
        return Equals(self.text.orders, self.first, self.past)

    @cached_property
    def has_equal(self) -> tuple[Bools, Bools]:
        """Return masks (order, query): queries that see an equal token, or the one after it."""
        nearest = latest = self.equals.latest
        own = nearest == self.queries - 1  # what follows the token just before is the query itself
        before = np.where(own, np.take_along_axis(latest, np.maximum(latest, 0), 1), nearest)
        has_equal, has_next = (
            (keys >= 0) & self.inside(keys + after) for after, keys in enumerate((nearest, before))
        )
        return has_equal, has_next


class SummedRows(_Ranges):
    """All rows (head, query) of one layer, of which a backend computes the sums.

    even: the rows of uniform attention over the same keys; the columns that formulas have asked of
        it are computed at once. heads: the indices of the heads to measure; None for all.
    buckets: see ``ReducedLayer.reduced``.
    """

    def __init__(
        self,
        text: TextFacts,
        layer: ReducedLayer,
        even: EvenRows,
        heads: Sequence[int] | None = None,
        buckets: int | None = None,
    ) -> None:
        super().__init__(text, layer.first, layer.past)
        self._layer, self._even = layer, even
        self._index, every = even.columns
        everyone = heads is None or list(heads) == list(range(layer.heads))
        self._heads = slice(None) if everyone else list(heads or ())
        sums = layer.reduced(
            every,
            buckets,
            None if text.attention.kind == "cross" else even.equals,
            far=not text.attention.causal,
        )
        parts: Any = (None if part is None else part[self._heads] for part in sums)
        self.sums = Reduced(*parts)
        self.total, self.entropy, self.largest = self.sums[1:4]

    @property
    def weights(self) -> Weights:
        return self._layer.rows(0, len(self.queries))[self._heads]

    def mixed(self, columns: Columns) -> Weights:
        names = [_name(column) for column in np.atleast_2d(columns.T)]
        if all(name in self._index for name in names):
            sums = self.sums.mixed[..., [self._index[name] for name in names]]
        else:
            sums = self._layer.reduced(columns.reshape(len(columns), -1)).mixed[self._heads]
        return sums if columns.ndim == 2 else sums[..., 0]

    def at(self, keys: Ints) -> Rows:
        inside = self.inside(keys)
        values = self._layer.single(np.where(inside, keys, np.minimum(self.first, self.past - 1)))
        return counted(values[self._heads], inside), inside

    def on_equal(self, after: int) -> Rows:
        assert self.sums.equal is not None
        return self.sums.equal[:, after], self._even.has_equal[after]

    def signed(self) -> Weights:
        return self.sums.signed

    def far(self) -> Weights:
        return -self.sums.signed if self.sums.far is None else self.sums.far


_NUMBERS = 24  # how many numbers of a row exist at once beside columns and equal tokens


def summed_parts(
    text: TextFacts,
    layer: ReducedLayer,
    even: EvenRows,
    heads: Sequence[int],
    buckets: int | None = None,
) -> Iterator[tuple[Mapping[int, int], ReducedLayer, SummedRows]]:
    """Yield the rows of some heads of a layer at a time, so that their sums fit a fixed memory.

    Each item is: by the index of a head in the part its index in the layer, the part, and its rows
    of these heads. heads: those to measure. The other arguments are those of ``SummedRows``.
    """
    numbers = _NUMBERS + 2 * (even.columns[1].shape[1] + len(text.orders))
    for places, part in layer.parts(numbers):
        if kept := {at: head for at, head in enumerate(places) if head in heads}:
            yield kept, part, SummedRows(text, part, even, [*kept], buckets)


def _name(column: Columns) -> bytes:
    return column.astype(np.float32).tobytes()


def _summed(columns: Columns) -> Columns:
    """Return the sums of the values before each key, (1 + keys, ...)."""
    return np.concatenate([np.zeros_like(columns[:1]), columns.cumsum(0)])
