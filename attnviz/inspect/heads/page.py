"""The interactive page of ``attnviz heads``: every head of each run, and what the findings name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from attnviz.draw.labels import visible
from attnviz.draw.page.data import (
    Look,
    Page,
    PageCapture,
    PageHead,
    PageMeasure,
    QueryKey,
    page_label,
)
from attnviz.draw.page.difference import LARGEST_CHANGE, largest_changes, with_difference
from attnviz.draw.provenance import share
from attnviz.draw.regions import clearest
from attnviz.draw.values import json_number
from attnviz.inspect.heads.examples import distinctive
from attnviz.inspect.heads.finding import described, quoted_ends, said_links, scored
from attnviz.inspect.heads.links import (
    LONGEST,
    Link,
    head_links,
    link_names,
    strongest_links,
    word_links,
)
from attnviz.inspect.heads.report import (
    HeadsReport,
    HeadsView,
    compare_heads,
    kept_vectors,
)
from attnviz.inspect.heads.words import removed_words, score_words
from attnviz.measures.registry import MEASURES, label_named, said_name
from attnviz.measures.rows import Conditions, TextFacts, whole_scores
from attnviz.measures.sinks import sink_of
from attnviz.records import HeadScores, HeadsRecord

_TRIED = 20
"""The most links of a head of which one is looked for that shows its label."""

_LOOK = 5
"""The most places that a page offers for a look."""

WITHOUT_WITH = "difference: without − with"
"""The name of what an intervention changes."""

_SINK_WEIGHT = "sink_weight"
_LESS = "; all of them: --layer, --head or a shorter text, or --save x.npz for the numbers"


def heads_page(
    found: HeadsReport,
    view: HeadsView,
    names: Sequence[Sequence[str]],
    given: str = "",
    opened: str = "",
) -> Page:
    """Return the page of one run, or of several with a selector.

    names: the words in which each run differs. given: what the weights are, if not what the report
        says. opened: the name of the head that is shown first, if not that of the first look.
    """
    captures, look = list[PageCapture](), list[Look]()
    most = max(1, _LOOK // len(found.reports)) if found.of_texts else _LOOK
    before = found.before or [None] * len(found.reports)
    for run, whole, words in zip(found.reports, before, names, strict=True):
        alone = compare_heads([run]) if found.of_texts else found
        places = [*islice(_worth_a_look(alone, view), most)] if run is alone.first else []
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
    order = "" if found.first.sorted_by is None else f"&sort={found.first.sorted_by}"
    known = measures(captures[0].heads) + [LARGEST_CHANGE] * bool(found.before)
    link = f"{opened}{'&capture=1' * bool(found.before)}{order}"
    return Page(found.first.record.model.name, captures, known, look[:_LOOK], _LESS, link)


def page_capture(
    report: HeadsRecord, name: str, given: str = "", look: Sequence[Look] = ()
) -> PageCapture:
    """Return the maps of one run. look: places that stand first and keep exact numbers."""
    record, entries = report.record, report.heads
    queries, keys, vectors = record.queries, record.keys, kept_vectors(report, entries)
    order = [*dict.fromkeys([each.head for each in look] + _clearest(report))]
    both = record.kind != "cross"
    read = report.target or "" if record.kind in ("decoder", "cross") else report.text
    sink = sink_of(record)[1] if report.sink else np.zeros(len(keys), bool)
    said = "× value norm" if report.norm_weighted else "raw" if report.sink else "without sink"
    return PageCapture(
        name=name,
        kind=record.kind,
        causal=record.causal and both,
        heads=[page_head(report, entry) for entry in entries],
        weights=[report.weights(entry.layer, entry.head) for entry in entries],
        queries=queries,
        keys=queries if both else keys,
        texts=(read, report.text if record.kind == "cross" else read),
        order=order,
        given=given or said,
        fine=max(8, len(look)) if not report.selected else len(entries),
        sink=np.flatnonzero(sink).tolist(),
        norms=None if report.norm_weighted or not report.sink else vectors.get("value_norms"),
        query_key=QueryKey(vectors["queries"], vectors["keys"], float(vectors["query_key_factor"]))
        if "query_key_factor" in vectors
        else None,
        notes=() if report.vectors is None else report.vectors.notes,
        query=look[0].query if look else len(queries) - 1,
        head=order[0],
    )


def page_head(report: HeadsRecord, entry: HeadScores) -> PageHead:
    """Return a head as a page shows it: its label, scores and further words."""
    place, known = (entry.layer, entry.head), label_named(entry.label.name)
    return PageHead(
        *place,
        name=report.name(*place),
        label=page_label(entry.label, known.meaning, known.colour),
        score=entry.label.score,
        facts=" · ".join(score_words(report, entry)[1:]),
        values={_SINK_WEIGHT: report.sinks.get(place), **entry.scores},
    )


def measures(heads: Sequence[PageHead]) -> list[PageMeasure]:
    """Return the measures that this text has, by which a page can order its heads."""
    found = []
    for name in heads[0].values:
        numbers = [json_number(head.values[name]) for head in heads]
        if known := [number for number in numbers if number is not None]:
            unit = MEASURES[name].unit if name in MEASURES else "share"
            said = said_name(name).replace("_", " ")
            found.append(PageMeasure(name, said, "" if unit == "share" else unit, min(known) < 0))
    return found


def with_effects(
    capture: PageCapture, effects: Mapping[tuple[int, int], float], unit: str = ""
) -> tuple[PageCapture, PageMeasure]:
    """Return the capture with the effect of each head's ablation, and the measure of it.

    effects: by (layer, head). unit: of the effects.
    """
    measure = PageMeasure("ablation", "effect of ablation", unit, signed=True)
    heads = [
        replace(each, values={**each.values, measure.key: effects.get((each.layer, each.head))})
        for each in capture.heads
    ]
    return replace(capture, heads=heads), measure


def _clearest(report: HeadsRecord) -> list[int]:
    """Return the heads' indices: clear labels first, but chosen or sorted heads in their order."""
    places = range(len(report.heads))
    if report.selected or report.sorted_by is not None:
        return [*places]

    def rank(at: int) -> tuple[bool, bool, float]:
        what = described(report.heads[at])
        resting = report.rests(report.heads[at].layer, report.heads[at].head)
        return not what.finding, resting, -np.nan_to_num(what.score)

    return sorted(places, key=rank)


