"""The document of ``attnviz heads``: all heads small, notable ones in full, or lists of pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.provenance import (
    advised,
    label_source,
    label_text,
    model_words,
    notes_group,
    share,
    size_words,
)
from attnviz.draw.regions import region_group
from attnviz.draw.values import json_number
from attnviz.inspect.heads.examples import distinctive, first_arcs
from attnviz.inspect.heads.finding import finding, heading, overview_words
from attnviz.inspect.heads.first import first_groups, label_grid
from attnviz.inspect.heads.links import (
    links_of,
    links_table,
    pairs_table,
    word_links,
    word_maps,
)
from attnviz.inspect.heads.page import heads_page
from attnviz.inspect.heads.pair import pair_table
from attnviz.inspect.heads.report import HeadsReport, HeadsView
from attnviz.inspect.heads.words import (
    explanation,
    name_words,
    removed_words,
    run_names,
    score_words,
)
from attnviz.measures.registry import said_name
from attnviz.records import HeadScores, HeadsRecord

_SCALE = doc.WEIGHTS._replace(after="√ scale; rows attend to columns")
_SMALL, _SMALL_ROWS = (8, 16), 12
_FEW_HEADS, _FEW_QUERIES = 8, 16
_LINKS, _DISTINCTIVE = 20, 3
_BETWEEN_HEADS = 8
_CAPTION = 14  # the letters below a small map in a picture


def heads_document(found: HeadsReport, view: HeadsView) -> doc.Document:
    """Return the document of one run, or of several with each head's maps next to each other.

    view: the display options. With several runs, tables, words and the small maps of all
        heads stand below each other, a group for each run.
    """
    records = [report.record for report in found.reports]
    shared, names = run_names(found)
    info = records[0].model
    groups = [
        doc.Group(_provenance(found, shared, names)),
        notes_group(info.notes, records[0].keys),
    ]
    if view.words or view.pairs or view.top is not None:
        for index, words in enumerate(names):
            groups.append(_headed(words, _listed(found, view, index)))
    elif len(records) > 1:
        groups += [*_compared(found, names, view), doc.Group([doc.Maps((), scale=_SCALE)])]
    else:
        if found.first.regions is not None:
            groups.append(region_group(found.first.regions, lambda head: found.first.name(*head)))
        groups += _single(found, view)
    groups.append(doc.Group([_scores(found, names)], full=True))
    name = info.name if info.is_array else f"attention heads of {info.name}"
    return doc.Document(
        name=name,
        title=name[:1].upper() + name[1:],
        groups=groups,
        explain=explanation(found) if view.explain else None,
        hints=[doc.Facts(_hints(found, view), tone="faint")] if view.hints else (),
        heading=heading(found, _changed(found.first), [*shared, *_left_out(found.first)]),
        quoted=found.first.text,
        finding=finding(found, view),
        first=advised(partial(first_groups, found, view), records[0].keys),
        page=partial(heads_page, found, view, names),
    )


def _hints(found: HeadsReport, view: HeadsView) -> doc.Words:
    """Return options to suggest next in hints. view: the current display options."""
    report = found.first
    place = distinctive(found)[0]
    if view.pairs:
        place = view.pairs[0].links[0][:2]
    elif view.words:
        links = [link for way in word_links(report, view.words[0], view.sink) for link in way]
        place = links[0][:2] if links else place
    words = [] if report.selected else [f"--head {report.name(*place)}"]
    if not (view.words or view.pairs):
        words += ["--token WORD", "--pair WORD WORD"]
    if report.selected and report.record.model.layers > 1:
        words.append(f"attnviz link --head {report.name(*place)}")
    words += [] if view.values else ["--values"]
    words += [] if view.explain else ["--explain"]
    return [(word, False) for word in words]


def _provenance(found: HeadsReport, shared: list[str], names: list[list[str]]) -> list[doc.Part]:
    """Return the facts that a reader needs to repeat the run: model, parameters and text.

    shared: words that hold for all runs. names: for each run the words in which it differs. Both
    are those of ``run_names``.
    """
    info = found.first.record.model
    sizes = [size_words(report.record) for report in found.reports]
    alike = len(set(sizes)) == 1
    seed = [] if info.seed is None else [f"seed {info.seed}"]
    words = [*shared, *sizes[:alike], *seed, *_changed(found.first), *_left_out(found.first)]
    labels = label_source(each.label for report in found.reports for each in report.heads)
    words += [labels] if labels else []
    parts: list[doc.Part] = [doc.Facts([*model_words(info), *((word, False) for word in words)])]
    if found.first.text or not info.is_array:
        parts += [doc.Quote("text", text) for text in dict.fromkeys(e.text for e in found.reports)]
    targets = dict.fromkeys(each.target for each in found.reports if each.target is not None)
    parts += [doc.Quote("target", target) for target in targets]
    if len(found.reports) > 1 and not found.of_texts:
        beside = [
            " and ".join(name) + ("" if alike else f" ({size})")
            for name, size in zip(names, sizes, strict=True)
        ]
        beside[0] = f"side by side: {beside[0]}"
        parts.append(doc.Facts([(words, False) for words in beside]))
    return parts


def _changed(report: HeadsRecord) -> list[str]:
    """Return remarks on the ablated heads, and on attention weights that are norm-weighted."""
    without = [f"without {removed_words(report)}"] if report.ablated else []
    return [*without, *["norm-weighted"] * report.norm_weighted]


def _left_out(report: HeadsRecord) -> list[str]:
    """Return remarks on a sink that was left out, and on rows that are empty without it."""
    if report.sink:
        return []
    rows = [np.isnan(weights).all(-1) for _, _, weights in report.record]
    blank = int(sum(each.sum() for each in rows))
    left = (
        f" ({blank:,} of {sum(each.size for each in rows):,} rows: nothing left)" if blank else ""
    )
    return [f"sink left out, rows rescaled{left}"]


def _headed(name: Sequence[str], parts: Sequence[doc.Part | doc.Group]) -> doc.Group:
    """Return the parts of one run as a group, under the words in which it differs from others."""
    head = [doc.Facts([(word, True) for word in name])] if name else []
    return doc.Group([*head, *parts], spaced=True)


def _listed(found: HeadsReport, view: HeadsView, index: int) -> list[doc.Part]:
    """Return tables on the requested word or word pair, or of each head's strongest token pairs.

    view: the request. index: of the run in ``found.reports``.
    """
    report = found.reports[index]
    if view.pairs:
        return [pair_table(report.name, view.pairs[index])]
    if not view.words:
        return [pairs_table(report, view.top or 1, view.sink)]
    ways = zip(("from", "to"), word_links(report, view.words[index], view.sink), strict=True)
    tables = [
        links_table(report, links, f"strongest attention {way} the word, each head", view.sink)
        for way, links in ways
        if links
    ]
    return [*tables, word_maps(report, view.words[index], view.values)]


# One run -------------------------------------------------------------------------------------


def _single(found: HeadsReport, view: HeadsView) -> Iterator[doc.Group]:
    report = found.first
    if report.selected or _few_heads(report):
        drawn = [_map(report, scores) for scores in report.heads]
        yield doc.Group([_full(drawn, report, view)])
        if len(drawn) == 1:
            yield doc.Group(first_arcs(found, view))
        return
    yield from _overview(report)
    links = links_of(found, view.sink, _LINKS)
    if links is not None:
        yield doc.Group([links])
    title = "The most distinctive heads"
    if report.sorted_by is not None:
        title = f"The first {_DISTINCTIVE} by {said_name(report.sorted_by)}"
    drawn = [_map(report, report.scores(*place)) for place in distinctive(found)[:_DISTINCTIVE]]
    yield doc.Group([_full(drawn, report, view)._replace(title=[(title, True)])])


def _few_heads(report: HeadsRecord) -> bool:
    return len(report.heads) <= _FEW_HEADS and len(report.record.queries) <= _FEW_QUERIES


def _full(maps: Sequence[doc.Map], report: HeadsRecord, view: HeadsView) -> doc.Maps:
    return doc.Maps(maps, values=view.values, scale=_SCALE)


def _map(report: HeadsRecord, scores: HeadScores) -> doc.Map:
    """Return the map of one head, with its name and scores as the title."""
    record, (label, *rest) = report.record, score_words(report, scores)
    title = [*name_words(report, scores), (label, True), *((word, False) for word in rest)]
    return doc.Map(
        report.name(scores.layer, scores.head),
        report.weights(scores.layer, scores.head),
        record.queries,
        record.keys,
        title,
        causal=record.causal,
    )


def _overview(report: HeadsRecord) -> Iterator[doc.Group]:
    """Yield two groups: the labels of all heads, and a small map of each head.

    In a figure each row of maps is a layer.
    """
    maps = []
    for scores in report.heads:
        caption = label_text(scores.label, _CAPTION)
        if report.sorted_by is not None:
            value = scores.scores[report.sorted_by]
            caption = "not measured" if value is None else f"{value:.3f}"
        tip = " · ".join(score_words(report, scores))
        shown = _map(report, scores)._replace(words=(), below=[(caption, False)], tip=tip)
        maps.append(shown)
    if report.sorted_by is None:
        words = [("Label and score of each head", True)]
        words += [(each, False) for each in overview_words(report)]
        yield doc.Group([label_grid(report)._replace(title=words)])
    order = "" if report.sorted_by is None else f" by {said_name(report.sorted_by)}"
    across = report.record.model.heads if report.sorted_by is None else 0
    small = doc.Maps(maps, [(f"All heads{order}", True)], _SMALL, _SMALL_ROWS, across, scale=None)
    yield doc.Group([small])


# Several runs --------------------------------------------------------------------------------


def _compared(found: HeadsReport, names: list[list[str]], view: HeadsView) -> Iterator[doc.Group]:
    """Yield each head's maps side by side, after an overview if there are many heads."""
    if not _whole(found):
        for report, name in zip(found.reports, names, strict=True):
            yield _headed(name, [*_overview(report)])
    heads = [_side_by_side(found, place, names, view) for place in shown_heads(found)]
    yield doc.Group(heads, beside=doc.Beside(0, _BETWEEN_HEADS))


