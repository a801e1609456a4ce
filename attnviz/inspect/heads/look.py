"""The interactive page of ``attnviz heads``: every head of each run, and what is worth a look."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product

import numpy as np

from attnviz.draw.labels import visible
from attnviz.draw.page import data as page
from attnviz.draw.provenance import share
from attnviz.draw.regions import clearest
from attnviz.inspect.heads import sentences
from attnviz.inspect.heads.layout import distinctive
from attnviz.inspect.heads.links import Link, head_links, link_words, strongest_links, word_links
from attnviz.inspect.heads.report import HeadsReport, kept_vectors
from attnviz.measures.registry import MEASURES, label_named, said_name
from attnviz.measures.rows import Conditions, RowBlock, TextFacts, scores_of
from attnviz.measures.sinks import sink_of
from attnviz.records import HeadsRecord

_TRIED = 20  # the most links of a head of which one is looked for that shows its label
_LOOK = 5  # the most cells that a page offers for a look
WITHOUT_WITH = "difference: without − with"
"""The name of what an intervention changes."""
_LESS = "; all of them: --layer, --head or a shorter text, or --save x.npz for the numbers"


def heads_page(
    report: HeadsReport, names: Sequence[Sequence[str]], given: str = "", opened: str = ""
) -> page.Page:
    """Return the page of one run, or of several with a selector.

    names: the words in which each run differs. given: a description of the weights, if not that of
        the report. opened: the name of the head that is shown first, if not the finding's.
    """
    captures, look = list[page.PageCapture](), list[page.Look]()
    most = max(1, _LOOK // len(report.reports)) if report.of_texts else _LOOK
    before = report.before or [None] * len(report.reports)
    for run, whole, words in zip(report.reports, before, names, strict=True):
        alone = replace(report, reports=(run,), moved=(None,)) if report.of_texts else report
        cells = [*islice(_worth_a_look(alone), most)] if run is alone.first else []
        first, name = len(captures), " and ".join(words)
        capture = page_capture(run, name, given, cells)
        if whole is None:
            captures.append(capture)
        else:
            named = f"{name}: " if name else ""
            cut = replace(capture, name=f"{named}without {sentences.removed_words(run)}")
            every = page_capture(whole, f"{named}every head", given)
            both = [*page.with_difference(every, cut, f"{named}{WITHOUT_WITH}")]
            captures += both
            of_cut = (cell._replace(capture=1) for cell in cells)
            cells = [*page.largest_changes(both), *of_cut][:most]
        look += [cell._replace(capture=cell.capture + first) for cell in cells]
    order = "" if report.first.sorted_by is None else f"&sort={report.first.sorted_by}"
    known = measures(captures[0].heads) + [page.LARGEST_CHANGE] * bool(report.before)
    link = f"{opened}{'&capture=1' * bool(report.before)}{order}"
    return page.Page(report.first.record.model.name, captures, known, look[:_LOOK], _LESS, link)


def page_capture(
    run: HeadsRecord, name: str, given: str = "", look: Sequence[page.Look] = ()
) -> page.PageCapture:
    """Return one run's maps for a page. look: cells that are listed first, with exact numbers."""
    record, entries = run.record, run.heads
    queries, keys, vectors = record.queries, record.keys, kept_vectors(run, entries)
    order = [*dict.fromkeys([cell.head for cell in look] + _clearest(run))]
    both = record.kind != "cross"
    read = run.target or "" if record.kind in ("decoder", "cross") else run.text
    sink = sink_of(record)[1] if run.sink else np.zeros(len(keys), bool)
    plain = "× value norm" if run.norm_weighted else "raw" if run.sink else "without sink"
    products, heads = None, []
    if (factor := vectors.get("query_key_factor")) is not None:
        products = page.QueryKey(vectors["queries"], vectors["keys"], float(factor))
    for entry in entries:
        known = label_named(entry.label.name)
        head = page.PageHead(
            *entry.place,
            name=run.name(*entry.place),
            label=page.page_label(entry.label, known.meaning, known.colour),
            score=entry.label.score,
            facts=" · ".join(sentences.score_words(run, entry)[1:]),
            values={"sink_weight": run.sinks.get(entry.place), **entry.scores},
        )
        heads.append(head)
    return page.PageCapture(
        name=name,
        kind=record.kind,
        causal=record.causal and both,
        heads=heads,
        weights=[run.weights(*entry.place) for entry in entries],
        queries=queries,
        keys=queries if both else keys,
        texts=(read, run.text if record.kind == "cross" else read),
        order=order,
        given=given or plain,
        fine=max(8, len(look)) if not run.selected else len(entries),
        sink=np.flatnonzero(sink).tolist(),
        norms=None if run.norm_weighted or not run.sink else vectors.get("value_norms"),
        query_key=products,
        notes=() if run.vectors is None else run.vectors.notes,
        query=look[0].query if look else len(queries) - 1,
        key=look[0].key if look and look[0].head == order[0] else -1,
        head=order[0],
    )


