"""The interactive page of ``attnviz heads``: every head of each run, and what is worth a look."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product

import numpy as np

from attnviz.draw.labels import visible
from attnviz.draw.page.data import (
    LARGEST_CHANGE,
    Look,
    Page,
    PageCapture,
    PageHead,
    PageMeasure,
    QueryKey,
    largest_changes,
    page_label,
    with_difference,
)
from attnviz.draw.provenance import share
from attnviz.draw.regions import clearest
from attnviz.inspect.heads.layout import distinctive
from attnviz.inspect.heads.links import Link, head_links, link_words, strongest_links, word_links
from attnviz.inspect.heads.report import HeadsReport, kept_vectors
from attnviz.inspect.heads.sentences import quoted_ends, removed_words, score_words, scored
from attnviz.measures.registry import MEASURES, label_named, said_name
from attnviz.measures.rows import Conditions, RowBlock, TextFacts, scores_of
from attnviz.measures.sinks import sink_of
from attnviz.records import HeadsRecord

_TRIED = 20
"""The most links of a head of which one is looked for that shows its label."""

_LOOK = 5
"""The most places that a page offers for a look."""

WITHOUT_WITH = "difference: without − with"
"""The name of what an intervention changes."""

_LESS = "; all of them: --layer, --head or a shorter text, or --save x.npz for the numbers"


def heads_page(
    report: HeadsReport, names: Sequence[Sequence[str]], given: str = "", opened: str = ""
) -> Page:
    """Return the page of one run, or of several with a selector.

    names: the words in which each run differs. given: a description of the weights, if not that of
        the report. opened: the name of the head that is shown first, if not the finding's.
    """
    captures, look = list[PageCapture](), list[Look]()
    most = max(1, _LOOK // len(report.reports)) if report.of_texts else _LOOK
    before = report.before or [None] * len(report.reports)
    for run, whole, words in zip(report.reports, before, names, strict=True):
        alone = replace(report, reports=(run,), moved=(None,)) if report.of_texts else report
        places = [*islice(_worth_a_look(alone), most)] if run is alone.first else []
        first, name = len(captures), " and ".join(words)
        capture = page_capture(run, name, given, places)
        if whole is None:
            captures.append(capture)
        else:
            named = f"{name}: " if name else ""
            cut = replace(capture, name=f"{named}without {removed_words(run)}")
            every = page_capture(whole, f"{named}every head", given)
            both = [*with_difference(every, cut, f"{named}{WITHOUT_WITH}")]
            captures += both
            places = [*largest_changes(both), *(each._replace(capture=1) for each in places)][:most]
        look += [each._replace(capture=each.capture + first) for each in places]
    order = "" if report.first.sorted_by is None else f"&sort={report.first.sorted_by}"
    known = measures(captures[0].heads) + [LARGEST_CHANGE] * bool(report.before)
    link = f"{opened}{'&capture=1' * bool(report.before)}{order}"
    return Page(report.first.record.model.name, captures, known, look[:_LOOK], _LESS, link)


def page_capture(
    run: HeadsRecord, name: str, given: str = "", look: Sequence[Look] = ()
) -> PageCapture:
    """Return one run's maps for a page. look: cells that are listed first, with exact numbers."""
    record, entries = run.record, run.heads
    queries, keys, vectors = record.queries, record.keys, kept_vectors(run, entries)
    order = [*dict.fromkeys([each.head for each in look] + _clearest(run))]
    both = record.kind != "cross"
    read = run.target or "" if record.kind in ("decoder", "cross") else run.text
    sink = sink_of(record)[1] if run.sink else np.zeros(len(keys), bool)
    said = "× value norm" if run.norm_weighted else "raw" if run.sink else "without sink"
    products = None
    if (factor := vectors.get("query_key_factor")) is not None:
        products = QueryKey(vectors["queries"], vectors["keys"], float(factor))
    heads = []
    for entry in entries:
        known = label_named(entry.label.name)
        head = PageHead(
            *entry.place,
            name=run.name(*entry.place),
            label=page_label(entry.label, known.meaning, known.colour),
            score=entry.label.score,
            facts=" · ".join(score_words(run, entry)[1:]),
            values={"sink_weight": run.sinks.get(entry.place), **entry.scores},
        )
        heads.append(head)
    return PageCapture(
        name=name,
        kind=record.kind,
        causal=record.causal and both,
        heads=heads,
        weights=[run.weights(*place) for place in run.places],
        queries=queries,
        keys=queries if both else keys,
        texts=(read, run.text if record.kind == "cross" else read),
        order=order,
        given=given or said,
        fine=max(8, len(look)) if not run.selected else len(entries),
        sink=np.flatnonzero(sink).tolist(),
        norms=None if run.norm_weighted or not run.sink else vectors.get("value_norms"),
        query_key=products,
        notes=() if run.vectors is None else run.vectors.notes,
        query=look[0].query if look else len(queries) - 1,
        key=look[0].key if look and look[0].head == order[0] else -1,
        head=order[0],
    )


