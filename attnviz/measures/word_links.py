"""Finds the links between words of a text that heads make beyond their habits, and beyond chance.

A large weight is no news if the head gives it at every place: a previous-token head, a sink. So a
link of a head is compared with the *habit* of the same head on the same text: the mean of its other
weights at this distance, or to this word, whichever is more. Weights to a word are compared as
multiples of uniform attention over the keys that the query sees; weights at a distance in that unit
or as they are, whichever foretells the head's weights better (a previous-token head gives each
query's key the same, a diffuse head less the more keys there are). Each mean is shrunk towards
uniform attention by ``_PRIOR`` observations, for a text has few. What the weight has above the
habit is the *excess*.

One excess is no evidence: a head with random weights has some as well. The evidence is that heads
agree, and the control keeps what makes them agree for no reason: they all read the same residual
stream, where a word that is unlike the others draws much or little attention in every head. In a
*reversed* head the scores outside the sink have the other sign. Random weights are as likely as
their negatives, so that a random head is as likely as its reverse. The statistic of a link is the
sum over heads of its excess minus its excess in the reversed head. In each of ``DRAWS`` draws every
head is reversed or not at random, for all words alike; the chance of a link is the share of draws
in which some pair of words reaches its sum (a max-statistic, Westfall & Young 1993,
"Resampling-Based Multiple Testing"; of sign flips, Winkler et al. 2014, "Permutation inference for
the general linear model", NeuroImage 92). No further pass of the model is needed.

Left out: special tokens, the first token of causal attention, punctuation, a word and itself.
Tokens of one word count together: weight to a word is the sum over its tokens, weight from it the
mean (Clark et al. 2019).

Measured by ``tests/benchmarks/bench_links.py``: of models with random weights and the usual
initialisation (a standard deviation of 0.02) no text has a link that ``beats_chance``; with 0.3 and
0.5, which make heads peaked, 46 of 1,920 texts have one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.bootstrap import CHANCE, DRAWS
from attnviz.measures.sinks import even_weights, sink_of, visible_keys
from attnviz.measures.words import is_mark, word_ranges, word_text
from attnviz.records import AttentionRecord, Bools, Tokens

Floats = NDArray[np.float64]

AGREEING = 0.1
"""The excess above which a head counts as one that makes the link; two must, or it is no finding:
in nearly uniform heads, as of a model before training, tiny excesses agree."""

FEWEST_HEADS = 8  # the fewest heads that can agree beyond chance

MOST_CELLS = 2**23
"""The most pairs of words times heads that are tested, with at most four times as many pairs of
tokens: some seconds of work."""

_MOST_DRAWN = 4096  # the most pairs that a draw looks at: where reversing heads changes most

NO_MORE = 0.05  # a weight that is less than this above the head's habit is as usual
_PRIOR = 2.0
_ROUNDING = 1e-5
# The least weight with a score, and the nats by which scores below may differ.
_LEAST, _TIED = 1e-38, 20.0
_LISTED = 30
_UNKNOWN = ("[UNK]", "<unk>")


class WordLink(NamedTuple):
    """A link from one word to another that the heads of a model make together.

    The excess of a head is its weight above its habit, the weight that is usual for it. query, key:
    the tokens of the two words. layer, head: the head with the largest excess.
    weight, habit: of that head, in [0, 1]. heads: how many heads have an excess above ``AGREEING``.
    chance: the share of draws of reversed heads with such a link in some place, in (0, 1]; NaN if
        fewer than ``FEWEST_HEADS`` were measured.
    """

    query: range
    key: range
    layer: int
    head: int
    weight: float
    habit: float
    heads: int
    chance: float

    @property
    def beats_chance(self) -> bool:
        """Return True if ``chance`` is small enough and at least two heads make the link."""
        return self.chance < CHANCE and self.heads >= 2


class WordLinks(NamedTuple):
    """The tested links of a text, at most thirty in order, of so many heads and word pairs."""

    heads: int
    pairs: int
    links: tuple[WordLink, ...]


def agreed_links(record: AttentionRecord) -> WordLinks | None:
    """Return the links between words in which heads agree; None if there are too many to test."""
    queries, keys = map(_Axis, (record.queries, record.keys), sink_of(record))
    heads = sum(len(layer.heads) for layer in record.layers)
    cells = heads * len(queries.words) * len(keys.words)
    if cells > MOST_CELLS or heads * len(record.queries) * len(record.keys) > 4 * MOST_CELLS:
        return None
    apart = np.ones((len(queries.words), len(keys.words)), bool)
    if record.kind != "cross":
        apart &= ~np.eye(len(apart), dtype=bool)
    shape = len(record.queries), len(record.keys)
    ties = np.frombuffer(Random(0).randbytes(math.prod(shape)), np.uint8).reshape(shape) / 255
    beside_sink = np.repeat(~keys.sink, keys.sizes.astype(int))
    over_reversed = np.zeros((heads, *apart.shape), np.float32)
    best = _Best(apart.shape)
    pairs = np.zeros(apart.shape, bool)
    done = 0
    for layer in record.layers:
        seen = record.seen(layer)
        uniform = even_weights(seen)
        even = _by_word(queries, keys, uniform)
        tested = apart & queries.plain[:, None] & keys.plain & (even > 0)
        if record.causal:
            tested &= visible_keys(len(tested), len(tested), causal=True)
        pairs |= tested
        places = _Places.of(tested) if record.kind != "cross" else None
        for head, weights in zip(layer.heads, layer.weights, strict=True):
            known = np.nan_to_num(weights).astype(float)
            linked = _by_word(queries, keys, known)
            habit = _habit(linked, even, tested, places)
            excess = np.where(tested, np.maximum(linked - habit, 0), 0)
            best.take((layer.layer, head), excess, linked, habit)
            turned = _reversed(known, (uniform > 0) & beside_sink, ties)
            other = _by_word(queries, keys, turned)
            usual = _habit(other, even, tested, places)
            over_reversed[done] = excess - np.where(tested, np.maximum(other - usual, 0), 0)
            done += 1
    return _links(queries.words, keys.words, over_reversed, best, pairs)


class _Axis:
    """The words on one axis of the attention, with their tokens, and which are tested."""

    def __init__(self, tokens: Tokens, sink: Bools) -> None:
        self.words = word_ranges(tokens)
        self.starts = [word.start for word in self.words]
        self.sizes = np.asarray([len(word) for word in self.words], float)
        self.sink: Bools = np.asarray([sink[list(word)].any() for word in self.words])
        texts = [word_text(tokens, word) for word in self.words]
        known = [text not in _UNKNOWN and not all(map(is_mark, text)) for text in texts]
        self.plain: Bools = ~self.sink & known


def _by_word(queries: _Axis, keys: _Axis, weights: NDArray[np.floating]) -> Floats:
    """Return weights between words: sums over the key's tokens, means over the query's."""
    received = np.add.reduceat(weights, keys.starts, axis=1, dtype=float)
    sent = np.add.reduceat(received, queries.starts, axis=0)
    return np.asarray(sent / queries.sizes[:, None])


class _Places(NamedTuple):
    """How far apart the words of each pair are, and how many tested pairs are as far apart.

    distance: (query, key), query − key as an index from 0, that is plus the number of keys − 1.
    cells: (distance,), the number of tested pairs with that distance.
    """

    distance: NDArray[np.intp]
    cells: Floats

    @classmethod
    def of(cls, tested: Bools) -> _Places:
        queries, keys = tested.shape
        distance = np.arange(queries)[:, None] - np.arange(keys) + keys - 1
        cells = np.bincount(distance[tested], minlength=queries + keys)
        return cls(distance, cells.astype(float))

    def means(self, values: Floats, prior: Floats) -> Floats:
        """Return for each pair the mean of others at its distance, shrunk to ``prior``."""
        sums = np.bincount(self.distance.ravel(), values.ravel(), len(self.cells))
        others = np.maximum(self.cells - 1, 0)[self.distance] + _PRIOR
        return np.asarray((sums[self.distance] - values + _PRIOR * prior) / others)


def _habit(linked: Floats, even: Floats, tested: Bools, places: _Places | None) -> Floats:
    """Return the usual weight (query, key) of a head between words, by key and by distance."""
    more = np.divide(linked, even, out=np.zeros_like(linked), where=tested)
    others = np.maximum(tested.sum(0) - 1, 0) + _PRIOR
    habits = np.maximum((more.sum(0) - more + _PRIOR) / others, 1) * even
    if places is not None:
        weights = np.where(tested, linked, 0)
        distant = [places.means(weights, even), places.means(more, np.ones_like(even)) * even]
        errors = [float(np.square(usual - linked)[tested].sum()) for usual in distant]
        habits = np.maximum(habits, distant[errors.index(min(errors))])
    return np.asarray(np.minimum(habits, 1))


def _reversed(linked: Floats, seen: Bools, ties: Floats) -> Floats:
    """Return the weights (query, key) that a head has if its scores change their sign.

    linked: (query, key), between tokens: a word of several tokens is not reversed as one, for the
        sum of its weights has no score. seen: the tokens that a query sees beside the sink; they
        keep their sum. ties: in [0, 1], the order of tokens whose weight is too small for a number.
    """
    scores = np.log(np.maximum(linked, _LEAST)) - np.where(linked < _LEAST, _TIED * ties, 0)
    lowest = np.where(seen, scores, np.inf).min(1, keepdims=True, initial=np.inf)
    turned = np.where(seen, np.exp(np.where(seen, lowest - scores, 0)), 0)
    total = np.where(seen, linked, 0).sum(1, keepdims=True)
    factors: NDArray[np.float64] = np.divide(
        total, turned.sum(1, keepdims=True), out=total, where=total > 0
    )
    return turned * factors


class _Best:
    """For each word pair (query, key) the head with the largest excess, and how many agree."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.excess, self.weight, self.habit = (np.zeros(shape) for _ in range(3))
        self.heads = np.zeros(shape, int)
        self.layer, self.head = np.zeros(shape, int), np.zeros(shape, int)

    def take(self, head: tuple[int, int], excess: Floats, weight: Floats, habit: Floats) -> None:
        self.heads += excess > AGREEING
        more = excess > self.excess
        for kept, new in ((self.excess, excess), (self.weight, weight), (self.habit, habit)):
            np.copyto(kept, new, where=more)
        self.layer[more], self.head[more] = head


