"""Links between tokens: which head gives the most weight from one token to another.

A link joins two different places. The attention sink is left out: special tokens, and the first
token of causal attention, get most of the weight and say least. The weights are not rescaled
without the sink: a head that gives .97 to it would then have the strongest links of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from attnviz.draw.document import Column, Map, Maps, Row, Table, Tone
from attnviz.draw.labels import cut, numbered, token_labels, word_label
from attnviz.draw.provenance import share
from attnviz.draw.word_arcs import LEAST_ARC, Arc, Arcs
from attnviz.inspect.heads.report import HeadsReport
from attnviz.measures.sinks import sink_of
from attnviz.measures.word_links import FEWEST_HEADS, NO_MORE, WordLink, WordLinks
from attnviz.measures.words import Word, WordPlaces, word_ranges, word_text, words_of_tokens
from attnviz.records import AttentionRecord, HeadsRecord, Tokens

LONGEST = 14
"""The most columns of a token in a link on a first screen."""

_LONGEST_IN_TABLES = 24
_A_HEAD = 2
"""The most links of one head in a list, which a previous-token head would fill otherwise."""


class Link(NamedTuple):
    """The attention weight of one head from a query to a key.

    layer, head: of the head. query, key: the positions of the tokens.
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float


def linking(record: AttentionRecord, sink: bool) -> NDArray[np.bool_]:
    """Return a mask of the cells (query, key) that are links: two different tokens, no sink.

    sink: True also counts links with the attention sink.
    """
    queries, keys = sink_of(record)
    shape = len(queries), len(keys)
    found = np.ones(shape, bool) if sink else ~queries[:, None] & ~keys[None, :]
    if record.kind != "cross":
        found &= ~np.eye(*shape, dtype=bool)
    return found


def between_words(record: AttentionRecord) -> NDArray[np.bool_]:
    """Return a mask of the cells (query, key) that join two different words.

    In cross attention these are all cells.
    """
    if record.kind == "cross":
        return np.ones((len(record.queries), len(record.keys)), bool)
    starts = np.array([word.start for word in words_of_tokens(record.queries)])
    return np.asarray(starts[:, None] != starts)


def strongest_links(
    report: HeadsRecord,
    count: int,
    sink: bool = False,
    each: int = _A_HEAD,
    *,
    unusual: bool = False,
) -> list[Link]:
    """Return the ``count`` strongest links of all heads, strongest first.

    sink: True also lists links with the attention sink. count: the most links. unusual: True ranks
        them by how far the weight is above the head's usual one (see ``_usual``).

    Each pair of tokens is listed once, with the head that links it most; at most ``each`` of a
    head. Links within a word are left out: they say how it was split.
    """
    allowed = linking(report.record, sink) & between_words(report.record)
    found: list[tuple[float, Link]] = []
    for layer, head, weights in report.record:
        shown = np.where(allowed, np.nan_to_num(weights), 0)
        ranked = shown - _usual(shown, allowed) if unusual else shown
        for query, key, above in _largest(ranked, 2 * each):
            found.append((above, Link(layer, head, query, key, float(shown[query, key]))))
    kept: list[Link] = []
    pairs: set[tuple[int, int]] = set()
    heads: Counter[tuple[int, int]] = Counter()
    for _, link in sorted(found, key=lambda one: -one[0]):
        if len(kept) == count:
            break
        if heads[link[:2]] < each and link[2:4] not in pairs:
            kept.append(link)
            pairs.add(link[2:4])
            heads[link[:2]] += 1
    return kept


