"""Formulas of measures, computed from some rows at a time, so that no whole matrix is in memory.

A formula takes rows of attention and returns a value for each row, and whether that row counts. The
measure is the mean over all rows that count. ``registry`` describes each measure. What a formula
can ask of rows is ``AttentionRows``; ``reduced`` answers it for long texts without any weight.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.registry import MEASURES, NEAR, Measure, Need, View
from attnviz.measures.sinks import even_weights, visible_keys
from attnviz.records import Bools as Bools
from attnviz.records import Ints, Kind, Tokens

Weights = NDArray[np.floating]
Columns = NDArray[Any]  # numbers or booleans (key,) or (key, column)
Rows = tuple[Weights, Bools]  # values (..., rows), and whether each counts, (rows,) or (..., rows)
Formula = Callable[["AttentionRows"], Rows]
EqualFormula = Callable[["EqualRows"], Rows]

_RARE_SHARE = 0.1  # the share of a text's tokens that are called rare
_RARE_KINDS = 3
_STRIPS, _STRIP = 4, 16  # strips of the rows of a causal block, and the fewest rows of one
_DIAGONAL = 0.2  # the width g of the diagonal of two texts in ``_alignment_rows``
_MOST = 16  # the most pairs of equal tokens for each token of a text, if they are kept


@dataclass(frozen=True)
class Conditions:
    """The kind of attention that is measured, and facts that decide which measures apply.

    kind: self-attention, or which attention of an encoder–decoder.
    causal: whether a query sees no later key.
    view: the transform of the weights before they are measured, such as ``raw``.
    ranked: whether a larger token id is a rarer token, as in vocabularies learnt by frequency.
    """

    kind: Kind
    causal: bool
    view: View = "raw"
    ranked: bool = False

    @property
    def without_first(self) -> bool:
        """Return True if key 0 was removed from the weights before they are measured."""
        return self.view == "without-first"

    def lacks(self, measure: Measure) -> Need | None:
        """Return the first unmet requirement of a measure, or None if it can be measured."""
        met: Mapping[Need, bool] = {
            "one text": self.kind != "cross",
            "two texts": self.kind == "cross",
            "the future": not self.causal,
            "the first token": not self.without_first,
            "ranks": self.ranked,
        }
        return next((need for need in measure.needs if not met[need]), None)

    def formulas(self, names: Collection[str] | None = None) -> dict[str, EqualFormula]:
        """Return the formulas of ``names``, or all, that can be measured here, by name."""
        every = {**FORMULAS, **EQUAL_FORMULAS}
        kept = [name for name in MEASURES if name in every and (names is None or name in names)]
        return {name: every[name] for name in kept if self.lacks(MEASURES[name]) is None}

    def even_formulas(self, names: Collection[str] | None = None) -> dict[str, Formula]:
        """Return those of ``formulas`` that have a base rate: their value for uniform attention."""
        return {name: FORMULAS[name] for name in self.formulas(names) if name in FORMULAS}


class Pairs(NamedTuple):
    """Pairs of a query and an earlier key, in some orders of the tokens of a text.

    number: how many orders there are. queries, orders, keys: (pair,), by query, then by order.
    """

    number: int
    queries: Ints
    orders: Ints
    keys: Ints


@dataclass(frozen=True, eq=False)
class TextFacts:
    """Facts about a text that pattern scores of attention over it need.

    queries, keys: the tokens of the two axes; the same object for self-attention.
    attention: its kind, and facts about it.
    shuffles: number of shuffled orders of the tokens, for the base rate of identity measures.
    passing: whether attention comes in blocks, so that no second matrix should be stored.
    """

    queries: Tokens
    keys: Tokens
    attention: Conditions
    shuffles: int = 0
    passing: bool = False

    @cached_property
    def special(self) -> Bools:
        """Return a mask (query,) of the special tokens."""
        return np.asarray(self.queries.special, bool)

    @cached_property
    def separators(self) -> Bools:
        """Return a mask (key,) of the special tokens other than the first token."""
        mask = np.asarray(self.keys.special, bool)
        mask[:1] = False
        return mask

    @cached_property
    def delimiters(self) -> Bools:
        """Return a mask (key,) of punctuation and special tokens."""
        tokens = zip(self.keys.texts, self.keys.special, strict=True)
        return np.asarray([special or is_punctuation(text) for text, special in tokens], bool)

    @cached_property
    def marks(self) -> tuple[NDArray[np.int64], Bools]:
        """Return the ids of the delimiters, and a mask (key, kind): which key is which of them."""
        ids = np.where(self.delimiters, np.asarray(self.keys.ids, np.int64), -1)
        kinds = np.unique(ids[self.delimiters])
        return kinds, ids[:, None] == kinds

    @cached_property
    def orders(self) -> NDArray[np.int64]:
        """Return ids (1 + shuffles, token) in the text's order, then all but special shuffled."""
        ids = np.asarray(self.queries.ids, np.int64)
        orders = np.repeat(ids[None], 1 + self.shuffles, axis=0)
        if not self.shuffles:  # NumPy imports its generators at their first use
            return orders
        free = np.flatnonzero(~self.special)
        generator = np.random.default_rng(len(ids))
        for order in orders[1:]:
            order[free] = ids[generator.permutation(free)]
        return orders

    @cached_property
    def equals(self) -> tuple[Pairs, Pairs] | None:
        """Return the pairs of equal tokens in all ``orders``; see ``equal_pairs``."""
        return equal_pairs(self.orders)

    @cached_property
    def rare(self) -> Bools:
        """Return a mask (key,) of rare tokens: the last tenth of the text's tokens by rank.

        Special tokens are left out. If the tenth has fewer than three different tokens, no key is
        rare: that would measure attention to a word, not to rarity.
        """
        ids = np.where(self.keys.special, -1, np.asarray(self.keys.ids, np.int64))
        count = int(_RARE_SHARE * (ids >= 0).sum())
        rare: Bools = np.asarray(ids >= np.sort(ids)[-max(count, 1)])
        enough = count > 0 and len(set(ids[rare])) >= _RARE_KINDS and rare.mean() <= 2 * _RARE_SHARE
        return rare if enough else np.zeros(len(ids), bool)


