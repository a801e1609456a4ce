"""The document of ``attnviz patterns``: the grid, the best of each label, one label watched."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import model_words
from attnviz.draw.regions import region_finding, region_group
from attnviz.inspect.patterns.data import patterns_rows
from attnviz.inspect.patterns.grids import label_grid, label_tint, score_grid
from attnviz.inspect.patterns.records import Example, PatternReport, PatternScores
from attnviz.inspect.patterns.words import (
    NOT_MEASURED,
    behind,
    explanation,
    finding,
    found_labels,
    gaps,
    interval,
    plain,
    provenance_words,
    score,
    share_of_texts,
    short,
    signed,
    size_words,
)
from attnviz.measures.registry import MEASURES, STATISTICS, label_named, said_name

_LEAD = 8
_LONGEST = 100
_LISTED, _RANKED = 4, 24
_MOST_ROWS = 4096
"""The most heads that a page lists with all their numbers."""


def patterns_document(report: PatternReport) -> doc.Document:
    """Return the document: labels and the best heads of each, or a ranking by one label."""
    model, watch, top = report.model.name, report.watch, report.top
    notes = [doc.Note(note) for note in (*report.model.notes, *report.notes)]
    groups = [doc.Group(_about(report)), doc.Group(notes)]
    title = f"What the heads of {model} do"
    if not report.heads:
        return doc.Document(f"patterns of {model}", title, groups, finding="No text was measured.")
    if report.regions is not None:
        groups.append(region_group(report.regions, report.head_name))
    if watch is None:
        named = found_labels(report)
        best = [_best_heads(report, name, top or _LISTED) for name in named]
        groups += [doc.Group([label_grid(report)]), doc.Group(best, beside=doc.Beside(86, gap=4))]
        maps = _label_maps(report, named)
    else:
        groups += [doc.Group([part]) for part in _watched(report, watch, top or _RANKED)]
        maps = _watched_maps(report, watch)
    groups += [doc.Group([_statistics(report)])] if report.stats else []
    groups += [doc.Group([doc.Maps(maps, title=_SHOWN)])] if maps else []
    groups.append(doc.Group([doc.Say(text) for text in gaps(report, watch)]))
    groups.append(doc.Group([_every_number(report)], full=True))
    sizes = size_words(report)
    return doc.Document(
        f"patterns of {model}",
        title + (f": {label_named(watch).said}" if watch is not None else ""),
        groups,
        explanation(report, [watch] if watch else report.labels),
        doc.next_steps(_hints(report)),
        heading=[(model, True), *((words, False) for words in sizes)],
        quoted=report.text,
        finding=_finding(report, watch),
        first=partial(_first, report, watch, maps),
    )


def _finding(report: PatternReport, watch: str | None) -> str:
    if report.regions is None or report.model.weights == "random":
        return finding(report, watch)
    return region_finding(report.regions, report.head_name)


def _hints(report: PatternReport) -> Iterator[str]:
    """Yield the options to try next on the command line."""
    named = [name for name in report.labels if report.labelled(name)]
    if report.watch is None and named:
        known = "induction" if "induction" in named else named[0]
        yield f"--watch {shlex.quote(label_named(known).said)} ranks all heads"
    elif report.watch in named:
        best = report.labelled(report.watch)[0]
        name = report.head_name((best.layer, best.head))
        command = shlex.join(["attnviz", "ablate", "--head", name, *_same(report)])
        yield f"{command}: does it matter?"
    yield "--explain"
    if not report.stats and report.watch is None:
        yield "--stats: entropy and distance of every head"


def _same(report: PatternReport) -> Iterator[str]:
    """Yield the options that make another command use this report's model, attention and text."""
    if report.model.name != "tiny":
        yield from ("--model", report.model.name)
    if report.kind not in ("self", "encoder"):
        yield from ("--kind", report.kind)
    if report.index_base:
        yield from ("--index-base", str(report.index_base))
    if report.file:
        yield from ("--file", report.file)
    if report.target is not None:
        yield from ("--target", _short(report.target))
    if report.text and not report.file:
        yield _short(report.text)


