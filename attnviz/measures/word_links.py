"""Finds the links between words of a text that heads make beyond their habits, and beyond chance.

A large weight is no news if the head gives it at every place: a previous-token head, a sink. So a
link of a head is compared with the *habit* of the same head on the same text: uniform attention
over the keys that the query sees, times how much more than uniform the head gives elsewhere at
this distance, or to this word from the other queries, whichever is more. The two means are shrunk
towards uniform attention by ``_PRIOR`` observations, for a text has few of each. What the weight
has above the habit is the *excess*.

One excess is no evidence: a head with random weights has some as well. The evidence is that heads
agree. The excess is summed over all heads, and compared with the same sum if each head chose, in
each row, one of its own excesses at random: ``evidence.upper_deviate`` gives the tail of that sum
from its mean, variance and third cumulant. The chance of a link is that tail times the number of
pairs of words that are tested (Bonferroni): how many texts of a hundred would have such a link in
some place if heads were independent. No further pass of the model is needed.

Left out: special tokens, the first token of causal attention, punctuation, a word and itself.
Tokens of one word count together: weight to a word is the sum over its tokens, weight from it the
mean (Clark et al. 2019).

Measured by ``tests/benchmarks/bench_links.py``: of models with random weights and the usual
initialisation (``mha``; GPT-2, BERT, Llama with a standard deviation of 0.02) no text has a link
that ``beats_chance``. With 0.3 and 0.5, which make heads peaked, fewer than one text in a hundred
has one, of GPT-2 three: there the heads of all layers read nearly the same residual stream.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.evidence import upper_deviate
from attnviz.measures.rows import even_weights, visible_keys
from attnviz.measures.sinks import sink_of
from attnviz.measures.words import text_of, word_ranges
from attnviz.records import AttentionRecord, Tokens

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

CHANCE = 0.01
"""The chance below which a link is said to beat chance."""

AGREEING = 0.1
"""The excess above which a head counts as one that makes the link; two must, or it is no finding:
in nearly uniform heads, as of a model before training, tiny excesses agree."""

FEWEST_HEADS = 8
"""The fewest heads that can agree beyond chance."""

MOST_CELLS = 2**26
"""The most pairs of words times heads that are tested: two seconds of work."""

_PRIOR = 2.0
_LISTED = 30
_UNKNOWN = ("[UNK]", "<unk>")


class WordLink(NamedTuple):
    """A link from one word to another that the heads of a model make together.

    The excess of a head is its weight above its habit, the weight that is usual for it. query, key:
    the tokens of the two words. layer, head: the head with the largest excess.
    weight, habit: of that head, in [0, 1]. heads: how many heads have an excess above ``AGREEING``.
    chance: how likely such a link is by chance in a text, at most 1; NaN if fewer than
        ``FEWEST_HEADS`` were measured.
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
        """Return whether chance hardly brings such a link, and at least two heads make it."""
        return self.chance < CHANCE and self.heads >= 2


class WordLinks(NamedTuple):
    """The tested links of one text, at most thirty, the least likely by chance first.

    Of fewer than ``FEWEST_HEADS`` heads, those with the largest excess first.
    heads: how many heads were measured. pairs: how many word pairs were tested.
    """

    heads: int
    pairs: int
    links: tuple[WordLink, ...]


def agreed_links(record: AttentionRecord) -> WordLinks | None:
    """Return the links between words in which heads agree; None if there are too many to test."""
    queries, keys = (
        _Axis(tokens, sink)
        for tokens, sink in zip((record.queries, record.keys), sink_of(record), strict=True)
    )
    heads = sum(len(layer.heads) for layer in record.layers)
    if heads * len(queries.words) * len(keys.words) > MOST_CELLS:
        return None
    apart = np.ones((len(queries.words), len(keys.words)), bool)
    if record.kind != "cross":
        apart &= ~np.eye(len(apart), dtype=bool)
    sums = _Sums(np.zeros(apart.shape), np.zeros((2, len(apart))), np.zeros(apart.shape, bool))
    best = _Best(apart.shape)
    for layer in record.layers:
        seen = record.seen(layer)
        even = _by_word(queries, keys, even_weights(seen))
        tested = apart & queries.plain[:, None] & keys.plain & (even > 0)
        if record.causal:
            tested &= visible_keys(len(tested), len(tested), causal=True)
        places = _places(tested) if record.kind != "cross" else None
        for head, weights in zip(layer.heads, layer.weights, strict=True):
            linked = _by_word(queries, keys, np.nan_to_num(weights))
            habit = _habit(linked, even, tested, places)
            excess = np.where(tested, np.maximum(linked - habit, 0), 0)
            sums.add(excess, tested)
            best.take((layer.layer, head), excess, linked, habit)
    return _links(queries.words, keys.words, sums, best, heads)