@lru_cache(65_536)  # a corpus has the same tokens in every text
def is_punctuation(text: str) -> bool:
    """Return whether a token has only punctuation marks, symbols and blanks."""
    mark = text.strip()
    return bool(mark) and all(unicodedata.category(letter)[0] in "PS" for letter in mark)


class AttentionRows(Protocol):
    """Rows of attention over a text: what a formula can ask of them.

    Each value is (..., rows). text: the facts of the text. queries: the index of each row's query.
    visible: how many keys it can attend to. weights: (..., rows, keys), all of them at once, for
    which a long text has no room. total: the sum of each row's weights; less than one with a
    learned sink. entropy: in nats. largest: the largest weight of each row.
    """

    @property
    def text(self) -> TextFacts: ...
    @property
    def queries(self) -> NDArray[np.int64]: ...
    @property
    def visible(self) -> NDArray[np.int64]: ...
    @property
    def weights(self) -> Weights: ...
    @property
    def total(self) -> Weights: ...
    @property
    def entropy(self) -> Weights: ...
    @property
    def largest(self) -> Weights: ...

    def mixed(self, columns: Columns) -> Weights:
        """Return Σⱼ A[i, j]·columns[j] for columns (key,) or (key, column), by row."""

    def sees(self, marked: Bools) -> NDArray[np.int64]:
        """Return how many keys of a mask (key,) each row can attend to, (rows,)."""

    def at(self, keys: NDArray[np.int64]) -> Rows:
        """Return each row's weight on its key in ``keys`` (rows,), and which rows see their key."""

    def signed(self) -> Weights:
        """Return each row's mean signed distance to its keys in tokens, Σⱼ A[i, j]·(j − i)."""

    def far(self) -> Weights:
        """Return each row's mean distance to its keys in tokens, Σⱼ A[i, j]·|i − j|."""


class EqualRows(AttentionRows, Protocol):
    """Rows of attention that also know which tokens of the text are equal."""

    def on_equal(self, after: int) -> Rows:
        """Return rows' weight (..., orders, rows) on earlier equal tokens, or those ``after``."""