def _short(text: str) -> str:
    """Return the text if a shell can take it in one short argument, else ``TEXT``."""
    typed = text.isprintable() and len(text) <= _LONGEST and not text.startswith("-")
    return text if typed else "TEXT"


def _about(report: PatternReport) -> list[doc.Part]:
    """Return the facts that a reader needs to repeat the run: model, probes, weight transform."""
    words: list[tuple[str, bool]] = model_words(report.model)
    words += [] if report.kind == "self" else [(f"{report.kind} attention", False)]
    seed = report.model.seed
    words += [] if seed is None else [(f"seed {seed} of the weights", False)]
    texts = {"text": report.text or None, "target": report.target}
    return [
        doc.Facts(words),
        *(doc.Quote(name, text, _LEAD) for name, text in texts.items() if text is not None),
        *(doc.Facts([(words, False)], name, _LEAD) for name, words in provenance_words(report)),
    ]


# The first screen ----------------------------------------------------------------------------

_CELL, _NAMES = 9, 3
"""The columns of a cell of the grid with its score, and of the names of the layers."""

_LEAST_TABLE = 70
_LEAST_ROWS = 4
_AROUND, _AROUND_MAP = 2, 4
"""The lines around the rows of a grid or table, and of a map."""

_MAP_COLUMNS = {True: 48, False: 150}
"""The columns of a causal map, with tokens on its diagonal, and of one with tokens above."""