def shown_heads(found: HeadsReport) -> tuple[tuple[int, int], ...]:
    """Return the (layer, head) of heads with full maps: all if chosen or few, else notable ones."""
    if _whole(found):
        return tuple((entry.layer, entry.head) for entry in found.first.heads)
    ranked = zip(*(report.notable for report in found.reports), strict=False)
    return tuple(dict.fromkeys(place for places in ranked for place in places))


def _whole(found: HeadsReport) -> bool:
    return found.first.selected or all(map(_few_heads, found.reports))


def _side_by_side(
    found: HeadsReport, place: tuple[int, int], names: list[list[str]], view: HeadsView
) -> doc.Group:
    """Return one head's maps in all runs, each with the share of attention it moved.

    place: the (layer, head). names: for each run the words in which it differs.
    """
    maps = []
    for index in found.kept_by(*place):
        report, moved = found.reports[index], found.moved[index]
        words = score_words(report, report.scores(*place))
        words += [] if moved is None else [f"moved {share(moved[place])}"]
        shown = _map(report, report.scores(*place))
        maps.append(
            shown._replace(
                name=f"{shown.name} · {' · '.join(names[index])}",
                words=[(word, True) for word in names[index]],
                below=[(word, False) for word in words],
            )
        )
    title = name_words(found.first, found.first.scores(*place))
    drawn = _full(maps, found.first, view)
    return doc.Group([doc.Facts(title), drawn._replace(scale=None)])


