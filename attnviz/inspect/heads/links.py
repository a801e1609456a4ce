"""Links between tokens: which head gives the most weight from one token to another.

A link joins two different places. The attention sink is left out: special tokens, and the first
token of causal attention, get most of the weight and say least. The weights are not rescaled
without the sink: a head that gives .97 to it would then have the strongest links of all.

A head may also link two places whatever their tokens are, for example a token and the one before.
So for a pair of words all other tokens except special ones are permuted, and the model reads each
such text: the mean weight of the pair in these texts is called chance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.labels import cut, numbered, token_labels, word_label
from attnviz.draw.provenance import share
from attnviz.engine.backend import backend_of
from attnviz.engine.observer import BlockFacts, to_numpy
from attnviz.errors import UsageError
from attnviz.measures.sinks import sink_of
from attnviz.measures.words import WordPlaces, word_text, words_of_tokens
from attnviz.models.model import Model
from attnviz.records import AttentionRecord, HeadsRecord, Input, Kind, Tokens

LONGEST = 14
"""The most columns of a token in a link on a first screen."""

A_HEAD = 2
"""The most links of one head in a list, which a previous-token head would fill otherwise."""


class Link(NamedTuple):
    """A link: the attention weight of one head from a query to a key."""

    layer: int
    head: int
    query: int
    key: int
    weight: float


def linking(record: AttentionRecord, sink: bool) -> NDArray[np.bool_]:
    """Return a mask (query, key) of links: two different tokens, and without ``sink`` no sink."""
    queries, keys = sink_of(record)
    shape = len(queries), len(keys)
    links = np.ones(shape, bool) if sink else ~queries[:, None] & ~keys[None, :]
    if record.kind != "cross":
        links &= ~np.eye(*shape, dtype=bool)
    return links


def between_words(record: AttentionRecord) -> NDArray[np.bool_]:
    """Return a mask (query, key) of cells that join two words; in cross attention all do."""
    if record.kind == "cross":
        return np.ones((len(record.queries), len(record.keys)), bool)
    starts = np.array([word.start for word in words_of_tokens(record.queries)])
    return np.asarray(starts[:, None] != starts)


def strongest_links(
    run: HeadsRecord, count: int, sink: bool = False, each: int = A_HEAD, *, unusual: bool = False
) -> list[Link]:
    """Return the ``count`` strongest links of all heads, strongest first.

    unusual: True ranks by how far the weight is above the head's mean weight at this distance or,
        if that is more, to this key.

    Each pair of tokens is listed once, with the head that links it most. Links between tokens of
    the same word are left out.
    """
    allowed = linking(run.record, sink) & between_words(run.record)
    queries, keys = allowed.shape
    distance = np.arange(queries)[:, None] - np.arange(keys) + keys - 1
    cells = np.maximum(np.bincount(distance[allowed], minlength=queries + keys), 1)
    links = list[tuple[float, Link]]()
    for layer, head, weights in run.record:
        ranked = shown = np.where(allowed, np.nan_to_num(weights), 0)
        if unusual:
            far = np.bincount(distance.ravel(), shown.ravel(), queries + keys) / cells
            to_key = shown.sum(0, dtype=float) / np.maximum(allowed.sum(0), 1)
            ranked = shown - np.maximum(far[distance], to_key)
        for query, key, above in _largest(ranked, 2 * each):
            links.append((above, Link(layer, head, query, key, float(shown[query, key]))))
    kept, heads = dict[tuple[int, int], Link](), Counter[tuple[int, int]]()
    for _, link in sorted(links, key=lambda ranked: -ranked[0]):
        if len(kept) < count and heads[link[:2]] < each and link[2:4] not in kept:
            kept[link[2:4]] = link
            heads[link[:2]] += 1
    return [*kept.values()]


def _largest(weights: NDArray[np.floating], count: int) -> list[tuple[int, int, float]]:
    """Return the ``count`` largest positive weights as (query, key, weight), largest first."""
    flat, keys = np.nan_to_num(weights).ravel(), weights.shape[1]
    places = np.arange(flat.size)
    if flat.size >= 2**14 and count < flat.size:  # sorting all would be too slow
        places = np.argpartition(flat, -count)[-count:]
    order = places[np.argsort(-flat[places], kind="stable")][:count].tolist()
    return [(at // keys, at % keys, float(flat[at])) for at in order if flat[at] > 0]


def head_links(run: HeadsRecord, layer: int, head: int, count: int, sink: bool) -> list[Link]:
    """Return the ``count`` largest weights of one head, also from a token to itself.

    In a causal map query 0, which sees only itself, is left out unless it is the only query.
    """
    record = run.record
    weights = run.weights(layer, head).copy()
    if not sink:
        weights[:, sink_of(record)[1]] = 0
    if record.causal and len(weights) > 1:
        weights[0] = 0
    return [Link(layer, head, *place) for place in _largest(weights, count)]


# One word ------------------------------------------------------------------------------------


def attention_from(run: HeadsRecord, span: Sequence[int]) -> NDArray[np.floating]:
    """Return weights (head, key) from a word, the mean over its tokens (Clark et al. 2019)."""
    return np.stack([weights[list(span)].mean(0) for _, _, weights in run.record])


def attention_to(run: HeadsRecord, span: range) -> NDArray[np.floating]:
    """Return weights (head, query) to a word, the sum over its tokens (Clark et al. 2019)."""
    return np.stack([weights[:, list(span)].sum(1) for _, _, weights in run.record])


def word_links(run: HeadsRecord, word: WordPlaces, sink: bool = False) -> list[list[Link]]:
    """Return two lists: each head's strongest link from a word, and to it, strongest first.

    The word stands in a link as its first token. A list is empty if the word is not on that axis.
    """
    record, both = run.record, (list[Link](), list[Link]())
    query_sink, key_sink = sink_of(record)
    for axis, (place, left_out) in enumerate(zip(word, (key_sink, query_sink), strict=True)):
        if place is None:
            continue
        weights = np.nan_to_num((attention_from, attention_to)[axis](run, place.span))
        weights[:, left_out & (not sink)] = 0
        if record.kind != "cross":
            weights[:, list(place.span)] = 0
        start = place.span.start
        for (layer, head, _), row in zip(record, weights, strict=True):
            other = int(row.argmax())
            query, key = (other, start) if axis else (start, other)
            if row[other] > 0:
                both[axis].append(Link(layer, head, query, key, float(row[other])))
        both[axis].sort(key=lambda link: -link.weight)
    return [*both]


# Names ---------------------------------------------------------------------------------------


def link_names(
    record: AttentionRecord, longest: int, *, words: bool = True
) -> tuple[list[str], list[str]]:
    """Return the word of each query and of each key as strings for a table.

    longest: the most characters of each. words: False names tokens instead. A name that repeats
    has the number of its first token.
    """
    queries, keys = (_unique(each, longest, words) for each in (record.queries, record.keys))
    return queries, keys


def _unique(tokens: Tokens, longest: int, words: bool) -> list[str]:
    labels = list(token_labels(tokens))
    spans = [range(place, place + 1) for place in range(len(tokens))]
    if words:
        spans = words_of_tokens(tokens)
        for place, word in enumerate(spans):
            if len(word) > 1:
                labels[place] = word_label([word_text(tokens, word)])
    counts = Counter(label for label, word in set(zip(labels, spans, strict=True)))
    names = []
    for label, word in zip(labels, spans, strict=True):
        number = numbered("", word.start) if counts[label] > 1 else ""
        names.append(cut(label, max(longest - len(number), 1)) + number)
    return names


def link_words(run: HeadsRecord, link: Link) -> str:
    """Return the tokens and the weight of a link, such as ``it → cat .29``."""
    queries, keys = link_names(run.record, LONGEST)
    return f"{queries[link.query]} → {keys[link.key]} {share(link.weight)}"


# A pair of words -----------------------------------------------------------------------------

DRAWS, SEED = 50, 0
_BATCH_CELLS = 2**23
"""The most weights of a layer that are computed at once: 32 MB."""

_ROUNDING = 1e-6
"""How far a weight in a batch may be from the same weight in a single text by rounding."""


class Direction(NamedTuple):
    """One direction of a word pair: the indices of the query word's and the key word's tokens."""

    queries: range
    keys: range


class PairLink(NamedTuple):
    """The attention of one head in one direction between the two words of a word pair.

    direction: the index in ``PairLinks.directions``. weight: from the first word to all tokens of
    the second, mean over the tokens of the first, in [0, 1]. chance: the mean weight over shuffled
    texts. reached: the share of these with at least this weight; NaN if some weight is NaN.
    """

    layer: int
    head: int
    direction: int
    weight: float
    chance: float
    reached: float

    @property
    def beats_chance(self) -> bool:
        """Return whether the weight is larger than in every shuffled text."""
        return self.reached == 0


class PairLinks(NamedTuple):
    """The result of testing a word pair: the heads that link both words, best evidence first.

    names: of each direction, such as ``it → animal``. directions: from one word to the other, and
        back, if a query sees the key. links: one for each head and direction, furthest from chance
        first. moved: the number of tokens that were shuffled.
    """

    names: Sequence[str]
    directions: Sequence[Direction]
    links: Sequence[PairLink]
    draws: int
    moved: int

    def reached(self, link: PairLink) -> str:
        """Return in how many shuffled texts the weight is at least that of a link: ``3 of 50``."""
        if math.isnan(link.reached):
            return f"? of {self.draws}"
        return f"{round(link.reached * self.draws)} of {self.draws}"


def pair_links(
    model: Model,
    record: AttentionRecord,
    words: tuple[WordPlaces, WordPlaces],
    text: Tokens,
    draws: int = DRAWS,
) -> PairLinks:
    """Measure the attention between two words in ``record`` and in texts with shuffled tokens.

    words: for each of the two its positions among the queries and the keys.
    text: the encoder's text if ``record`` is of a decoder; else it is not used.
    Raises UsageError if no query sees the key, or fewer than two tokens can be shuffled.
    """
    (first_query, first_key), (second_query, second_key) = words
    directions, names = [], []
    for query, key in ((first_query, second_key), (second_query, first_key)):
        if query is None or key is None:
            continue
        if record.kind != "cross" and set(query.span) & set(key.span):
            raise UsageError("--pair needs two places of the text: both words are the same one")
        if not record.causal or key.span.start < query.span.stop - 1:
            directions.append(Direction(query.span, key.span))
            sides = (record.queries, query.span), (record.keys, key.span)
            ends = [word_label(side.texts[span.start : span.stop]) for side, span in sides]
            names.append(" → ".join(ends))
    if not directions:
        raise UsageError("--pair: no query sees the key: one word must be in each text")
    inputs, moved = _shuffled(record, directions, text, draws)
    kept = {layer.layer: layer.heads for layer in record.layers}
    given = {(layer, head): _given(weights, directions) for layer, head, weights in record}
    chance = {place: np.zeros((draws, len(directions))) for place in given}
    heads = max(map(len, kept.values()))
    batch = max(_BATCH_CELLS // (heads * len(record.queries) * len(record.keys)), 1)
    for start in range(0, draws, batch):
        seen = _PairWeights(record.kind, kept, directions)
        backend_of(model).observe(seen, inputs[start : start + batch], cells=None)
        for (number, layer, head), weights in seen.weights.items():
            chance[layer, head][start + number] = weights
    links = []
    for place, weights in given.items():
        for number, weight in enumerate(weights.tolist()):
            shuffled = chance[place][:, number]
            reached = float((shuffled >= weight - _ROUNDING).mean())
            reached = math.nan if math.isnan(weight) or np.isnan(shuffled).any() else reached
            links.append(PairLink(*place, number, weight, float(shuffled.mean()), reached))
    links.sort(key=lambda link: (math.isnan(link.reached), link.reached, -link.weight))
    return PairLinks(names, directions, links, draws, moved)


@dataclass
class _PairWeights:
    """An observer that records each head's weight for each text and direction of a word pair."""

    kind: Kind
    heads: Mapping[int, Sequence[int]]
    directions: Sequence[Direction]
    weights: dict[tuple[int, int, int], NDArray[np.floating]] = field(default_factory=dict)
    norms = False

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self.kind and layer in self.heads

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, beside: BlockFacts
    ) -> None:
        if self.wants(kind, layer):
            whole = to_numpy(weights)
            for head in self.heads[layer]:
                self.weights[text, layer, head] = _given(whole[head], self.directions)