@dataclass(frozen=True, eq=False)
class RowBlock:
    """A block of rows of attention weights over a text; its methods are those of EqualRows.

    text: the facts of the text. weights: (..., rows, keys); last keys that a causal block does not
        see may be left out. start: index of its first query.
    mask: (rows, keys), whether each query sees the key; None for that of ``Conditions.causal``.
    """

    text: TextFacts
    weights: Weights
    start: int = 0
    mask: Bools | None = None

    @cached_property
    def queries(self) -> NDArray[np.int64]:
        """Return the index in the text of each row's query."""
        return np.arange(self.start, self.start + self.weights.shape[-2])

    @cached_property
    def keys(self) -> NDArray[np.int64]:
        """Return the indices in the text of the block's keys."""
        return np.arange(self.weights.shape[-1])

    @cached_property
    def seen(self) -> Bools:
        """Return a mask (rows, keys) of the keys that a query sees and the transform leaves."""
        rows, keys = self.weights.shape[-2:]
        if self.mask is not None:
            seen = self.mask[:, :keys].copy()
        else:
            seen = visible_keys(rows, keys, self.text.attention.causal, self.start)
        seen[:, : int(self.text.attention.without_first)] = False
        return seen

    @cached_property
    def visible(self) -> NDArray[np.int64]:
        """Return how many keys each row's query can attend to."""
        return np.asarray(self.seen.sum(-1))

    @cached_property
    def entropy(self) -> Weights:
        """Return the entropy −Σ A ln A of each row in nats, with 0 ln 0 = 0."""
        weights, causal = self.weights, self.text.attention.causal
        rows, least = weights.shape[-2], np.finfo(weights.dtype).tiny
        total = np.empty(weights.shape[:-1], weights.dtype)
        strip = max(-(-rows // _STRIPS), _STRIP) if causal else max(rows, 1)
        for start in range(0, rows, strip):
            own = slice(start, start + strip)
            # No query of a strip sees a key after the last of them.
            seen = weights[..., own, : self.start + own.stop if causal else None]
            # The smallest normal number replaces zero: zero times its logarithm is zero.
            logarithms = np.maximum(seen, least)
            np.log(logarithms, out=logarithms)
            total[..., own] = -np.einsum("...k,...k->...", seen, logarithms)
        return np.asarray(np.maximum(total, 0.0) + 0.0)  # against rounding, and the sign of zero

    @cached_property
    def total(self) -> Weights:
        return np.asarray(self.weights.sum(-1))

    @cached_property
    def largest(self) -> Weights:
        return np.asarray(self.weights.max(-1))

    def mixed(self, columns: Columns) -> Weights:
        weights = self.weights
        return np.asarray(weights @ columns[: weights.shape[-1]].astype(weights.dtype))

    def sees(self, marked: Bools) -> NDArray[np.int64]:
        return np.asarray(self.seen[:, marked[: self.weights.shape[-1]]].sum(-1))

    def at(self, keys: NDArray[np.int64]) -> Rows:
        weights = self.weights
        inside = (keys >= 0) & (keys < weights.shape[-1])
        rows, shown = np.arange(len(keys)), np.where(inside, keys, 0)
        counts: Bools = np.asarray(inside & self.seen[rows, shown])
        return np.where(counts, weights[..., rows, shown], 0), counts

    def on_equal(self, after: int) -> Rows:
        if self.text.equals is not None:
            filtered = self.mask is not None or self.text.attention.without_first
            pairs, seen = self.text.equals[after], self.seen if filtered else None
            return mass_on_pairs(self.weights, pairs, self.start, seen)
        ids, queries, keys = self.text.orders, self.queries, self.keys
        before = np.roll(ids, after, axis=-1)[:, None, : len(keys)]
        # The first keys have no token before them; the key after a neighbour is the query itself.
        equal = (ids[:, queries, None] == before) & (keys >= after) & (keys < queries[:, None])
        return mass_on(self.weights, equal & self.seen)

    def signed(self) -> Weights:
        return np.asarray(self.mixed(np.arange(len(self.text.keys))) - self.queries * self.total)

    def far(self) -> Weights:
        if self.text.passing and self.text.attention.causal:
            return -self.signed()  # needs no second matrix
        gap = np.abs(self.queries[:, None] - self.keys[None, :]).astype(self.weights.dtype)
        return np.asarray(np.einsum("...rk,rk->...r", self.weights, gap))


# Equal tokens: few of most texts are equal. Their pairs are found once for a text, and the weights
# on them are picked from each layer. Where they are many, a product with a mask is faster.


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
    pairs = np.stack([queries[before], numbers[before], keys[before]])
    return Pairs(len(queries), *pairs[:, np.lexsort(pairs[1::-1])])


def mass_on_pairs(
    weights: Weights, pairs: Pairs, start: int, seen: Bools | None
) -> tuple[Weights, Bools]:
    """Return each row's summed weight on the keys of its pairs, and which rows have pairs.

    weights: (..., rows, keys). start: the query of the first row. seen: boolean (rows, keys), the
        pairs that count; None if all do. The results are (..., orders, rows) and (orders, rows).
    """
    *heads, rows, width = weights.shape
    first, past = np.searchsorted(pairs.queries, [start, start + rows])
    row, order, key = (column[first:past] for column in pairs[1:])
    places, cells = (row - start) * pairs.number + order, (row - start) * width + key
    if seen is not None:
        kept = seen.reshape(-1)[cells]
        places, cells = places[kept], cells[kept]
    values = np.zeros((*heads, pairs.number, rows), weights.dtype)
    counts = np.zeros((pairs.number, rows), bool)
    begins = np.flatnonzero(np.diff(places, prepend=-1))
    if len(begins):
        at = np.divmod(places[begins], pairs.number)[::-1]
        taken = np.take(weights.reshape(*heads, rows * width), cells, -1)
        values[(..., *at)] = np.add.reduceat(taken, begins, -1)
        counts[at] = True
    return values, counts


def mass_on(weights: Weights, keys: Bools) -> tuple[Weights, Bools]:
    """Return weights on keys (orders, rows, keys), (..., orders, rows), and rows that have some."""
    chosen = np.moveaxis(keys, 0, -1).astype(weights.dtype)  # (rows, keys, orders)
    heads = weights if weights.ndim > 2 else weights[None]
    sums = np.matmul(np.moveaxis(heads, -2, -3), chosen)  # (..., rows, heads, orders)
    values = np.moveaxis(sums, -3, -1)
    return values if weights.ndim > 2 else values[0], np.asarray(keys.any(-1))


# Values of rows are NumPy arrays, or torch tensors that stay on a GPU; whether a row counts is
# always NumPy. This module knows torch only by the methods of its tensors.


def alike(by_row: NDArray[Any], values: Weights) -> Any:
    """Return ``by_row`` as a tensor like ``values`` if these are one; otherwise unchanged."""
    if isinstance(values, np.ndarray):
        return by_row
    # From memory that is pinned a GPU reads while it computes, and nothing waits.
    given = values.new_empty(by_row.shape, device="cpu", pin_memory=values.is_cuda)
    given.numpy()[...] = by_row
    return given.to(values.device, non_blocking=True)


def counted(values: Weights, counts: Bools) -> Weights:
    """Return values (..., rows) with zeros in the rows for which ``counts`` is False."""
    if isinstance(values, np.ndarray):
        return np.where(counts, values, 0)
    return values.where(alike(counts, values).bool(), 0)


def summed(values: Weights, axis: int = -1) -> Any:
    """Return sums over an axis in float64; sums of a tensor stay on its device."""
    if isinstance(values, np.ndarray):
        return values.sum(axis, dtype=np.float64)
    double = values.new_empty(0).double().dtype
    return values.sum(axis, dtype=double)


def on_host(values: Any) -> NDArray[Any]:
    """Return values as a NumPy array."""
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


def all_on_host(values: Sequence[Any]) -> list[NDArray[Any]]:
    """Return values as NumPy arrays; tensors of one type come from a GPU in a single copy."""
    if not values or any(isinstance(tensor, np.ndarray) for tensor in values):
        return [on_host(tensor) for tensor in values]
    sizes = [tensor.numel() for tensor in values]
    whole = values[0].new_empty(sum(sizes))
    for part, tensor in zip(whole.split(sizes), values, strict=True):
        part.copy_(tensor.flatten())
    parts = np.split(on_host(whole), np.cumsum(sizes)[:-1])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, values, strict=True)]