# Scores --------------------------------------------------------------------------------------


def _scores(found: HeadsReport, names: list[list[str]]) -> doc.Table:
    """Return a table of all scores of each selected head in each run; a dash is not measured."""
    grouped, several = found.first.record.model.group(0) is not None, len(names) > 1
    measures = list(found.first.heads[0].scores)
    columns = [
        doc.Column("head", right=False),
        *[doc.Column("key/value head")] * grouped,
        *([doc.Column("attention", right=False)] if several else []),
        doc.Column("label", right=False),
        *map(doc.Column, ("score", "uniform", *(said_name(name) for name in measures))),
        *([doc.Column("moved")] if several else []),
    ]
    rows = []
    for first in found.first.heads:
        place = first.layer, first.head
        for index in found.kept_by(*place):
            report, moved = found.reports[index], found.moved[index]
            scores, group = report.scores(*place), report.record.model.group(first.head)
            label = scores.label
            numbers = [label.score, label.base_rate, *scores.scores.values()]
            numbers += [None if moved is None else moved[place]] if several else []
            cells = [report.name(*place)]
            cells += [] if group is None else [str(group + report.index_base)]
            cells += ([" · ".join(names[index])] if several else []) + [label.said]
            known = map(json_number, numbers)
            cells += ["–" if number is None else f"{number:.3f}" for number in known]
            rows.append(doc.Row(cells))
    return doc.Table(columns, rows, [("Scores", True)])
