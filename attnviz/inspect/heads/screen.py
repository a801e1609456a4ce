"""The documents of ``attnviz heads``: all heads small, notable ones in full, or lists of pairs.

With several runs, tables, words and the small maps of all heads stand below each other, a group for
each run; each head's full maps stand next to each other. A long text has pooled maps.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.labels import token_labels
from attnviz.draw.provenance import (
    advised,
    label_source,
    label_text,
    model_words,
    named,
    notes_group,
    places_words,
    shape_words,
    share,
    size_words,
)
from attnviz.draw.regions import region_group
from attnviz.inspect.heads import listed, sentences
from attnviz.inspect.heads.layout import distinctive, first_arcs, first_groups, head_map, label_grid
from attnviz.inspect.heads.links import word_links
from attnviz.inspect.heads.look import heads_page
from attnviz.inspect.heads.report import HeadsReport, LongHead, LongHeads
from attnviz.measures.registry import label_named, said_name
from attnviz.measures.words import word_text
from attnviz.records import NO_LABEL, SINKS, HeadScores, HeadsRecord

_SCALE = doc.WEIGHTS._replace(after="√ scale; rows attend to columns")
_SMALL, _SMALL_ROWS = (8, 16), 12
_FEW_HEADS, _FEW_QUERIES = 8, 16
_LINKS, _DISTINCTIVE = 20, 3
_BETWEEN_HEADS = 8
_CAPTION = 14
"""The letters below a small map in a picture."""

_LISTED = 12
"""The fewest pairs of a long text that its first screen lists."""

Names = Sequence[Sequence[str]]
"""The words in which each run differs from the others, see ``run_names``."""


def document(report: HeadsReport | LongHeads) -> doc.Document:
    """Return the document of one run, of several side by side, or of a long text."""
    return _of_sums(report) if isinstance(report, LongHeads) else _of_maps(report)


def _of_maps(report: HeadsReport) -> doc.Document:
    run, view = report.first, report.view
    shared, names = sentences.run_names(report)
    info = run.record.model
    groups = [
        doc.Group(_provenance(report, shared, names)),
        notes_group(info.notes, run.record.keys),
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
        first=advised(partial(first_groups, report), run.record.keys),
        page=partial(heads_page, report, names),
    )


def _heading(report: HeadsReport, shared: Sequence[str]) -> doc.Words:
    run, info = report.first, report.first.record.model
    changed, left_out = _differs(run)
    words = [*[info.untrained] * bool(info.untrained), *changed, *places_words(info)]
    words += [] if info.is_one_layer else [shape_words(info.of(run.record.kind))]
    words += [*shared, *left_out]
    if report.of_texts:
        lengths = sorted(len(each.record.queries) for each in report.reports)
        apart = f"{lengths[0]:,}"
        apart += f" to {lengths[-1]:,}" if lengths[0] < lengths[-1] else ""
        words.append(f"{len(lengths):,} texts of {apart} tokens")
    else:
        words += dict.fromkeys(size_words(each.record) for each in report.reports)
    return [(info.name, True), *((word, False) for word in words)]


def _hints(report: HeadsReport) -> list[str]:
    run, view = report.first, report.view
    head = distinctive(report)[0]
    if view.pairs:
        head = view.pairs[0].links[0][:2]
    elif view.words:
        links = [link for way in word_links(run, view.words[0], view.sink) for link in way]
        head = links[0][:2] if links else head
    words = [] if run.selected else [f"--head {run.name(*head)}"]
    if run.record.model.layer_names:  # an nn.Module reads no texts
        return [*words, *["--values"] * (not view.values), "--explain"]
    if not (view.words or view.pairs):
        words += ["--token WORD", "--pair WORD WORD"]
    if run.selected and run.record.model.layers > 1:
        words.append(f"attnviz link --head {run.name(*head)}")
    return [*words, *["--values"] * (not view.values), "--explain"]


def _provenance(report: HeadsReport, shared: Sequence[str], names: Names) -> list[doc.Part]:
    run, info = report.first, report.first.record.model.of(report.first.record.kind)
    sizes = [size_words(each.record) for each in report.reports]
    alike = len(set(sizes)) == 1
    seed = [] if info.seed is None else [f"seed {info.seed}"]
    words = [*shared, *sizes[:alike], *seed, *itertools.chain(*_differs(run))]
    labels = label_source(entry.label for each in report.reports for entry in each.heads)
    words += [labels] if labels else []
    parts: list[doc.Part] = [doc.Facts([*model_words(info), *((word, False) for word in words)])]
    if run.text or not (info.is_array or info.layer_names):
        texts = dict.fromkeys(each.text for each in report.reports)
        parts += [doc.Quote("text", text) for text in texts]
    targets = dict.fromkeys(each.target for each in report.reports if each.target is not None)
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
    without = [f"without {sentences.removed_words(run)}"] if run.ablated else []
    changed = [*without, *["norm-weighted"] * run.norm_weighted]
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
        return [listed.pair_table(run, view.pairs[index])]
    if not view.words:
        return [listed.pairs_table(run, view.top or 1, view.sink)]
    word, title = view.words[index], "strongest attention {} the word, each head"
    tables = listed.word_tables(run, word, view.sink, title)
    return [*tables, listed.word_maps(run, word, view.values)]


def _explanation(report: HeadsReport) -> doc.Explanation:
    record = report.first.record
    seed = "" if record.model.seed is None else f", weights drawn from seed {record.model.seed}"
    measured = f"all weights come from one pass over this text alone, {size_words(record)}{seed}."
    if record.model.is_array:
        measured = f"all numbers are of the given weights, {size_words(record)}."
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
            yield doc.Group(first_arcs(report))
        return
    yield from _overview(run)
    links = listed.links_of(report, _LINKS)
    if links is not None:
        yield doc.Group([links])
    title = "The most distinctive heads"
    if run.sorted_by is not None:
        title = f"The first {_DISTINCTIVE} by {said_name(run.sorted_by)}"
    drawn = [_map(run, run.scores(*place)) for place in distinctive(report)[:_DISTINCTIVE]]
    yield doc.Group([doc.Maps(drawn, [(title, True)], values=values, scale=_SCALE)])


def _few_heads(run: HeadsRecord) -> bool:
    return len(run.heads) <= _FEW_HEADS and len(run.record.queries) <= _FEW_QUERIES


def _map(run: HeadsRecord, scores: HeadScores) -> doc.Map:
    label, *rest = sentences.score_words(run, scores)
    title = [*sentences.name_words(run, scores), (label, True), *((word, False) for word in rest)]
    return head_map(run, scores.place, title)


def _overview(run: HeadsRecord) -> Iterator[doc.Group]:
    """Yield two groups: the labels of all heads, and a small map of each head."""
    maps = []
    for scores in run.heads:
        caption = label_text(scores.label, _CAPTION)
        if run.sorted_by is not None:
            value = scores.scores[run.sorted_by]
            caption = "not measured" if value is None else f"{value:.3f}"
        tip = " · ".join(sentences.score_words(run, scores))
        maps.append(_map(run, scores)._replace(words=(), below=[(caption, False)], tip=tip))
    if run.sorted_by is None:
        words = [("Label and score of each head", True)]
        words += [(each, False) for each in sentences.overview_words(run)]
        yield doc.Group([label_grid(run)._replace(title=words)])
    order = "" if run.sorted_by is None else f" by {said_name(run.sorted_by)}"
    across = run.record.model.heads if run.sorted_by is None else 0
    small = doc.Maps(maps, [(f"All heads{order}", True)], _SMALL, _SMALL_ROWS, across, scale=None)
    yield doc.Group([small])


# Several runs --------------------------------------------------------------------------------


def _compared(report: HeadsReport, names: Names) -> Iterator[doc.Group]:
    whole = report.first.selected or all(map(_few_heads, report.reports))
    if not whole:
        for run, name in zip(report.reports, names, strict=True):
            yield _headed(name, [*_overview(run)])
    ranked = zip(*(run.notable for run in report.reports), strict=False)
    notable = dict.fromkeys(place for places in ranked for place in places)
    places = report.first.places if whole else notable
    heads = []
    for place in places:
        maps = []
        for index in report.kept_by(*place):
            run, moved = report.reports[index], report.moved[index]
            words = sentences.score_words(run, run.scores(*place))
            words += [] if moved is None else [f"moved {share(moved[place])}"]
            shown = _map(run, run.scores(*place))
            name = f"{shown.name} · {' · '.join(names[index])}"
            below = [(word, False) for word in words]
            above = [(word, True) for word in names[index]]
            maps.append(shown._replace(name=name, words=above, below=below))
        title = sentences.name_words(report.first, report.first.scores(*place))
        drawn = doc.Maps(maps, values=report.view.values, scale=None)
        heads.append(doc.Group([doc.Facts(title), drawn]))
    yield doc.Group(heads, beside=doc.Beside(0, _BETWEEN_HEADS))


def _scores(report: HeadsReport, names: Names) -> doc.Table:
    grouped, several = report.first.record.model.group(0) is not None, len(names) > 1
    measures = list(report.first.heads[0].scores)

    def number(value: float | None) -> str:
        return "–" if value is None or not np.isfinite(value) else f"{value:.3f}"

    columns = [
        doc.Column("head", right=False),
        *[doc.Column("key/value head")] * grouped,
        *[doc.Column("attention", right=False)] * several,
        doc.Column("label", right=False),
        *map(doc.Column, ("score", "uniform", *(said_name(name) for name in measures))),
        *[doc.Column("moved")] * several,
    ]
    rows = []
    for place in report.first.places:
        for index in report.kept_by(*place):
            run, moved = report.reports[index], report.moved[index]
            scores, group = run.scores(*place), run.record.model.group(place[1])
            label = scores.label
            numbers = [label.score, label.base_rate, *scores.scores.values()]
            numbers += [None if moved is None else moved[place]] * several
            cells = [run.name(*place)]
            cells += [] if group is None else [str(group + run.index_base)]
            cells += [" · ".join(names[index])] * several + [label.said]
            rows.append(doc.Row([*cells, *map(number, numbers)]))
    return doc.Table(columns, rows, [("Scores", True)])


# A long text ---------------------------------------------------------------------------------


def _of_sums(report: LongHeads) -> doc.Document:
    """Return the document: pooled maps of all heads, their scores, and what was asked for."""
    info, size = report.model, f"{len(report.tokens):,} tokens"
    name = f"attention heads of {info.name}"
    asked = _asked(report)
    further = ["--queries A-B --keys A-B", "--token WORD", "--top N", "--reduce full"]
    return doc.Document(
        name,
        name[:1].upper() + name[1:],
        [
            doc.Group(
                [doc.Facts([*model_words(info), (size, False)]), doc.Quote("text", report.text)]
            ),
            notes_group((*info.notes, *report.notes), report.tokens),
            *asked,
            doc.Group([_pooled(report)]),
            doc.Group([_long_scores(report)]),
        ],
        doc.Explanation("heads", f"all weights come from one pass over this text alone, {size}."),
        doc.next_steps(further, tone="faint"),
        heading=[*named(info), (size, False)],
        quoted=report.text,
        finding=sentences.long_finding(report),
        first=advised(partial(_long_first, report, asked), report.tokens),
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
    title = [
        ("All heads, pooled", True),
        (f"{cells}: mean over queries of the summed weight on the keys", False),
    ]
    across = 0 if report.sorted_by else report.model.heads
    return doc.Maps(maps, title, _SMALL, _SMALL_ROWS, across)


def _long_scores(report: LongHeads) -> doc.Table:
    def column(name: str) -> doc.ColumnOf[LongHead]:
        return doc.ColumnOf(said_name(name), lambda head: _number(head.scores[name]))

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
        queries, keys = (tokens.taken(each) for each in report.part)
        drawn = [
            doc.Map(name(head[:2]), head.part, queries, keys)
            for head in report.heads
            if head.part is not None
        ]
        first, second = (f"{each.start:,}–{each.stop - 1:,}" for each in report.part)
        title = [("In full", True), (f"queries {first}, keys {second}", False)]
        groups.append(doc.Group([doc.Maps(drawn, title)]))
    for head in report.heads if report.word is not None else ():
        if head.row is not None and report.word is not None:
            asking = tokens.taken([report.word.span.start])
            said = word_text(tokens, report.word.span).strip()
            row, sink = head.row.copy(), ""
            if report.causal:
                row[0], sink = np.nan, f", {head.row[0]:.0%} on the first token"
            full = float(np.nanmax(row, initial=0.0)) or 1.0
            words = f"{name(head[:2])}: what “{said}” attends to, largest {full:.3f}{sink}"
            coloured = doc.Map(words, row[None], asking, tokens, full=full)
            groups.append(doc.Group([doc.Maps([coloured], texts=True, lines=6, scale=None)]))
    pairs = [(head, *pair) for head in report.heads for pair in head.pairs]
    if pairs:
        names = [f"{label} ({place:,})" for place, label in enumerate(token_labels(tokens))]
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
    regions = [] if report.regions is None else [region_group(report.regions, name)]
    return [*groups, *regions]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3f}"