def _links(
    queries: Sequence[range],
    keys: Sequence[range],
    over_reversed: NDArray[np.float32],
    best: _Best,
    tested: Bools,
) -> WordLinks:
    """Return the links of a text. over_reversed: (head, query, key), excess minus reversed excess.

    queries, keys: the tokens of the words. best: the heads furthest above usual. tested: (query,
        key), which pairs of words count.
    """
    heads = len(over_reversed)
    enough = heads >= FEWEST_HEADS
    sums = over_reversed.sum(0, dtype=float)
    drawn = _drawn(over_reversed) if enough else np.empty(0)
    order = np.where(best.excess > 0, sums, -np.inf) if enough else best.excess
    links = []
    for cell_number in np.argsort(-order, axis=None, kind="stable")[:_LISTED].tolist():
        cell = query, key = divmod(cell_number, len(keys))
        if not best.excess[cell]:
            break
        reached = int((drawn >= sums[cell] - _ROUNDING).sum())
        links.append(
            WordLink(
                queries[query],
                keys[key],
                layer=int(best.layer[cell]),
                head=int(best.head[cell]),
                weight=float(best.weight[cell]),
                habit=float(best.habit[cell]),
                heads=int(best.heads[cell]),
                chance=(1 + reached) / (1 + DRAWS) if enough else math.nan,
            )
        )
    return WordLinks(heads, int(tested.sum()), tuple(links))


def _drawn(over_reversed: NDArray[np.float32]) -> Floats:
    """Return each draw's largest sum over heads, of which random ones are reversed."""
    heads = len(over_reversed)
    spread = np.einsum("hqk,hqk->qk", over_reversed, over_reversed).ravel()
    chosen = np.argsort(-spread, kind="stable")[:_MOST_DRAWN]
    bits = np.frombuffer(Random(0).randbytes(DRAWS // 2 * heads), np.uint8) & 1
    signs = (2 * bits.astype(np.float32) - 1).reshape(-1, heads)
    sums = signs @ over_reversed.reshape(heads, -1)[:, chosen]
    return np.concatenate([sums.max(1), -sums.min(1)]).astype(float)