def measures(heads: Sequence[page.PageHead]) -> list[page.PageMeasure]:
    """Return the measures that these heads have, by which a page can sort them."""
    orders = []
    for name in heads[0].values:
        numbers = [number for head in heads if (number := head.values[name]) is not None]
        if known := [number for number in numbers if math.isfinite(number)]:
            unit = MEASURES[name].unit if name in MEASURES else "share"
            words, signed = said_name(name).replace("_", " "), min(known) < 0
            orders.append(page.PageMeasure(name, words, unit.removeprefix("share"), signed))
    return orders


def with_effects(
    capture: page.PageCapture, effects: Mapping[tuple[int, int], float], unit: str = ""
) -> tuple[page.PageCapture, page.PageMeasure]:
    """Return the capture with the effect of ablating each head, and a measure to sort by it."""
    measure = page.PageMeasure("ablation", "effect of ablation", unit, signed=True)
    heads = [
        replace(head, values={**head.values, measure.key: effects.get((head.layer, head.head))})
        for head in capture.heads
    ]
    return replace(capture, heads=heads), measure


def _clearest(run: HeadsRecord) -> list[int]:
    """Return the heads' indices: clear labels first, but chosen or sorted heads in their order."""

    def rank(at: int) -> tuple[bool, bool, float]:
        label = run.heads[at].label
        rests = run.rests(*run.heads[at].place)
        return not label.is_finding, rests, -np.nan_to_num(label.score)

    order = range(len(run.heads))
    return [*order] if run.selected or run.sorted_by is not None else sorted(order, key=rank)


def _worth_a_look(report: HeadsReport) -> Iterator[page.Look]:
    """Yield the links that the finding names, then a link of each of the most distinctive heads."""
    run, named = report.first, set()
    index = {head: at for at, head in enumerate(run.places)}
    for link, words in named_links(report):
        named.add(link[:2])
        yield page.Look(0, index[link[:2]], link.query, link.key, words)
    for head in distinctive(report):
        links = head_links(run, *head, _TRIED, report.view.sink)
        if head not in named and links:
            label = run.scores(*head).label
            shown = next((link for link in links if _shows(run, label.name, link)), None)
            link = shown or links[0]
            words = f"{sentences.scored(label.said, label.score)}: " if shown else ""
            yield page.Look(0, index[head], *link[2:4], words + link_words(run, link))


def _shows(run: HeadsRecord, name: str, link: Link) -> bool:
    """Return whether the score of the label ``name`` rises by this link; False for a relation."""
    record = run.record
    text = TextFacts(record.queries, record.keys, Conditions(record.kind, record.causal))
    alone = np.zeros((1, len(record.keys)))
    alone[0, link.key] = 1
    scores = scores_of(RowBlock(text, alone, link.query), [name])
    return name == "peaked" or bool(scores.get(name, np.zeros(())) > 0)


def named_links(report: HeadsReport) -> Iterator[tuple[Link, str]]:
    """Yield each link that the finding names, or largest cell of a region, with its description."""
    run, view = report.first, report.view

    def largest(head: tuple[int, int], queries: Sequence[int], keys: Sequence[int]) -> Link:
        weights = np.nan_to_num(run.weights(*head))
        cell = max(product(queries, keys), key=lambda cell: weights[cell])
        return Link(*head, *cell, float(weights[cell]))

    if view.pairs:
        pair = view.pairs[0]
        for best in pair.links[:2]:
            words = f"{pair.names[best.direction]} {share(best.weight)}"
            yield largest((best.layer, best.head), *pair.directions[best.direction]), words
    elif view.words or view.top is not None:
        links = strongest_links(run, _LOOK, view.sink) if not view.words else []
        for way in word_links(run, view.words[0], view.sink) if view.words else ():
            links += way[:2]
        yield from ((link, link_words(run, link)) for link in links)
    elif run.regions is not None and run.record.model.weights != "random":
        regions, at = run.regions, clearest(run.regions)
        names = [*regions.queries][at[1]], [*regions.keys][at[2]]
        within = [
            [number for number, region in enumerate(axis.regions) if region == name]
            for axis, name in zip((run.record.queries, run.record.keys), names, strict=True)
        ]
        words = f"{' → '.join(map(visible, names))} {share(float(regions.share[at]))}"
        yield largest(regions.heads[at[0]], *within), words
    elif run.regions is None:
        for telling in report.told:
            link = telling.link
            ends = " → ".join(sentences.quoted_ends(run, link))
            cell = largest((link.layer, link.head), link.query, link.key)
            yield cell, f"{ends} {share(telling.weight)}"