def measures(heads: Sequence[PageHead]) -> list[PageMeasure]:
    """Return the measures that these heads have, by which a page can sort them."""
    orders = []
    for name in heads[0].values:
        numbers = [number for head in heads if (number := head.values[name]) is not None]
        if known := [number for number in numbers if math.isfinite(number)]:
            unit = MEASURES[name].unit if name in MEASURES else "share"
            said = said_name(name).replace("_", " ")
            orders.append(PageMeasure(name, said, unit.removeprefix("share"), min(known) < 0))
    return orders


def with_effects(
    capture: PageCapture, effects: Mapping[tuple[int, int], float], unit: str = ""
) -> tuple[PageCapture, PageMeasure]:
    """Return the capture with the effect of ablating each head, and a measure to sort by it."""
    measure = PageMeasure("ablation", "effect of ablation", unit, signed=True)
    heads = [
        replace(each, values={**each.values, measure.key: effects.get((each.layer, each.head))})
        for each in capture.heads
    ]
    return replace(capture, heads=heads), measure


def _clearest(run: HeadsRecord) -> list[int]:
    """Return the heads' indices: clear labels first, but chosen or sorted heads in their order."""
    places = range(len(run.heads))
    if run.selected or run.sorted_by is not None:
        return [*places]

    def rank(at: int) -> tuple[bool, bool, float]:
        label = run.heads[at].label
        rests = run.rests(*run.heads[at].place)
        return not label.is_finding, rests, -np.nan_to_num(label.score)

    return sorted(places, key=rank)


# What is worth a look ------------------------------------------------------------------------


def _worth_a_look(report: HeadsReport) -> Iterator[Look]:
    """Yield the links that the finding names, then a link of each of the most distinctive heads."""
    run = report.first
    places = {place: at for at, place in enumerate(run.places)}
    named = set()
    for link, says in named_links(report):
        named.add(link[:2])
        yield Look(0, places[link[:2]], link.query, link.key, says)
    for place in distinctive(report):
        links = head_links(run, *place, _TRIED, report.view.sink)
        if place not in named and links:
            label = run.scores(*place).label
            shown = next((link for link in links if _shows(run, label.name, link)), None)
            link = shown or links[0]
            says = f"{scored(label.said, label.score)}: " if shown else ""
            yield Look(0, places[place], *link[2:4], says + link_words(run, link))


def _shows(run: HeadsRecord, name: str, link: Link) -> bool:
    """Return whether the score of the label ``name`` rises by this link; False for a relation."""
    record = run.record
    facts = TextFacts(record.queries, record.keys, Conditions(record.kind, record.causal))
    alone = np.zeros((1, len(record.keys)))
    alone[0, link.key] = 1
    scores = scores_of(RowBlock(facts, alone, link.query), [name])
    return name == "peaked" or bool(scores.get(name, np.zeros(())) > 0)


def named_links(report: HeadsReport) -> Iterator[tuple[Link, str]]:
    """Yield each link that the finding names, or largest cell of a region, with its description."""
    run, view = report.first, report.view
    if view.pairs:
        pair = view.pairs[0]
        for each in pair.links[:2]:
            ends = pair.directions[each.direction]
            link = _largest(run, each.layer, each.head, ends.queries, ends.keys)
            yield link, f"{pair.names[each.direction]} {share(each.weight)}"
    elif view.words:
        for way in word_links(run, view.words[0], view.sink):
            for one in way[:2]:
                yield one, link_words(run, one)
    elif view.top is not None:
        for one in strongest_links(run, _LOOK, view.sink):
            yield one, link_words(run, one)
    elif run.regions is not None and run.record.model.weights != "random":
        regions, at = run.regions, clearest(run.regions)
        names = [*regions.queries][at[1]], [*regions.keys][at[2]]
        within = [
            [place for place, region in enumerate(axis.regions) if region == name]
            for axis, name in zip((run.record.queries, run.record.keys), names, strict=True)
        ]
        says = f"{' → '.join(map(visible, names))} {share(float(regions.share[at]))}"
        yield _largest(run, *regions.heads[at[0]], *within), says
    elif run.regions is None:
        for said in report.told:
            word_link = said.link
            link = _largest(run, *word_link[2:4], word_link.query, word_link.key)
            yield link, f"{' → '.join(quoted_ends(run, word_link))} {share(said.weight)}"


def _largest(
    run: HeadsRecord, layer: int, head: int, queries: Sequence[int], keys: Sequence[int]
) -> Link:
    """Return the largest weight of a head between two words."""
    weights = np.nan_to_num(run.weights(layer, head))
    query, key = max(product(queries, keys), key=lambda cell: weights[cell])
    return Link(layer, head, query, key, float(weights[query, key]))