# What is worth a look ------------------------------------------------------------------------


def _worth_a_look(found: HeadsReport, view: HeadsView) -> Iterator[Look]:
    """Yield the links that the finding names, then a link of each of the most distinctive heads."""
    report = found.first
    places = {(entry.layer, entry.head): at for at, entry in enumerate(report.heads)}
    named = set()
    for link, says in named_links(found, view):
        named.add(link[:2])
        yield Look(0, places[link[:2]], link.query, link.key, says)
    for layer, head in distinctive(found):
        links = head_links(report, layer, head, _TRIED, view.sink)
        if (layer, head) not in named and links:
            entry = report.scores(layer, head)
            shown = next((link for link in links if _shows(report, entry.label.name, link)), None)
            what, link = described(entry), shown or links[0]
            says = f"{scored(what.said, what.score)}: " if shown else ""
            yield Look(0, places[layer, head], *link[2:4], says + _link_words(report, link))


def _shows(report: HeadsRecord, name: str, link: Link) -> bool:
    """Return whether the score of the label ``name`` rises by this link; False for a relation."""
    record = report.record
    facts = TextFacts(record.queries, record.keys, Conditions(record.kind, record.causal))
    alone = np.zeros((1, len(record.keys)))
    alone[0, link.key] = 1
    scores = whole_scores(facts, alone, [name], link.query)
    return name == "peaked" or bool(scores.get(name, np.zeros(())) > 0)


def named_links(found: HeadsReport, view: HeadsView) -> Iterator[tuple[Link, str]]:
    """Yield the links, or a cell of the regions, that the finding names, and what it says of them.

    view: the display options of the finding.
    """
    report = found.first
    if view.pairs:
        pair = view.pairs[0]
        for each in pair.links[:2]:
            ends = pair.directions[each.direction]
            link = _largest(report, each.layer, each.head, ends.queries, ends.keys)
            yield link, f"{pair.names[each.direction]} {share(each.weight)}"
    elif view.words:
        for way in word_links(report, view.words[0], view.sink):
            for one in way[:2]:
                yield one, _link_words(report, one)
    elif view.top is not None:
        for one in strongest_links(report, _LOOK, view.sink):
            yield one, _link_words(report, one)
    elif report.regions is not None and report.record.model.weights != "random":
        regions, record = report.regions, report.record
        at = clearest(regions)
        names = [*regions.queries][at[1]], [*regions.keys][at[2]]
        sides = [each.regions for each in (record.queries, record.keys)]
        within = [
            [place for place, region in enumerate(side) if region == name]
            for side, name in zip(sides, names, strict=True)
        ]
        says = f"{' → '.join(map(visible, names))} {share(float(regions.share[at]))}"
        yield _largest(report, *regions.heads[at[0]], *within), says
    elif report.regions is None:
        for said in said_links(found):
            link = _largest(report, said.layer, said.head, said.query, said.key)
            words = f"{' → '.join(quoted_ends(report, said))} {share(said.weight)}"
            yield link, f"{words}, usual {share(said.habit)}"


def _largest(
    report: HeadsRecord, layer: int, head: int, queries: Sequence[int], keys: Sequence[int]
) -> Link:
    """Return the largest weight of a head between two words."""
    weights = np.nan_to_num(report.weights(layer, head))
    query, key = max(
        ((query, key) for query in queries for key in keys), key=lambda cell: weights[cell]
    )
    return Link(layer, head, query, key, float(weights[query, key]))


def _link_words(report: HeadsRecord, link: Link) -> str:
    queries, keys = link_names(report.record, LONGEST)
    return f"{queries[link.query]} → {keys[link.key]} {share(link.weight)}"