class _Axis:
    """The words on one axis of the attention, with their tokens, and which are tested."""

    def __init__(self, tokens: Tokens, sink: Bools) -> None:
        self.words = word_ranges(tokens)
        self.starts = [word.start for word in self.words]
        self.sizes = np.asarray([len(word) for word in self.words], float)
        texts = [text_of(tokens.texts[word.start : word.stop]).strip() for word in self.words]
        self.plain: Bools = np.asarray(
            [
                not (text in _UNKNOWN or all(map(_is_mark, text)) or sink[list(word)].any())
                for text, word in zip(texts, self.words, strict=True)
            ]
        )


def _by_word(queries: _Axis, keys: _Axis, weights: NDArray[np.floating]) -> Floats:
    """Return attention weights between words from those between tokens.

    They are the sum over the key word's tokens, the mean over the query word's. weights: (query,
    key) between tokens.
    """
    received = np.add.reduceat(weights, keys.starts, axis=1, dtype=float)
    sent = np.add.reduceat(received, queries.starts, axis=0)
    return np.asarray(sent / queries.sizes[:, None])


def _is_mark(letter: str) -> bool:
    """Return True if a character is punctuation, a sign such as a plus, or invisible.

    No emoji is.
    """
    category = unicodedata.category(letter)
    return category[0] == "P" or category in ("Sm", "Sc", "Sk", "Cc", "Cf")


class _Places(NamedTuple):
    """How far apart the words of each pair are, and how many tested pairs are as far apart.

    distance: (query, key), query − key as an index from 0, that is plus the number of keys − 1.
    cells: (distance,), the number of tested pairs with that distance.
    """

    distance: NDArray[np.intp]
    cells: Floats


def _places(tested: Bools) -> _Places:
    queries, keys = tested.shape
    distance = np.arange(queries)[:, None] - np.arange(keys) + keys - 1
    return _Places(distance, np.bincount(distance[tested], minlength=queries + keys).astype(float))


def _habit(linked: Floats, even: Floats, tested: Bools, places: _Places | None) -> Floats:
    """Return the weight (query, key) between words that is usual for a head: its habit.

    linked, even: (query, key), the weights of the head and of uniform attention.
    tested: boolean (query, key), the word pairs that count.
    places: the distance of each word pair; None leaves habits by distance out.
    """
    more = np.divide(linked, even, out=np.zeros_like(linked), where=tested)
    others = np.maximum(tested.sum(0) - 1, 0) + _PRIOR
    habits = np.maximum((more.sum(0) - more + _PRIOR) / others, 1)
    if places is not None:
        size = len(places.cells)
        at = np.bincount(places.distance.ravel(), more.ravel(), minlength=size)
        others = np.maximum(places.cells - 1, 0) + _PRIOR
        distant = (at[places.distance] - more + _PRIOR) / others[places.distance]
        habits = np.maximum(habits, distant)
    return np.asarray(np.minimum(habits * even, 1))


class _Sums(NamedTuple):
    """Sums over heads of attention weights minus the heads' usual weights, by word pair.

    above: (query, key), the excess minus its mean over the row. cumulants: (2, query), the second
        and the third cumulant of the row's excess. tested: (query, key), which cells count.
    """

    above: Floats
    cumulants: Floats
    tested: Bools

    def add(self, excess: Floats, tested: Bools) -> None:
        choices = np.maximum(tested.sum(1), 1)
        square = excess * excess
        mean, second, cube = (
            total / choices
            for total in (excess.sum(1), square.sum(1), np.einsum("qk,qk->q", square, excess))
        )
        self.above[...] += np.where(tested, excess - mean[:, None], 0)
        self.cumulants[...] += second - mean**2, cube - 3 * mean * second + 2 * mean**3
        self.tested[...] |= tested


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
    queries: Sequence[range], keys: Sequence[range], sums: _Sums, best: _Best, heads: int
) -> WordLinks:
    pairs = int(sums.tested.sum())
    second, third = sums.cumulants[:, :, None]
    deviates = np.where(best.excess > 0, upper_deviate(sums.above, second, third), -math.inf)
    links = []
    order = deviates if heads >= FEWEST_HEADS else best.excess
    for place in np.argsort(-order, axis=None, kind="stable")[:_LISTED].tolist():
        query, key = divmod(place, len(keys))
        cell = query, key
        if not best.excess[cell]:
            break
        tail = math.erfc(float(deviates[cell]) / math.sqrt(2)) / 2
        links.append(
            WordLink(
                queries[query],
                keys[key],
                layer=int(best.layer[cell]),
                head=int(best.head[cell]),
                weight=float(best.weight[cell]),
                habit=float(best.habit[cell]),
                heads=int(best.heads[cell]),
                chance=min(pairs * tail, 1.0) if heads >= FEWEST_HEADS else math.nan,
            )
        )
    return WordLinks(heads, pairs, tuple(links))