# Shuffled texts ------------------------------------------------------------------------------


def _shuffled(
    record: AttentionRecord, directions: Sequence[Direction], text: Tokens, draws: int
) -> tuple[list[Input], int]:
    """Return the shuffled inputs, and the number of tokens permuted in each."""
    queries = {place for each in directions for place in each.queries}
    keys = {place for each in directions for place in each.keys}
    generator, axes = np.random.default_rng(SEED), [(record.queries, queries | keys)]
    if record.kind == "cross":
        axes = [(record.keys, keys), (record.queries, queries)]
    moving = [
        [at for at in range(len(tokens)) if at not in fixed and not tokens.special[at]]
        for tokens, fixed in axes
    ]
    inputs, moved = list[Input](), sum(map(len, moving))
    if moved < 2:
        raise UsageError(
            f"--pair shuffles the other words of the text, and has {moved} to shuffle: give a "
            "longer text"
        )
    for _ in range(draws):
        shuffled = [text] * (record.kind == "decoder")
        for (tokens, _), places in zip(axes, moving, strict=True):
            order = np.arange(len(tokens))
            order[places] = generator.permutation(places)
            shuffled.append(tokens.taken(order.tolist()))
        inputs.append(Input(*shuffled))
    return inputs, moved


def _given(weights: NDArray[np.floating], directions: Sequence[Direction]) -> NDArray[np.floating]:
    """Return one head's attention weight in each direction: sum over keys, mean over queries."""
    return np.array(
        [weights[np.ix_(each.queries, each.keys)].sum(1).mean() for each in directions], float
    )
