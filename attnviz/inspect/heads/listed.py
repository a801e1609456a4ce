"""Links between words as people see them: in tables, as maps of one word, as arcs of one head."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.document import LEAST_ARC, Arc, Arcs
from attnviz.draw.labels import numbered, word_label
from attnviz.draw.provenance import probability, share
from attnviz.inspect.heads.links import (
    A_HEAD,
    LONGEST,
    Link,
    PairLinks,
    attention_from,
    attention_to,
    between_words,
    head_links,
    link_names,
    linking,
    strongest_links,
    word_links,
)
from attnviz.inspect.heads.report import HeadsReport
from attnviz.measures.sinks import sink_of
from attnviz.measures.word_links import FEWEST_HEADS, NO_MORE, WordLink, WordLinks
from attnviz.measures.words import Word, WordPlaces, word_ranges, word_text
from attnviz.records import HeadsRecord, Tokens

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


def above_usual(links: WordLinks | None) -> list[WordLink]:
    """Return the links whose weight exceeds their head's mean there by more than rounding."""
    return [link for link in (links.links if links else ()) if link.weight - link.habit >= NO_MORE]


def _agreed_table(report: HeadsReport, links: Sequence[WordLink], heads: int) -> doc.Table:
    """Return a table of links between words, each with the head that stands out most for it."""
    run = report.first
    queries, keys = link_names(run.record, LONGEST)
    tested = heads >= FEWEST_HEADS
    said = "furthest above control first"
    if tested:
        beyond = any(link.beats_chance for link in links)
        said = "by p" if beyond else "by p, none significant"

    def ends(link: WordLink) -> str:
        return f"{queries[link.query.start]} → {keys[link.key.start]}"

    agree = [
        doc.ColumnOf[WordLink]("p", lambda link: probability(link.chance)),
        doc.ColumnOf[WordLink]("heads", lambda link: str(link.heads), keep=5),
    ]
    return doc.table(
        links,
        doc.ColumnOf("", ends, right=False),
        doc.ColumnOf("best", lambda link: run.name(*link[2:4]), right=False, tone="strong"),
        doc.ColumnOf("weight", lambda link: share(link.weight)),
        doc.ColumnOf("control", lambda link: share(link.habit), keep=4),
        *agree[: 2 * tested],
        row=lambda link: {"tone": "faint" if tested and not link.beats_chance else "plain"},
        title=[("links", True), (said, False), *[("norm-weighted", False)] * run.norm_weighted],
        least=1,
    )


def links_of(report: HeadsReport, count: int) -> doc.Table | None:
    """Return a table of the links between words that are least likely by chance, or None.

    If the text is too long to test, those furthest above the head's control are listed; of chosen
    heads, and with the sink, the strongest. None means that no link of the chosen heads is above
    its control, or that the weights are random, so that no link means anything.
    """
    run, agreed, sink = report.first, report.agreed_links, report.view.sink
    if run.record.model.weights == "random" and not (sink or run.selected):
        return None
    above = [] if sink else above_usual(agreed)[:count]
    if agreed is not None and above:
        return _agreed_table(report, above, agreed.heads)
    if agreed is not None and not (sink or run.selected):
        return None
    of_each = max(-(-count // len(run.heads)), A_HEAD)
    unusual = agreed is None and not sink and not run.selected
    links = strongest_links(run, count, sink, of_each, unusual=unusual)
    title = "links furthest above control" if unusual else "strongest links"
    return links_table(run, links, title, sink) if links else None


def pairs_table(run: HeadsRecord, count: int, sink: bool = False) -> doc.Table:
    """Return a table of each head's strongest token pairs, a repeated token with its index."""
    queries, keys = link_names(run.record, _LONGEST_IN_TABLES, words=False)
    rows = []
    for place in run.places:
        links = head_links(run, *place, count, sink)
        cells = [f"{queries[link.query]} → {keys[link.key]} {share(link.weight)}" for link in links]
        rows.append([run.name(*place), *cells])
    most = max(map(len, rows))
    columns = [doc.Column("", right=False)] * max(most, 1)
    filled = [doc.Row([*row, *[""] * (most - len(row))]) for row in rows]
    title = f"{count} strongest pairs of each head, query → key and weight"
    return doc.Table(columns, filled, titled(title, run, sink), least=1)


def pair_table(run: HeadsRecord, pair: PairLinks, least: int = 0) -> doc.Table:
    """Return a table of a word pair's links, with a row for each head and direction."""
    chance = f"mean over {pair.draws} texts with the other {pair.moved} tokens shuffled"
    asked = "here: do the other words matter? without --pair: is a link above its control?"
    return doc.table(
        [link for link in pair.links if not math.isnan(link.weight)],
        doc.ColumnOf("", lambda link: run.name(link.layer, link.head), right=False),
        doc.ColumnOf("link", lambda link: pair.names[link.direction], right=False),
        doc.ColumnOf("weight", lambda link: share(link.weight)),
        doc.ColumnOf("chance", lambda link: share(link.chance)),
        doc.ColumnOf("reached by", pair.reached),
        row=lambda link: {"tone": "plain" if link.beats_chance else "faint"},
        title=[
            ("Heads that link the two words", True),
            (f"chance: {chance}", False),
            (asked, False),
        ],
        least=least,
    )


# One word, one head --------------------------------------------------------------------------


def named_word(tokens: Tokens, word: Word) -> str:
    """Return a word in quotes with the number of its first token, and where else it occurs."""
    named = numbered(f"“{word_label([word_text(tokens, word.span)])}”", word.span.start)
    also = f", also at {', '.join(map(str, word.elsewhere))}" if word.elsewhere else ""
    return f"{named}{also}"


def word_maps(run: HeadsRecord, word: WordPlaces, values: bool) -> doc.Maps:
    """Return two maps with a row for each head: the word as a query, and the word as a key."""
    record, maps = run.record, []
    names = tuple(run.name(layer, head) for layer, head, _ in record)
    heads = Tokens((0,) * len(names), names, (False,) * len(names))
    axes = (record.queries, record.keys), (record.keys, record.queries)
    for way, place, (own, others) in zip(("from", "to"), word, axes, strict=True):
        if place is not None:
            weights = (attention_from if way == "from" else attention_to)(run, place.span)
            hidden = slice(place.span.stop, None) if way == "from" else slice(place.span.start)
            weights[:, hidden] = np.nan if record.causal else weights[:, hidden]
            maps.append(
                doc.Map(f"attention {way} {named_word(own, place)}", weights, heads, others)
            )
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