def _every(block: AttentionRows) -> Bools:
    """Return True for each row, for measures in which all rows count."""
    return np.ones(len(block.queries), bool)


def _self_rows(block: AttentionRows) -> Rows:
    """Return each row's weight on its own token; rows that see nothing else do not count."""
    values, counts = block.at(block.queries)
    return values, counts & (block.visible > 1)


def _first_rows(block: AttentionRows) -> Rows:
    """Return each row's weight on key 0, the attention sink; the first row does not count."""
    return block.at(np.zeros_like(block.queries))[0], np.asarray(block.queries >= 1)


def _local_rows(block: AttentionRows) -> Rows:
    """Return rows' weight on keys at most ``NEAR`` away, if they see others, too."""
    ahead = 0 if block.text.attention.causal else NEAR
    values, seen = block.at(block.queries - NEAR)
    near = seen.astype(np.int64)
    for offset in range(1 - NEAR, ahead + 1):
        more, seen = block.at(block.queries + offset)
        values, near = values + more, near + seen
    return values, np.asarray(block.visible > near)


def _column_rows(block: AttentionRows, keys: Bools) -> Rows:
    """Return each row's weight on the keys of a mask (key,), and which rows see any of them."""
    return block.mixed(keys), block.sees(keys) > 0


def _rare_rows(block: AttentionRows) -> Rows:
    """Return each row's weight on rare tokens minus their share of the keys that it sees."""
    seen, weight = block.sees(block.text.rare), block.mixed(block.text.rare)
    return weight - alike(seen / np.maximum(block.visible, 1), weight), seen > 0


