"""The documents of ``attnviz heads``: all heads small, notable ones in full, or lists of pairs.

With several runs, tables, words and the small maps of all heads stand below each other, a group for
each run; each head's full maps stand next to each other. A long text has pooled maps. The
interactive page has every head of each run, and lists what is worth a look.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw import provenance as facts
from attnviz.draw.labels import token_labels, visible
from attnviz.draw.page import data as page
from attnviz.draw.provenance import share
from attnviz.draw.regions import clearest, region_group
from attnviz.inspect.heads import layout, sentences
from attnviz.inspect.heads.layout import distinctive, head_map
from attnviz.inspect.heads.links import (
    Link,
    head_links,
    link_words,
    pair_table,
    pairs_table,
    strongest_links,
    word_links,
    word_maps,
    word_tables,
)
from attnviz.inspect.heads.report import HeadsReport, LongHead, LongHeads, kept_vectors
from attnviz.measures.registry import MEASURES, label_named, said_name
from attnviz.measures.rows import Conditions, RowBlock, TextFacts, scores_of
from attnviz.measures.sinks import sink_of
from attnviz.measures.words import word_text
from attnviz.records import NO_LABEL, SINKS, HeadScores, HeadsRecord

_SCALE = doc.WEIGHTS._replace(after="√ scale; rows attend to columns")
_SMALL, _SMALL_ROWS = (8, 16), 12
_FEW_HEADS, _FEW_QUERIES = 8, 16
_LINKS, _DISTINCTIVE = 20, 3
_BETWEEN_HEADS = 8
_CAPTION = 14  # the letters below a small map in a picture
_LISTED = 12  # the fewest pairs of a long text that its first screen lists
_TRIED = 20  # the most links of a head of which one is looked for that shows its label
_LOOK = 5  # the most cells that a page offers for a look
WITHOUT_WITH = "difference: without − with"
"""The name of what an intervention changes."""

_LESS = "; all of them: --layer, --head or a shorter text, or --save x.npz for the numbers"
Names = Sequence[Sequence[str]]
"""The words in which each run differs from the others, see ``run_names``."""


def document(report: HeadsReport | LongHeads) -> doc.Document:
    """Return the document of one run, of several side by side, or of a long text."""
    return _of_sums(report) if isinstance(report, LongHeads) else _of_maps(report)


def _of_maps(report: HeadsReport) -> doc.Document:
    run, view, info = report.first, report.view, report.first.record.model
    shared, names = sentences.run_names(report)
    groups = [
        doc.Group(_provenance(report, shared, names)),
        facts.notes_group(info.notes, run.record.keys),
    ]
    if view.words or view.pairs or view.top is not None:
        groups += [_headed(words, _listed(report, index)) for index, words in enumerate(names)]
    elif len(report.reports) > 1:
        groups += [*_compared(report, names), doc.Group([doc.Maps((), scale=_SCALE)])]
    else:
        if run.regions is not None:
            groups.append(region_group(run.regions, lambda head: run.name(*head)))
        groups += _single(report)
    groups.append(doc.Group([_scores(report, names)], full=True))
    name = info.name if info.is_array else f"attention heads of {info.name}"
    return doc.Document(
        name=name,
        title=name[:1].upper() + name[1:],
        groups=groups,
        explain=_explanation(report),
        hints=doc.next_steps(_hints(report), tone="faint"),
        heading=_heading(report, shared),
        quoted=run.text,
        finding=sentences.finding(report),
        first=facts.advised(partial(layout.first_groups, report), run.record.keys),
        page=partial(heads_page, report, names),
    )


def _heading(report: HeadsReport, shared: Sequence[str]) -> doc.Words:
    run, info = report.first, report.first.record.model
    changed, left_out = _differs(run)
    words = [*[info.untrained] * bool(info.untrained), *changed, *facts.places_words(info)]
    words += [] if info.is_one_layer else [facts.shape_words(info.of(run.record.kind))]
    words += [*shared, *left_out]
    if report.of_texts:
        least, *_, most = sorted(len(run.record.queries) for run in report.reports)
        apart = f"{least:,}" + (f" to {most:,}" if least < most else "")
        words.append(f"{len(report.reports):,} texts of {apart} tokens")
    else:
        words += dict.fromkeys(facts.size_words(run.record) for run in report.reports)
    return [(info.name, True), *((word, False) for word in words)]


def _hints(report: HeadsReport) -> list[str]:
    run, view = report.first, report.view
    head = distinctive(report)[0]
    if view.pairs:
        head = view.pairs[0].links[0][:2]
    elif view.words:
        head = next((link[:2] for link in chain(*word_links(run, view.words[0], view.sink))), head)
    words = [] if run.selected else [f"--head {run.name(*head)}"]
    if not run.record.model.layer_names:  # an nn.Module reads no texts
        if not (view.words or view.pairs):
            words += ["--token WORD", "--pair WORD WORD"]
        if run.selected and run.record.model.layers > 1:
            words.append(f"attnviz link --head {run.name(*head)}")
    return [*words, *["--values"] * (not view.values), "--explain"]


def _provenance(report: HeadsReport, shared: Sequence[str], names: Names) -> list[doc.Part]:
    run, info = report.first, report.first.record.model.of(report.first.record.kind)
    sizes = [facts.size_words(run.record) for run in report.reports]
    alike = len(set(sizes)) == 1
    seed = [] if info.seed is None else [f"seed {info.seed}"]
    words = [*shared, *sizes[:alike], *seed, *chain(*_differs(run))]
    labels = facts.label_source(entry.label for run in report.reports for entry in run.heads)
    words += [labels] if labels else []
    parts: list[doc.Part] = [
        doc.Facts([*facts.model_words(info), *((word, False) for word in words)])
    ]
    if run.text or not (info.is_array or info.layer_names):
        parts += [doc.Quote("text", text) for text in dict.fromkeys(r.text for r in report.reports)]
    targets = dict.fromkeys(run.target for run in report.reports if run.target is not None)
    parts += [doc.Quote("target", target) for target in targets]
    if len(report.reports) > 1 and not report.of_texts:
        beside = [
            " and ".join(name) + ("" if alike else f" ({size})")
            for name, size in zip(names, sizes, strict=True)
        ]
        beside[0] = f"side by side: {beside[0]}"
        parts.append(doc.Facts([(words, False) for words in beside]))
    return parts


def _differs(run: HeadsRecord) -> tuple[list[str], list[str]]:
    """Return remarks on what was changed, and on a sink that was left out of the weights."""
    changed = [f"without {sentences.removed_words(run)}"] if run.ablated else []
    changed += ["norm-weighted"] * run.norm_weighted
    if run.sink:
        return changed, []
    rows = np.concatenate([np.isnan(weights).all(-1) for _, _, weights in run.record])
    left = f" ({rows.sum():,} of {rows.size:,} rows: nothing left)" if rows.any() else ""
    return changed, [f"sink left out, rows rescaled{left}"]


def _headed(name: Sequence[str], parts: Sequence[doc.Part | doc.Group]) -> doc.Group:
    head = [doc.Facts([(word, True) for word in name])] if name else []
    return doc.Group([*head, *parts], spaced=True)


def _listed(report: HeadsReport, index: int) -> list[doc.Part]:
    run, view = report.reports[index], report.view
    if view.pairs:
        return [pair_table(run, view.pairs[index])]
    if not view.words:
        return [pairs_table(run, view.top or 1, view.sink)]
    word, title = view.words[index], "strongest attention {} the word, each head"
    return [*word_tables(run, word, view.sink, title), word_maps(run, word, view.values)]


def _explanation(report: HeadsReport) -> doc.Explanation:
    record = report.first.record
    size, seed = facts.size_words(record), record.model.seed
    drawn = "" if seed is None else f", weights drawn from seed {seed}"
    measured = f"all weights come from one pass over this text alone, {size}{drawn}."
    if record.model.is_array:
        measured = f"all numbers are of the given weights, {size}."
    labels = [entry.label for run in report.reports for entry in run.heads]
    counted = Counter(label.name for label in labels if label is not NO_LABEL)
    known = [label_named(name) for name, _ in counted.most_common() if name not in SINKS]
    terms = [doc.Meaning((label.short, label.said), f"{label.meaning}.") for label in known]
    return doc.Explanation("heads", measured, terms)


# One run -------------------------------------------------------------------------------------


def _single(report: HeadsReport) -> Iterator[doc.Group]:
    run, values = report.first, report.view.values
    if run.selected or _few_heads(run):
        drawn = [_map(run, scores) for scores in run.heads]
        yield doc.Group([doc.Maps(drawn, values=values, scale=_SCALE)])
        if len(drawn) == 1:
            yield doc.Group(layout.first_arcs(report))
        return
    yield from _overview(run)
    if (links := layout.links_of(report, _LINKS)) is not None:
        yield doc.Group([links])
    title = "The most distinctive heads"
    if run.sorted_by is not None:
        title = f"The first {_DISTINCTIVE} by {said_name(run.sorted_by)}"
    drawn = [_map(run, run.scores(*head)) for head in distinctive(report)[:_DISTINCTIVE]]
    yield doc.Group([doc.Maps(drawn, [(title, True)], values=values, scale=_SCALE)])


def _few_heads(run: HeadsRecord) -> bool:
    return len(run.heads) <= _FEW_HEADS and len(run.record.queries) <= _FEW_QUERIES


def _map(run: HeadsRecord, scores: HeadScores) -> doc.Map:
    label, *rest = sentences.score_words(run, scores)
    title = [*sentences.name_words(run, scores), (label, True), *((word, False) for word in rest)]
    return head_map(run, scores.place, title)


def _overview(run: HeadsRecord) -> Iterator[doc.Group]:
    """Yield two groups: the labels of all heads, and a small map of each head."""
    maps, order, across = [], "", run.record.model.heads
    for scores in run.heads:
        caption = facts.label_text(scores.label, _CAPTION)
        if run.sorted_by is not None:
            score = scores.scores[run.sorted_by]
            caption = "not measured" if score is None else f"{score:.3f}"
        tip = " · ".join(sentences.score_words(run, scores))
        maps.append(_map(run, scores)._replace(words=(), below=[(caption, False)], tip=tip))
    if run.sorted_by is None:
        words = [("Label and score of each head", True)]
        words += [(word, False) for word in sentences.overview_words(run)]
        yield doc.Group([layout.label_grid(run)._replace(title=words)])
    else:
        order, across = f" by {said_name(run.sorted_by)}", 0
    title = [(f"All heads{order}", True)]
    yield doc.Group([doc.Maps(maps, title, _SMALL, _SMALL_ROWS, across, scale=None)])


# Several runs --------------------------------------------------------------------------------


def _compared(report: HeadsReport, names: Names) -> Iterator[doc.Group]:
    shown: Sequence[tuple[int, int]] = report.first.places
    if not (report.first.selected or all(map(_few_heads, report.reports))):
        for run, name in zip(report.reports, names, strict=True):
            yield _headed(name, [*_overview(run)])
        ranked = zip(*(run.notable for run in report.reports), strict=False)
        shown = [*dict.fromkeys(chain(*ranked))]
    heads = []
    for head in shown:
        maps = []
        for index in report.kept_by(*head):
            run, moved = report.reports[index], report.moved[index]
            words = sentences.score_words(run, run.scores(*head))
            words += [] if moved is None else [f"moved {share(moved[head])}"]
            drawn = _map(run, run.scores(*head))
            name = f"{drawn.name} · {' · '.join(names[index])}"
            below = [(word, False) for word in words]
            above = [(word, True) for word in names[index]]
            maps.append(drawn._replace(name=name, words=above, below=below))
        title = doc.Facts(sentences.name_words(report.first, report.first.scores(*head)))
        heads.append(doc.Group([title, doc.Maps(maps, values=report.view.values, scale=None)]))
    yield doc.Group(heads, beside=doc.Beside(0, _BETWEEN_HEADS))


def _scores(report: HeadsReport, names: Names) -> doc.Table:
    grouped, several = report.first.record.model.group(0) is not None, len(names) > 1
    measured = [said_name(name) for name in report.first.heads[0].scores]

    def number(value: float | None) -> str:
        return "–" if value is None or not np.isfinite(value) else f"{value:.3f}"

    columns = [
        doc.Column("head", right=False),
        *[doc.Column("key/value head")] * grouped,
        *[doc.Column("attention", right=False)] * several,
        doc.Column("label", right=False),
        *map(doc.Column, ("score", "uniform", *measured, *["moved"] * several)),
    ]
    rows = []
    for head in report.first.places:
        for index in report.kept_by(*head):
            run, moved = report.reports[index], report.moved[index]
            scores, group = run.scores(*head), run.record.model.group(head[1])
            numbers = [scores.label.score, scores.label.base_rate, *scores.scores.values()]
            numbers += [None if moved is None else moved[head]] * several
            cells = [run.name(*head)]
            cells += [] if group is None else [str(group + run.index_base)]
            cells += [" · ".join(names[index])] * several + [scores.label.said]
            rows.append(doc.Row([*cells, *map(number, numbers)]))
    return doc.Table(columns, rows, [("Scores", True)])


# A long text ---------------------------------------------------------------------------------


def _of_sums(report: LongHeads) -> doc.Document:
    info, size = report.model, f"{len(report.tokens):,} tokens"
    name, asked = f"attention heads of {info.name}", _asked(report)
    further = ["--queries A-B --keys A-B", "--token WORD", "--top N", "--reduce full"]
    about = doc.Facts([*facts.model_words(info), (size, False)])
    return doc.Document(
        name,
        name[:1].upper() + name[1:],
        [
            doc.Group([about, doc.Quote("text", report.text)]),
            facts.notes_group((*info.notes, *report.notes), report.tokens),
            *asked,
            doc.Group([_pooled(report)]),
            doc.Group([_long_scores(report)]),
        ],
        doc.Explanation("heads", f"all weights come from one pass over this text alone, {size}."),
        doc.next_steps(further, tone="faint"),
        heading=[*facts.named(info), (size, False)],
        quoted=report.text,
        finding=sentences.long_finding(report),
        first=facts.advised(partial(_long_first, report, asked), report.tokens),
    )


def _long_first(
    report: LongHeads, asked: Sequence[doc.Group], columns: int, lines: int
) -> Sequence[doc.Group]:
    notes = [doc.Group([doc.Note(note) for note in report.notes])] if report.notes else []
    if asked:
        return [*notes, *asked]
    table, maps = _long_scores(report), _pooled(report)
    tall = maps.small[0] + 2 if maps.small else 0
    rows = max(lines // 3, 3)
    cut = table._replace(rows=table.rows[:rows], hidden=max(len(table.rows) - rows, 0))
    shown = maps._replace(rows=max((lines - rows - 9) // tall, 1))
    return [*notes, doc.Group([cut]), doc.Group([shown], yields=1)]


def _pooled(report: LongHeads) -> doc.Maps:
    axis = report.tokens.taken(range(0, len(report.tokens), report.bucket))
    maps = [
        doc.Map(report.head_name(head[:2]), head.pooled, axis, axis, causal=report.causal)
        for head in report.heads
    ]
    cells = f"a cell stands for {report.bucket:,} × {report.bucket:,} tokens"
    mean = f"{cells}: mean over queries of the summed weight on the keys"
    across = 0 if report.sorted_by else report.model.heads
    title = [("All heads, pooled", True), (mean, False)]
    return doc.Maps(maps, title, _SMALL, _SMALL_ROWS, across)


def _long_scores(report: LongHeads) -> doc.Table:
    def column(name: str) -> doc.ColumnOf[LongHead]:
        return doc.ColumnOf(said_name(name), lambda head: number(head.scores[name]))

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3f}"

    order: Sequence[LongHead] = report.heads
    if not report.sorted_by:
        order = sorted(order, key=lambda head: -(head.scores.get("distance") or 0.0))
    by = said_name(report.sorted_by or "distance")
    return doc.table(
        order,
        doc.ColumnOf("head", lambda head: report.head_name(head[:2]), right=False),
        *map(column, report.heads[0].scores),
        title=[("Scores", True), (f"heads by {by}", False)],
        ranked=True,
    )


def _asked(report: LongHeads) -> list[doc.Group]:
    """Return the part in full, the text coloured by what the word attends to, pairs and regions."""
    groups, tokens, name = list[doc.Group](), report.tokens, report.head_name
    if report.part is not None:
        queries, keys = (tokens.taken(side) for side in report.part)
        drawn = [
            doc.Map(name(head[:2]), head.part, queries, keys)
            for head in report.heads
            if head.part is not None
        ]
        first, second = (f"{side.start:,}–{side.stop - 1:,}" for side in report.part)
        title = [("In full", True), (f"queries {first}, keys {second}", False)]
        groups.append(doc.Group([doc.Maps(drawn, title)]))
    for head in report.heads:
        if head.row is not None and (word := report.word) is not None:
            asking = tokens.taken([word.span.start])
            row, sink = head.row.copy(), ""
            if report.causal:
                row[0], sink = np.nan, f", {head.row[0]:.0%} on the first token"
            full = float(np.nanmax(row, initial=0.0)) or 1.0
            attends = f"what “{word_text(tokens, word.span).strip()}” attends to"
            words = f"{name(head[:2])}: {attends}, largest {full:.3f}{sink}"
            coloured = doc.Map(words, row[None], asking, tokens, full=full)
            groups.append(doc.Group([doc.Maps([coloured], texts=True, lines=6, scale=None)]))
    if pairs := [(head, *pair) for head in report.heads for pair in head.pairs]:
        names = [f"{label} ({at:,})" for at, label in enumerate(token_labels(tokens))]
        table = doc.table(
            pairs,
            doc.ColumnOf("head", lambda pair: name(pair[0][:2]), right=False),
            doc.ColumnOf("weight", lambda pair: f"{pair[1]:.3f}"),
            doc.ColumnOf("from", lambda pair: names[pair[2]], right=False),
            doc.ColumnOf("to", lambda pair: names[pair[3]], right=False),
            title=[("Strongest pairs of each head", True)],
            least=_LISTED,
        )
        groups.append(doc.Group([table]))
    return groups if report.regions is None else [*groups, region_group(report.regions, name)]


# The page ------------------------------------------------------------------------------------


def heads_page(report: HeadsReport, names: Names, given: str = "", opened: str = "") -> page.Page:
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