def _usual(weights: NDArray[np.floating], allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the usual weight of each cell (query, key): the head's mean at this distance or, if
    that is more, to this key.

    weights: (query, key). allowed: the cells that count, of the same shape; others are zero.
    """
    keys = weights.shape[1]
    of_distance = _distance_sums(weights) / np.maximum(_distance_sums(allowed), 1)
    of_key = weights.sum(0, dtype=float) / np.maximum(allowed.sum(0), 1)
    # Row i has the means at the distances from i to i − keys + 1.
    by_cell = sliding_window_view(of_distance[::-1], keys)[::-1]
    usual: NDArray[np.float64] = np.maximum(by_cell, of_key)
    return usual


def _distance_sums(cells: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of the cells (query, key) at each distance from 1 − keys to queries − 1."""
    queries, keys = cells.shape
    # In rows that are one number longer than the result, each row starts one column further right.
    rows = np.zeros((queries, queries + keys), cells.dtype)
    rows[:, :keys] = cells[:, ::-1]
    shifted = rows.ravel()[: queries * (queries + keys - 1)].reshape(queries, -1)
    sums: NDArray[np.float64] = shifted.sum(0, dtype=float)
    return sums


def _largest(weights: NDArray[np.floating], count: int) -> list[tuple[int, int, float]]:
    """Return the ``count`` largest positive weights as (query, key, weight), largest first.

    weights: (query, key).
    """
    flat = np.nan_to_num(weights).ravel()
    order = np.argsort(-flat, kind="stable")[:count] if flat.size < 2**14 else _ends(flat, count)
    keys = weights.shape[1]
    return [
        (int(place) // keys, int(place) % keys, float(flat[place]))
        for place in order
        if flat[place] > 0
    ]


def _ends(flat: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Return the indices of the ``count`` largest numbers of a vector, the largest first.

    The others are not sorted, which would be too slow.
    """
    places = np.argpartition(flat, -count)[-count:] if count < len(flat) else np.arange(len(flat))
    return np.asarray(places[np.argsort(-flat[places], kind="stable")])


def head_links(report: HeadsRecord, layer: int, head: int, count: int, sink: bool) -> list[Link]:
    """Return the ``count`` largest weights of one head, also from a token to itself.

    In a causal map query 0, which sees only itself, is left out unless it is the only query.
    sink: True includes keys of the attention sink.
    """
    record = report.record
    weights = report.weights(layer, head).copy()
    if not sink:
        weights[:, sink_of(record)[1]] = 0
    if record.causal and len(weights) > 1:
        weights[0] = 0
    return [Link(layer, head, *place) for place in _largest(weights, count)]


# One word ------------------------------------------------------------------------------------


def attention_from(report: HeadsRecord, span: Sequence[int]) -> NDArray[np.floating]:
    """Return each head's attention weights (head, key) from a word to every key.

    They are the mean over the word's tokens (Clark et al. 2019). span: the indices of its tokens
    among the queries.
    """
    return np.stack([weights[list(span)].mean(0) for _, _, weights in report.record])


def attention_to(report: HeadsRecord, span: range) -> NDArray[np.floating]:
    """Return each head's attention weights (head, query) from every query to a word.

    They are the sum over the word's tokens (Clark et al. 2019). span: the indices of its tokens
    among the keys.
    """
    return np.stack([weights[:, list(span)].sum(1) for _, _, weights in report.record])


def word_links(report: HeadsRecord, word: WordPlaces, sink: bool = False) -> list[list[Link]]:
    """Return two lists: each head's strongest link from a word, and to it, strongest first.

    word: its positions among the queries and the keys. sink: True also counts links with the sink.
    The word stands in a link as its first token. A list is empty if the word is not on that axis.
    """
    record = report.record
    query_sink, key_sink = sink_of(record)
    found: list[list[Link]] = []
    for axis, (place, left_out) in enumerate(zip(word, (key_sink, query_sink), strict=True)):
        if place is None:
            found.append([])
            continue
        weights = (attention_from, attention_to)[axis](report, place.span).copy()
        weights[:, left_out & (not sink)] = 0
        if record.kind != "cross":
            weights[:, list(place.span)] = 0
        weights = np.nan_to_num(weights)
        best = weights.argmax(1).tolist()
        ends = [(place.span.start, each)[:: -1 if axis else 1] for each in best]
        links = [
            Link(layer, head, end[0], end[1], float(row[each]))
            for (layer, head, _), end, row, each in zip(record, ends, weights, best, strict=True)
            if row[each] > 0
        ]
        found.append(sorted(links, key=lambda link: -link.weight))
    return found


def head_arcs(report: HeadsReport, layer: int, head: int, sink: bool = False) -> Arcs | None:
    """Return arcs from each word to the one that a head attends to most; None for cross attention.

    layer, head: of the head. sink: True includes the attention sink as a word.
    """
    record = report.first.record
    if record.kind == "cross":
        return None
    words = word_ranges(record.keys)
    starts = [word.start for word in words]
    allowed = linking(record, sink) & between_words(record)
    weights = np.where(allowed, np.nan_to_num(report.first.weights(layer, head)), 0)
    sums = np.add.reduceat(np.add.reduceat(weights, starts, axis=1, dtype=float), starts, axis=0)
    means = sums / np.asarray([[len(word)] for word in words])
    found = [
        Arc(word, words[key], float(row[key]))
        for word, row, key in zip(words, means, means.argmax(1).tolist(), strict=True)
        if row[key] >= LEAST_ARC and word_text(record.keys, word)
    ]
    said = sink_words(report.first, sink)
    title = [(report.first.name(layer, head), True), ("where each word attends most", False)]
    return Arcs(record.keys, found, [*title, *([(said, False)] if said else [])])


def named_word(tokens: Tokens, word: Word) -> str:
    """Return a word in quotes with the number of its first token, and where else it occurs.

    tokens: of the text.
    """
    named = numbered(f"“{word_label([word_text(tokens, word.span)])}”", word.span.start)
    also = f", also at {', '.join(map(str, word.elsewhere))}" if word.elsewhere else ""
    return f"{named}{also}"


def word_maps(report: HeadsRecord, word: WordPlaces, values: bool) -> Maps:
    """Return two maps with a row for each head: the word as a query, and the word as a key.

    word: its positions among the queries and the keys. values: True writes the weights into the
        cells.
    In cross attention a word may be on one axis only; the other map is left out.
    """
    record = report.record
    names = tuple(report.name(layer, head) for layer, head, _ in record)
    heads = Tokens((0,) * len(names), names, (False,) * len(names))
    maps = []
    query, key = word
    if query is not None:
        weights = attention_from(report, query.span)
        if record.causal:
            weights[:, query.span.stop :] = np.nan
        title = f"attention from {named_word(record.queries, query)}"
        maps.append(Map(title, weights, heads, record.keys))
    if key is not None:
        weights = attention_to(report, key.span)
        if record.causal:
            weights[:, : key.span.start] = np.nan
        title = f"attention to {named_word(record.keys, key)}"
        maps.append(Map(title, weights, heads, record.queries))
    return Maps(maps, values=values)


# As tables -----------------------------------------------------------------------------------


def sink_words(report: HeadsRecord, sink: bool) -> str:
    """Return remarks on the weights in a table of links: norm-weighted, with or without sink.

    sink: whether links with the attention sink are listed.
    """
    words = ["norm-weighted"] * report.norm_weighted
    if sink_of(report.record)[1].any():
        kept = "sink included" if sink else "sink left out"
        words.append(kept if report.sink else "sink left out, rows rescaled")
    return " · ".join(words)


def links_table(
    report: HeadsRecord, links: Sequence[Link], title: str, sink: bool, least: int = 1
) -> Table:
    """Return a table of links: query → key, weight, head.

    title: over the table. sink: whether links with the attention sink are listed. least: how many
        rows a short screen must show.
    """
    queries, keys = link_names(report.record, LONGEST)
    rows = [
        Row(
            [
                f"{queries[link.query]} → {keys[link.key]}",
                share(link.weight),
                report.name(link.layer, link.head),
            ]
        )
        for link in links
    ]
    said = sink_words(report, sink)
    tone: Tone = "strong"
    columns = [Column("", right=False), Column(""), Column("", right=False, tone=tone)]
    heading = [(title, True), *([(said, False)] if said else [])]
    return Table(columns, rows, heading, least=least)


def above_usual(links: WordLinks | None) -> list[WordLink]:
    """Return the links whose weight is above the head's usual weight by more than rounding."""
    found = links.links if links else ()
    return [link for link in found if link.weight - link.habit >= NO_MORE]


def agreed_table(report: HeadsRecord, links: Sequence[WordLink], heads: int) -> Table:
    """Return a table of links between words, each with the head that stands out most for it.

    That head is the one furthest above its usual weight. heads: how many were measured; if they
    suffice, links are in the order of their chance, and those that do not beat it are faint.
    """
    queries, keys = link_names(report.record, LONGEST)
    tested = heads >= FEWEST_HEADS
    rows = [
        Row(
            [
                f"{queries[link.query.start]} → {keys[link.key.start]}",
                report.name(link.layer, link.head),
                share(link.weight),
                share(link.habit),
                str(link.heads),
            ],
            tone="faint" if tested and not link.beats_chance else "plain",
        )
        for link in links
    ]
    said = "furthest above usual first"
    if tested:
        beyond = any(link.beats_chance for link in links)
        said = "least likely by chance first" if beyond else "none beats chance, nearest first"
    title = [("links", True), (said, False), *[("norm-weighted", False)] * report.norm_weighted]
    columns = [Column("", right=False), Column("best", right=False, tone="strong")]
    columns += [Column("weight"), Column("usual", keep=4), Column("heads", keep=5)]
    if not tested:
        columns, rows = columns[:-1], [row._replace(cells=row.cells[:-1]) for row in rows]
    return Table(columns, rows, title, least=1)


def links_of(found: HeadsReport, sink: bool, count: int) -> Table | None:
    """Return a table of the links between words that are least likely by chance, or None.

    sink: True lists links with the sink, too. count: how many links.
    If the text is too long to test, those furthest above the head's usual weight are listed; of
    chosen heads, and with the sink, the strongest. None means that no link of the chosen heads is
    above its usual weight.
    """
    report, agreed = found.first, found.agreed_links
    above = [] if sink else above_usual(agreed)[:count]
    if agreed is not None and above:
        return agreed_table(report, above, agreed.heads)
    if agreed is not None and not (sink or report.selected):
        return None
    each, unusual = max(-(-count // len(report.heads)), _A_HEAD), agreed is None and not sink
    unusual = unusual and not report.selected
    links = strongest_links(report, count, sink, each, unusual=unusual)
    title = "links furthest above usual" if unusual else "strongest links"
    return links_table(report, links, title, sink) if links else None


def pairs_table(report: HeadsRecord, count: int, sink: bool = False) -> Table:
    """Return a table of each head's strongest token pairs, query → key, with their weights.

    See ``head_links``. count: how many pairs for each head. sink: True includes the sink's keys.
    A token that occurs several times is shown with its index.
    """
    queries, keys = (
        _unique(tokens, _LONGEST_IN_TABLES, words=False)
        for tokens in (report.record.queries, report.record.keys)
    )
    rows = []
    for entry in report.heads:
        links = head_links(report, entry.layer, entry.head, count, sink)
        cells = [f"{queries[each.query]} → {keys[each.key]} {share(each.weight)}" for each in links]
        rows.append([report.name(entry.layer, entry.head), *cells])
    most = max(map(len, rows))
    title = [(f"{count} strongest pairs of each head, query → key and weight", True)]
    said = sink_words(report, sink)
    title += [(said, False)] if said else []
    columns = [Column(name, right=False) for name in ("", *[""] * (most - 1))]
    return Table(columns, [Row([*row, *[""] * (most - len(row))]) for row in rows], title, least=1)


def link_names(record: AttentionRecord, longest: int) -> tuple[list[str], list[str]]:
    """Return the word of each query and of each key as strings for a table.

    longest: the most characters of each. A word that repeats has the number of its first token.
    """
    return _unique(record.queries, longest), _unique(record.keys, longest)


def _unique(tokens: Tokens, longest: int, words: bool = True) -> list[str]:
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