def _alignment_rows(block: AttentionRows) -> Rows:
    """Return each row's nearness to the diagonal of two texts, in [0, 1], and which rows count.

    It is Σⱼ A[i, j]·exp(−(i/N − j/M)² / 2g²), g = 0.2, over N queries and M keys: one minus the
    guided-attention loss of Tachibana et al. 2018, "Efficiently Trainable Text-to-Speech System",
    section 4.1.
    """
    text, weights = block.text, block.weights
    keys = np.arange(weights.shape[-1])
    gap = (block.queries / len(text.queries))[:, None] - keys / len(text.keys)
    near = np.exp(-(gap**2) / (2 * _DIAGONAL**2)).astype(weights.dtype)
    return np.einsum("...rk,rk->...r", weights, near), _every(block)


def _normalised_entropy_rows(block: AttentionRows) -> Rows:
    """Return each row's entropy divided by ln(number of keys it sees)."""
    counts = (block.visible > 1) & (block.queries >= 1)  # in encoders too: all are measured alike
    most = np.log(np.where(counts, block.visible, 2))
    return block.entropy / alike(most, block.entropy), counts


FORMULAS: Mapping[str, Formula] = {
    "previous": lambda block: block.at(block.queries - 1),
    "first": _first_rows,
    "self": _self_rows,
    "next": lambda block: block.at(block.queries + 1),
    "local": _local_rows,
    "separator": lambda block: _column_rows(block, block.text.separators),
    "delimiter": lambda block: _column_rows(block, block.text.delimiters),
    "rare": _rare_rows,
    "alignment": _alignment_rows,
    "entropy": lambda block: (block.entropy, _every(block)),
    "normalised_entropy": _normalised_entropy_rows,
    "distance": lambda block: (block.far(), _every(block)),
    # Special tokens do not count.
    "confidence": lambda block: (block.largest, ~block.text.special[block.queries]),
    "signed_distance": lambda block: (block.signed(), _every(block)),
}
"""Formulas by the names of ``registry``; relations and ``monotone`` are no means over rows."""

EQUAL_FORMULAS: Mapping[str, EqualFormula] = {
    "duplicate": lambda block: block.on_equal(0),
    "induction": lambda block: block.on_equal(1),
}
"""Formulas that ask which tokens are equal; their base rate is that of shuffled tokens."""


def scores_of(rows: EqualRows, names: Collection[str] | None = None) -> dict[str, Weights]:
    """Return measures (...) of all rows of a text by name (None: all); NaN where no row counts."""
    formulas = rows.text.attention.formulas(names)
    means = [_mean(*formula(rows)) for formula in formulas.values()]
    return dict(zip(formulas, all_on_host(means), strict=True))


class BaseRates(NamedTuple):
    """The pattern scores of uniform attention over the keys that each query sees.

    scores: by name; None if the text has no case of it. rows: by name, how many rows were averaged.
    """

    scores: Mapping[str, float | None]
    rows: Mapping[str, int]


def base_rates(text: TextFacts, names: Collection[str], seen: Bools, start: int = 0) -> BaseRates:
    """Return the pattern scores of uniform attention over the keys that each query sees.

    names: of the scores. seen: boolean (query, key). start: the index of the first query.
    """
    block = RowBlock(text, even_weights(seen), start, seen)
    values = {name: formula(block) for name, formula in text.attention.formulas(names).items()}
    scores = {name: float(_mean(*rows)) for name, rows in values.items()}
    counts = {name: rows if rows.ndim == 1 else rows[0] for name, (_, rows) in values.items()}
    return BaseRates(
        {name: None if math.isnan(score) else score for name, score in scores.items()},
        {name: int(rows.sum()) for name, rows in counts.items()},
    )


def _mean(values: Weights, counts: Bools) -> Weights:
    if counts.ndim == 2:  # identity: the text's own order
        values, counts = values[..., 0, :], counts[0]
    if not isinstance(values, np.ndarray):
        return summed(counted(values, counts)) / float(counts.sum() or np.nan)
    chosen = values[..., counts]
    if not chosen.shape[-1]:
        return np.full(chosen.shape[:-1], np.nan)
    # Contiguous in memory: with other strides the sum may differ in its last bit.
    return np.asarray(np.ascontiguousarray(chosen).mean(-1))


def centre_rows(weights: Weights) -> Weights:
    """Return each row's mean key index, weighted by attention: Σⱼ A[i, j]·j / Σⱼ A[i, j]."""
    positions = np.arange(weights.shape[-1]).astype(weights.dtype)
    total = weights.sum(-1)
    return np.asarray((weights @ positions) / np.where(total > 0, total, 1))