def _first(
    report: PatternReport, watch: str | None, maps: Sequence[doc.Map], max_width: int, lines: int
) -> list[doc.Group]:
    """Return the overview and the best head of each label, or all heads by the watched label.

    Both stand next to each other if they fit; maps stand below if there are lines left.
    watch: that label, or None. maps: examples.
    """
    if report.regions is not None:
        shares = region_group(
            report.regions, report.head_name, max_width, len(report.regions.queries)
        )
        rest = lines - len(report.regions.queries) - 3
        below = _first(replace(report, regions=None), watch, maps, max_width, rest)
        return [shares, *(group._replace(yields=1) for group in below)]
    if watch is not None and not report.ranked(watch):
        return []
    grid = label_grid(report) if watch is None else score_grid(report, watch)
    title: doc.Words = [("labels" if watch is None else "scores", True), (doc.SHADE, False)]
    grid = grid._replace(title=title, key=(), scale=None)
    table = leaders_table(report) if watch is None else _ranked(report, watch, _RANKED)
    sentences = [doc.Say(text) for text in gaps(report, watch, brief=True)]
    if not table.rows:
        return [doc.Group([grid]), doc.Group(sentences, yields=1)]
    tall = len(grid.rows) + _AROUND + 1
    low = len(table.rows) + len(sentences) + _AROUND
    rows = doc.Group([table, *sentences])
    if max_width >= _NAMES + _CELL * len(grid.columns) + _LEAST_TABLE:
        groups = [doc.Group([rows, grid], beside=doc.Beside(_LEAST_TABLE, yields=True))]
        used = max(tall, low)
    elif tall + _LEAST_ROWS + len(sentences) + _AROUND > lines:
        groups, used = [rows], low
    else:
        groups, used = [doc.Group([grid]), rows], tall + low
    across = max(max_width // _MAP_COLUMNS[all(each.causal for each in maps)], 1)
    high = max((len(each.queries) for each in maps), default=0) + _AROUND_MAP
    drawn = maps[: across * max((lines - used) // high, 0)]
    return [*groups, doc.Group([doc.Maps(drawn)])] if drawn else groups


def leaders_table(report: PatternReport) -> doc.Table:
    """Return a table with a row for each label: its best head, score, chance and sample size."""
    has_intervals = any(entry.intervals for entry in report.heads)
    titles = ("score", "chance", *(["95%"] if has_intervals else []), "n", "heads")
    columns = [doc.Column("", right=False), doc.Column("best", right=False)]
    columns += map(doc.Column, titles)
    rows = []
    for name in found_labels(report):
        heads = report.labelled(name)
        best = heads[0]
        cells = (
            label_named(name).said,
            report.head_name((best.layer, best.head)),
            short(best.score),
            short(best.chance),
            *([interval(best, name)] if has_intervals else []),
            behind(best, name),
            str(len(heads)),
        )
        rows.append(doc.Row(cells, (max(best.score or 0.0, 0.0), 1.0), label_tint(name, 1.0)))
    return doc.Table(columns, rows, ranked=True, least=_LEAST_ROWS)


# Tables --------------------------------------------------------------------------------------

_BESIDE = {"alignment": {"monotone": "monotone"}, "induction": {"prefix_matching": "prefix match"}}
"""For a label, related scores and the titles of their columns."""


def score_table(
    report: PatternReport, name: str, heads: Sequence[PatternScores], everyone: bool
) -> doc.Table:
    """Return a table of one pattern score: a row for each head, with bar, base rate, statistics.

    name: of the score. heads: the rows.
    everyone: whether heads without the label are listed too; then each one's label is shown.
    """
    columns = {
        doc.Column("score"): [score(entry.scores.get(name)) for entry in heads],
        doc.Column("chance"): [score(entry.base_rate.get(name)) for entry in heads],
    }
    if any(name in entry.intervals for entry in heads):
        columns[doc.Column("95%")] = [interval(entry, name) for entry in heads]
    columns[doc.Column("n")] = [behind(entry, name) for entry in heads]
    if report.control is not None:
        columns[doc.Column("random")] = [score(entry.control.get(name)) for entry in heads]
    if everyone:
        columns[doc.Column("label", right=False)] = [_said(entry) for entry in heads]
    elif any(entry.agreement is not None for entry in heads):  # a single text gives none
        columns[doc.Column("in agreement")] = [share_of_texts(entry.agreement) for entry in heads]
    columns[doc.Column("above chance")] = [signed(_margin(entry, name)) for entry in heads]
    for other, title in _BESIDE.get(name, {}).items():
        if any(entry.scores.get(other) is not None for entry in heads):
            columns[doc.Column(title)] = [score(entry.scores.get(other)) for entry in heads]
    columns |= _statistic_columns(heads)
    values = [max(entry.scores.get(name) or 0.0, 0.0) for entry in heads]
    return _head_table(report, heads, values, columns, label_tint(name, 1.0))


def _said(entry: PatternScores) -> str:
    return "–" if entry.label is None else label_named(entry.label).said


def _margin(entry: PatternScores, name: str) -> float | None:
    value, base = entry.scores.get(name), entry.base_rate.get(name)
    return None if value is None or base is None else value - base


def _statistic_columns(heads: Sequence[PatternScores]) -> dict[doc.Column, list[str]]:
    """Return a table column for each statistic that was measured in some head, with its cells."""
    columns = {}
    for name in STATISTICS:
        if name == "normalised_entropy":  # evenness is the bar of ``--stats``
            continue
        written = score if MEASURES[name].unit == "share" else plain
        cells = [written(entry.statistics.get(name)) for entry in heads]
        if set(cells) != {NOT_MEASURED}:
            columns[doc.Column(said_name(name))] = cells
    return columns


def _head_table(
    report: PatternReport,
    heads: Sequence[PatternScores],
    values: Sequence[float],
    columns: dict[doc.Column, list[str]],
    tint: doc.Tint | None = None,
) -> doc.Table:
    names = [report.head_name((entry.layer, entry.head)) for entry in heads]
    cells = zip(names, *columns.values(), strict=True)
    rows = [doc.Row(row, (value, 1.0), tint) for row, value in zip(cells, values, strict=True)]
    return doc.Table([doc.Column("", right=False), *columns], rows, ranked=True)


def _best_heads(report: PatternReport, name: str, top: int) -> doc.Table:
    """Return a table of the best heads of a label, with pattern scores and base rates."""
    heads = report.labelled(name)
    listed = heads[:top]
    rest = len(heads) - len(listed)
    label = label_named(name)
    title: doc.Words = [
        (label.said, True),
        (counted(len(heads), "head"), False),
        (label.meaning, False),
    ]
    rows = score_table(report, name, listed, everyone=False)
    return rows._replace(title=title, more=f"and {rest} more" if rest else "")


def _watched(report: PatternReport, name: str, top: int) -> Iterator[doc.Part]:
    """Yield the grid of one score and the ranking of all heads; nothing if no head has it."""
    ranked = report.ranked(name)
    if not ranked:
        return
    yield score_grid(report, name)
    table = _ranked(report, name, top)
    listed, labelled = len(table.rows), len(report.labelled(name))
    shown = f"the first {listed} of {len(ranked)}" if listed < len(ranked) else f"all {len(ranked)}"
    title = f"Ranking: {shown} heads; {counted(labelled, 'head')} labelled"
    yield table._replace(title=[(title, True)], least=0)


def _ranked(report: PatternReport, name: str, top: int) -> doc.Table:
    table = score_table(report, name, report.ranked(name)[:top], everyone=True)
    return table._replace(least=_LEAST_ROWS)


_STATISTICS = "Statistics of every head; the bar is its normalised entropy (1 = uniform attention)"


def _statistics(report: PatternReport) -> doc.Table:
    """Return a table of each head's evenness, entropy, distance, confidence, sink weight.

    Evenness is the entropy as a share of that of uniform attention.
    """
    heads = report.heads
    evenness = [entry.statistics.get("normalised_entropy") for entry in heads]
    columns = {
        doc.Column("of uniform"): [score(value) for value in evenness],
        doc.Column("label", right=False): [_said(entry) for entry in heads],
        doc.Column("score"): [score(entry.score) if entry.label else "" for entry in heads],
        **_statistic_columns(heads),
    }
    table = _head_table(report, heads, [value or 0.0 for value in evenness], columns)
    return table._replace(title=[(_STATISTICS, True)])


def _every_number(report: PatternReport) -> doc.Table:
    """Return a table of all numbers of all heads; a dash means not measured."""
    header, *rows = patterns_rows(report, None)
    words = [doc.Column("head", right=False), doc.Column("label", right=False)]
    columns = words + [doc.Column(str(name)) for name in header[3:]]
    found = []
    for layer, head, label, *numbers in rows[:_MOST_ROWS]:
        name = report.head_name((int(str(layer)), int(str(head))))
        cells = ("–" if number is None else f"{number:.4g}" for number in numbers)
        found.append(doc.Row([name, str(label) or "–", *cells]))
    return doc.Table(columns, found, [("Every head", True)])


# Maps ----------------------------------------------------------------------------------------

_SHOWN: doc.Words = [("What it looks like", True), ("a text on which the label shows", False)]
_MAPPED = 2


def _map(report: PatternReport, entry: PatternScores, name: str, example: Example) -> doc.Map:
    """Return the map of a head over a text in which its label can be seen."""
    head = report.head_name((entry.layer, entry.head))
    value = entry.score if name == entry.label else entry.scores.get(name)
    words = [(head, True), (f"{label_named(name).said} {score(value)}", False)]
    hides = report.causal and example.keys is example.tokens
    return doc.Map(head, example.weights, example.tokens, example.keys, words, causal=hides)


def _label_maps(report: PatternReport, names: Sequence[str]) -> list[doc.Map]:
    best = [(name, report.labelled(name)[0]) for name in names]
    return [_map(report, head, name, head.example) for name, head in best if head.example]


def _watched_maps(report: PatternReport, name: str) -> list[doc.Map]:
    heads = [entry for entry in report.labelled(name) if entry.example][:_MAPPED]
    return [_map(report, head, name, head.example) for head in heads if head.example]
