"""The documents of ``attnviz heads``: all heads small, notable ones in full, or lists of pairs.

With several runs, tables, words and the small maps of all heads stand below each other, a group for
each run; each head's full maps stand next to each other. A long text has pooled maps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw import provenance as facts
from attnviz.draw.labels import token_labels
from attnviz.draw.provenance import ONE_PASS, share
from attnviz.draw.regions import region_group
from attnviz.inspect.heads import layout, sentences
from attnviz.inspect.heads.links import pair_table, pairs_table, word_links, word_maps, word_tables
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
_CAPTION = 14  # the letters below a small map in a picture
_LISTED = 12  # the fewest pairs of a long text that its first screen lists

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
    head = layout.distinctive(report)[0]
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
    measured = f"{ONE_PASS} ({size}){drawn}."
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
    drawn = [_map(run, run.scores(*head)) for head in layout.distinctive(report)[:_DISTINCTIVE]]
    yield doc.Group([doc.Maps(drawn, [(title, True)], values=values, scale=_SCALE)])


def _few_heads(run: HeadsRecord) -> bool:
    return len(run.heads) <= _FEW_HEADS and len(run.record.queries) <= _FEW_QUERIES


def _map(run: HeadsRecord, scores: HeadScores) -> doc.Map:
    label, *rest = sentences.score_words(run, scores)
    title = [*sentences.name_words(run, scores), (label, True), *((word, False) for word in rest)]
    return layout.head_map(run, scores.place, title)


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
        doc.Explanation("heads", f"{ONE_PASS} ({size})."),
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
