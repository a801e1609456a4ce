"""Links between tokens: which head gives the most weight from one token to another, and tables.

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
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.document import LEAST_ARC, Arc, Arcs
from attnviz.draw.labels import cut, numbered, token_labels, word_label
from attnviz.draw.provenance import share
from attnviz.engine.backend import backend_of
from attnviz.engine.observer import BlockFacts, to_numpy
from attnviz.errors import UsageError
from attnviz.measures.sinks import sink_of
from attnviz.measures.words import (
    Word,
    WordPlaces,
    is_mark,
    word_ranges,
    word_text,
    words_of_tokens,
)
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
    run: HeadsRecord,
    count: int,
    sink: bool = False,
    of_each: int = A_HEAD,
    *,
    unusual: bool = False,
) -> list[Link]:
    """Return the ``count`` strongest links of all heads, strongest first.

    of_each: the most links of one head. unusual: True ranks by how far the weight is above the
        head's mean weight at this distance or, if that is more, to this key.

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
        for query, key, above in _largest(ranked, 2 * of_each):
            links.append((above, Link(layer, head, query, key, float(shown[query, key]))))
    kept, heads = dict[tuple[int, int], Link](), Counter[tuple[int, int]]()
    for _, link in sorted(links, key=lambda ranked: -ranked[0]):
        if len(kept) < count and heads[link[:2]] < of_each and link[2:4] not in kept:
            kept[link[2:4]] = link
            heads[link[:2]] += 1
    return [*kept.values()]


def strongest_words(run: HeadsRecord) -> tuple[range, range, float, float] | None:
    """Return the two words that the only head links most, with the weight and the uniform one.

    Both are on all tokens of the key, mean over those of the query. Marks are no words.
    """
    record, given = run.record, np.nan_to_num(run.weights(*run.places[0]))
    shown = np.where(linking(record, False) & between_words(record), given, 0)
    even = (given > 0) / np.maximum((given > 0).sum(1, keepdims=True), 1)
    queries, keys = (
        [word for word in word_ranges(tokens) if not all(map(is_mark, word_text(tokens, word)))]
        for tokens in (record.queries, record.keys)
    )
    if not queries or not keys:
        return None
    cells = np.stack([shown, even])
    rows = np.stack([cells[:, word.start : word.stop].mean(1) for word in queries], axis=1)
    cells = np.stack([rows[..., word.start : word.stop].sum(-1) for word in keys], axis=-1)
    query, key = divmod(int(cells[0].argmax()), len(keys))
    weight, uniform = cells[:, query, key].tolist()
    return (queries[query], keys[key], weight, uniform) if weight else None


def _largest(weights: NDArray[np.floating], count: int) -> list[tuple[int, int, float]]:
    """Return the ``count`` largest positive weights as (query, key, weight), largest first."""
    flat, keys = np.nan_to_num(weights).ravel(), weights.shape[1]
    cells = np.arange(flat.size)
    if flat.size >= 2**14 and count < flat.size:  # sorting all would be too slow
        cells = np.argpartition(flat, -count)[-count:]
    order = cells[np.argsort(-flat[cells], kind="stable")][:count].tolist()
    return [(at // keys, at % keys, float(flat[at])) for at in order if flat[at] > 0]


def head_links(run: HeadsRecord, layer: int, head: int, count: int, sink: bool) -> list[Link]:
    """Return the ``count`` largest weights of one head, also from a token to itself.

    In a causal map query 0, which sees only itself, is left out unless it is the only query.
    """
    weights = run.weights(layer, head).copy()
    if not sink:
        weights[:, sink_of(run.record)[1]] = 0
    if run.record.causal and len(weights) > 1:
        weights[0] = 0
    return [Link(layer, head, *cell) for cell in _largest(weights, count)]


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
    record, both = run.record, [list[Link](), list[Link]()]
    query_sink, key_sink = sink_of(record)
    for axis, (own, left_out) in enumerate(zip(word, (key_sink, query_sink), strict=True)):
        if own is None:
            continue
        weights = np.nan_to_num((attention_from, attention_to)[axis](run, own.span))
        weights[:, left_out & (not sink)] = 0
        if record.kind != "cross":
            weights[:, list(own.span)] = 0
        for (layer, head, _), row in zip(record, weights, strict=True):
            ends = own.span.start, int(row.argmax())
            if row[ends[1]] > 0:
                query, key = reversed(ends) if axis else ends
                both[axis].append(Link(layer, head, query, key, float(row[ends[1]])))
        both[axis].sort(key=lambda link: -link.weight)
    return both


def link_names(
    record: AttentionRecord, longest: int, *, words: bool = True
) -> tuple[list[str], list[str]]:
    """Return the word of each query and of each key as strings for a table.

    longest: the most characters of each. words: False names tokens instead. A name that repeats
    has the number of its first token.
    """
    axes = []
    for tokens in (record.queries, record.keys):
        spans = [range(at, at + 1) for at in range(len(tokens))]
        spans = words_of_tokens(tokens) if words else spans
        labels = [
            word_label([word_text(tokens, word)]) if len(word) > 1 else label
            for label, word in zip(token_labels(tokens), spans, strict=True)
        ]
        counts, names = Counter(label for label, _ in {*zip(labels, spans, strict=True)}), []
        for label, word in zip(labels, spans, strict=True):
            number = numbered("", word.start) if counts[label] > 1 else ""
            names.append(cut(label, max(longest - len(number), 1)) + number)
        axes.append(names)
    queries, keys = axes
    return queries, keys


def link_words(run: HeadsRecord, link: Link) -> str:
    """Return the tokens and the weight of a link, such as ``it → cat .29``."""
    queries, keys = link_names(run.record, LONGEST)
    return f"{queries[link.query]} → {keys[link.key]} {share(link.weight)}"


# A pair of words -----------------------------------------------------------------------------

DRAWS, SEED = 50, 0
_BATCH_CELLS = 2**23  # the most weights of a layer that are computed at once: 32 MB
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
        times = "?" if math.isnan(link.reached) else round(link.reached * self.draws)
        return f"{times} of {self.draws}"


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
            ends = []
            for side, word in ((record.queries, query), (record.keys, key)):
                name = word_label(side.texts[word.span.start : word.span.stop])
                ends.append(numbered(name, word.span.start) if word.elsewhere else name)
            names.append(" → ".join(ends))
    if not directions:
        raise UsageError("--pair: no query sees the key: one word must be in each text")
    inputs, moved = _shuffled(record, directions, text, draws)
    kept = {layer.layer: layer.heads for layer in record.layers}
    chance = {head[:2]: np.zeros((draws, len(directions))) for head in record}
    heads = max(map(len, kept.values()))
    batch = max(_BATCH_CELLS // (heads * len(record.queries) * len(record.keys)), 1)
    for start in range(0, draws, batch):
        seen = _PairWeights(record.kind, kept, directions)
        backend_of(model).observe(seen, inputs[start : start + batch], cells=None)
        for (number, layer, head), weights in seen.weights.items():
            chance[layer, head][start + number] = weights
    links = []
    for layer, head, weights in record:
        for number, weight in enumerate(_given(weights, directions).tolist()):
            shuffled = chance[layer, head][:, number]
            reached = float((shuffled >= weight - _ROUNDING).mean())
            reached = math.nan if math.isnan(weight) or np.isnan(shuffled).any() else reached
            links.append(PairLink(layer, head, number, weight, float(shuffled.mean()), reached))
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


def _shuffled(
    record: AttentionRecord, directions: Sequence[Direction], text: Tokens, draws: int
) -> tuple[list[Input], int]:
    """Return the shuffled inputs, and the number of tokens permuted in each."""
    queries, keys = ({*chain(*spans)} for spans in zip(*directions, strict=True))
    axes = [(record.queries, queries | keys)]
    if record.kind == "cross":
        axes = [(record.keys, keys), (record.queries, queries)]
    moving = [
        [at for at in range(len(tokens)) if at not in fixed and not tokens.special[at]]
        for tokens, fixed in axes
    ]
    if (moved := sum(map(len, moving))) < 2:
        raise UsageError(
            f"--pair shuffles the other words of the text, and has {moved} to shuffle: give a "
            "longer text"
        )
    inputs, generator = list[Input](), np.random.default_rng(SEED)
    for _ in range(draws):
        shuffled = [text] * (record.kind == "decoder")
        for (tokens, _), moves in zip(axes, moving, strict=True):
            order = np.arange(len(tokens))
            order[moves] = generator.permutation(moves)
            shuffled.append(tokens.taken(order.tolist()))
        inputs.append(Input(*shuffled))
    return inputs, moved


def _given(weights: NDArray[np.floating], directions: Sequence[Direction]) -> NDArray[np.floating]:
    """Return one head's attention weight in each direction: sum over keys, mean over queries."""
    return np.array([weights[np.ix_(*ends)].sum(1).mean() for ends in directions], float)


_LONGEST_IN_TABLES = 24


def titled(title: str, run: HeadsRecord, sink: bool) -> doc.Words:
    """Return a title with remarks on the weights: norm-weighted, with or without the sink."""
    words = ["norm-weighted"] * run.norm_weighted
    if sink_of(run.record)[1].any():
        kept = "sink included" if sink else "sink left out"
        words.append(kept if run.sink else "sink left out, rows rescaled")
    return [(title, True), *([(" · ".join(words), False)] if words else [])]


def links_table(
    run: HeadsRecord, links: Sequence[Link], title: str, sink: bool, least: int = 1
) -> doc.Table:
    """Return a table of links: query → key, weight, head."""
    queries, keys = link_names(run.record, LONGEST)
    return doc.table(
        links,
        doc.ColumnOf("", lambda link: f"{queries[link.query]} → {keys[link.key]}", right=False),
        doc.ColumnOf("", lambda link: share(link.weight)),
        doc.ColumnOf("", lambda link: run.name(*link[:2]), right=False, tone="strong"),
        title=titled(title, run, sink),
        least=least,
    )


def word_tables(
    run: HeadsRecord, word: WordPlaces, sink: bool, title: str, most: int | None = None
) -> list[doc.Table]:
    """Return tables of the largest weights from a word and to it; ``title`` has ``{}`` for both."""
    least = 3 if most else 1
    return [
        links_table(run, links[:most], title.format(way), sink, least)
        for way, links in zip(("from", "to"), word_links(run, word, sink), strict=True)
        if links
    ]


def pairs_table(run: HeadsRecord, count: int, sink: bool = False) -> doc.Table:
    """Return a table of each head's strongest token pairs, a repeated token with its index."""
    queries, keys = link_names(run.record, _LONGEST_IN_TABLES, words=False)
    rows = []
    for head in run.places:
        links = head_links(run, *head, count, sink)
        cells = [f"{queries[link.query]} → {keys[link.key]} {share(link.weight)}" for link in links]
        rows.append([run.name(*head), *cells])
    most = max(map(len, rows))
    columns = [doc.Column("", right=False)] * max(most, 1)
    filled = [doc.Row([*row, *[""] * (most - len(row))]) for row in rows]
    title = f"{count} strongest pairs of each head, query → key and weight"
    return doc.Table(columns, filled, titled(title, run, sink), least=1)


def pair_table(run: HeadsRecord, pair: PairLinks, least: int = 0) -> doc.Table:
    """Return a table of a word pair's links, with a row for each head and direction."""
    chance = f"chance: mean over {pair.draws} texts with the other {pair.moved} tokens shuffled"
    asked = "here: do the other words matter? without --pair: is a link above its control?"
    return doc.table(
        [link for link in pair.links if not math.isnan(link.weight)],
        doc.ColumnOf("", lambda link: run.name(link.layer, link.head), right=False),
        doc.ColumnOf("link", lambda link: pair.names[link.direction], right=False),
        doc.ColumnOf("weight", lambda link: share(link.weight)),
        doc.ColumnOf("chance", lambda link: share(link.chance)),
        doc.ColumnOf("reached by", pair.reached),
        row=lambda link: {"tone": "plain" if link.beats_chance else "faint"},
        title=[("Heads that link the two words", True), (chance, False), (asked, False)],
        least=least,
    )


def named_word(tokens: Tokens, word: Word) -> str:
    """Return a word in quotes with the number of its first token, and where else it occurs."""
    named = numbered(f"“{word_label([word_text(tokens, word.span)])}”", word.span.start)
    return named + (f", also at {', '.join(map(str, word.elsewhere))}" if word.elsewhere else "")


def word_maps(run: HeadsRecord, word: WordPlaces, values: bool) -> doc.Maps:
    """Return two maps with a row for each head: the word as a query, and the word as a key."""
    record, maps = run.record, []
    names = tuple(run.name(layer, head) for layer, head, _ in record)
    heads = Tokens((0,) * len(names), names, (False,) * len(names))
    axes = (record.queries, record.keys), (record.keys, record.queries)
    for way, own, (tokens, others) in zip(("from", "to"), word, axes, strict=True):
        if own is not None:
            weights = (attention_from if way == "from" else attention_to)(run, own.span)
            hidden = slice(own.span.stop, None) if way == "from" else slice(own.span.start)
            weights[:, hidden] = np.nan if record.causal else weights[:, hidden]
            title = f"attention {way} {named_word(tokens, own)}"
            maps.append(doc.Map(title, weights, heads, others))
    return doc.Maps(maps, values=values)


def head_arcs(run: HeadsRecord, layer: int, head: int, sink: bool = False) -> Arcs | None:
    """Return arcs from each word to the one a head attends to most; None in cross attention."""
    record = run.record
    if record.kind == "cross":
        return None
    words = word_ranges(record.keys)
    starts = [word.start for word in words]
    allowed = linking(record, sink) & between_words(record)
    weights = np.where(allowed, np.nan_to_num(run.weights(layer, head)), 0)
    sums = np.add.reduceat(np.add.reduceat(weights, starts, axis=1, dtype=float), starts, axis=0)
    means = sums / np.asarray([[len(word)] for word in words])
    arcs = [
        Arc(word, words[key], float(row[key]))
        for word, row, key in zip(words, means, means.argmax(1).tolist(), strict=True)
        if row[key] >= LEAST_ARC and word_text(record.keys, word)
    ]
    title, *remarks = titled(run.name(layer, head), run, sink)
    return Arcs(record.keys, arcs, [title, ("where each word attends most", False), *remarks])
