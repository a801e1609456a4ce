"""What ``attnviz patterns`` has to say: the grid, the best of each label, one label watched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnviz.draw import document as doc
from attnviz.draw.blocks import BOLD, Block, beside, stack, text_line
from attnviz.draw.coloured_text import scale_block
from attnviz.draw.maps import small_map
from attnviz.draw.panels import maps_block
from attnviz.draw.prose import paragraph, wrapped
from attnviz.draw.provenance import counted, model_words
from attnviz.draw.table import ranked_block
from attnviz.draw.theme import Theme
from attnviz.measures.registry import MEASURES, STATISTICS, label_named
from attnviz.patterns.data import patterns_rows
from attnviz.patterns.grids import label_grid, label_heading, label_tint, score_grid
from attnviz.patterns.records import Example, PatternReport, PatternScores
from attnviz.patterns.words import (
    NOT_MEASURED,
    gaps,
    percent,
    plain,
    provenance_words,
    reading,
    score,
    signed,
)

_LEAD = 8
_LONGEST = 100
_LISTED, _RANKED = 4, 24
_MOST_ROWS = 4096
"""Heads whose every number a page has room for."""


def patterns_document(
    report: PatternReport,
    watch: str | None = None,
    *,
    stats: bool = False,
    top: int | None = None,
    explain: bool = False,
    hints: Sequence[str] = (),
) -> doc.Document:
    """What each head does and the best of each label, or how all rank by the one watched.

    stats: tell the statistics of every head. top: heads listed for a label.
    """
    model = report.model.name
    notes = [doc.Note(note) for note in (*report.model.notes, *report.notes)]
    groups = [doc.Group(_about(report)), doc.Group(notes)]
    if watch is None:
        groups.append(doc.Group([label_grid(report)]))
        named = [name for name in report.labels if report.labelled(name)]
        best = [_specialists(report, name, top or _LISTED) for name in named]
        groups.append(doc.Group(best, beside=doc.Beside(86, gap=4)))
        maps = _label_maps(report, named)
    else:
        groups += [doc.Group([part]) for part in _watched(report, watch, top or _RANKED)]
        maps = _watched_maps(report, watch)
    groups += [doc.Group([maps])] if watch is not None and maps else []
    groups += [doc.Group([_statistics(report)])] if stats else []
    groups += [doc.Group([maps])] if watch is None and maps else []
    groups += [doc.Group([doc.Say(text) for text in gaps(report)])] if watch is None else []
    groups.append(doc.Group([_every_number(report)], full=True))
    return doc.Document(
        f"patterns of {model}",
        f"What the heads of {model} do" + (f": {watch}" if watch is not None else ""),
        groups,
        [doc.Say(text, _LONGEST) for text in reading(report, [watch] if watch else report.labels)]
        if explain
        else (),
        [doc.Facts([(hint, False) for hint in hints])] if hints else (),
    )


def _about(report: PatternReport) -> list[doc.Part]:
    """Which model, over which probes, in which view: what a reader needs to repeat the run."""
    words: list[tuple[str, bool]] = model_words(report.model)
    words += [] if report.kind == "self" else [(f"{report.kind} attention", False)]
    seed = report.model.seed
    words += [] if seed is None else [(f"seed {seed} of the weights", False)]
    texts = {"text": report.text, "target": report.target}
    return [
        doc.Facts(words),
        *(doc.Quote(name, text, _LEAD) for name, text in texts.items() if text is not None),
        *(doc.Facts([(told, False)], name, _LEAD) for name, told in provenance_words(report)),
    ]


# Tables --------------------------------------------------------------------------------------

_BESIDE = {"alignment": {"monotone": "monotone"}, "induction": {"prefix_matching": "prefix"}}
"""Of a label, further scores that tell of the same, with the titles of their columns."""

_MAP_LINES, _MAP_COLUMNS, _MAP_GAP = 7, 16, 3
_LEAST_TABLE = 34


def _ranking(
    report: PatternReport, name: str, heads: Sequence[PatternScores], everyone: bool
) -> doc.Table:
    """A row a head: the bar of its score, what it is held against, its statistics.

    everyone: the heads need not have the label: its own one stands beside the score.
    """
    columns = {
        doc.Column("score"): [score(entry.scores.get(name)) for entry in heads],
        doc.Column("base"): [score(entry.base_rate.get(name)) for entry in heads],
        doc.Column("margin"): [signed(_margin(entry, name)) for entry in heads],
    }
    if report.control is not None:
        columns[doc.Column("random")] = [score(entry.control.get(name)) for entry in heads]
    if everyone:
        columns[doc.Column("label", right=False)] = [entry.label or "-" for entry in heads]
    elif any(entry.agreement is not None for entry in heads):  # of a single text there is none
        columns[doc.Column("agree")] = [percent(entry.agreement) for entry in heads]
    for other, title in _BESIDE.get(name, {}).items():
        if any(entry.scores.get(other) is not None for entry in heads):
            columns[doc.Column(title)] = [score(entry.scores.get(other)) for entry in heads]
    columns |= _statistic_columns(heads)
    values = [max(entry.scores.get(name) or 0.0, 0.0) for entry in heads]
    return _head_table(report, heads, values, columns, label_tint(name, 1.0))


def _margin(entry: PatternScores, name: str) -> float | None:
    value, base = entry.scores.get(name), entry.base_rate.get(name)
    return None if value is None or base is None else value - base


def _statistic_columns(heads: Sequence[PatternScores]) -> dict[doc.Column, list[str]]:
    """What is told of every head beside its label, where it was measured."""
    columns = {}
    for name in STATISTICS:
        if name == "normalised_entropy":  # the bar of ``--stats``
            continue
        written = score if MEASURES[name].unit == "share" else plain
        cells = [written(entry.statistics.get(name)) for entry in heads]
        if set(cells) != {NOT_MEASURED}:
            columns[doc.Column(name)] = cells
    return columns


def _head_table(
    report: PatternReport,
    heads: Sequence[PatternScores],
    values: Sequence[float],
    columns: dict[doc.Column, list[str]],
    tint: doc.Tint | None = None,
) -> doc.Table:
    names = [report.name(entry.layer, entry.head) for entry in heads]
    cells = zip(names, *columns.values(), strict=True)
    rows = [doc.Row(row, (value, 1.0), tint) for row, value in zip(cells, values, strict=True)]
    return doc.Table([doc.Column("", right=False), *columns], rows, ranked=True)


def _specialists(report: PatternReport, name: str, top: int) -> doc.Table:
    """The best heads of a label: how strong, against what base rate, and what the best looks like.

    On a terminal its small map stands beside the rows.
    """
    heads = report.labelled(name)
    listed = heads[:top]
    rest = len(heads) - len(listed)
    words = counted(len(heads), "head"), label_named(name).meaning
    title: doc.Words = [(name, True), *((text, False) for text in words)]
    rows = _ranking(report, name, listed, everyone=False)
    rows = rows._replace(more=f"and {rest} more" if rest else "")

    def drawn(theme: Theme, room: int) -> Block:
        looks = _small_map(report, heads[0], theme)
        aside = looks.lines and room >= _MAP_COLUMNS + _MAP_GAP + _LEAST_TABLE
        left = _MAP_COLUMNS + _MAP_GAP if aside else 0
        ranked = ranked_block(rows, theme, room - left)
        body = beside([looks, ranked], _MAP_GAP) if aside else stack([ranked, looks], gap=0)
        return Block((*label_heading(name, title, theme, room).lines, *body.lines), room)

    return rows._replace(title=title, screen=drawn)


def _small_map(report: PatternReport, entry: PatternScores, theme: Theme) -> Block:
    """A head's small map between its name and the length of the text; empty without an example."""
    example = entry.example
    if example is None:
        return Block((), 0)
    drawn = small_map(
        example.weights, _MAP_LINES, _MAP_COLUMNS, _hides_future(report, example), theme
    )
    queries, keys = example.weights.shape
    size = f"{queries} tokens" if example.keys is example.tokens else f"{queries} by {keys} tokens"
    name = text_line((report.name(entry.layer, entry.head), BOLD))
    return Block((name, *drawn.lines, text_line((size, theme.tone("faint")))), _MAP_COLUMNS)


def _hides_future(report: PatternReport, example: Example) -> bool:
    return report.causal and example.keys is example.tokens


def _watched(report: PatternReport, name: str, top: int) -> Iterator[doc.Part]:
    """The grid of one score and the ranking of all heads, or why there is none."""
    ranked = report.ranked(name)
    if not ranked:
        yield _unmeasured(report, name)
        return
    yield score_grid(report, name)
    listed, labelled = ranked[:top], len(report.labelled(name))
    some = len(listed) < len(ranked)
    shown = f"the first {len(listed)} of {len(ranked)}" if some else f"all {len(ranked)}"
    title = f"Ranking: {shown} heads; {counted(labelled, 'head')} labelled"
    yield _ranking(report, name, listed, everyone=True)._replace(title=[(title, True)])


def _unmeasured(report: PatternReport, name: str) -> doc.Table:
    reason = report.not_measured.get(name, "this attention has no such score")
    told = f"not measured: {reason}"
    title: doc.Words = [(name, True), (label_named(name).meaning, False)]

    def drawn(theme: Theme, room: int) -> Block:
        heading = label_heading(name, title, theme, room)
        return stack([heading, paragraph(theme.spell(told), room, theme)], gap=0)

    return doc.Table([doc.Column("", right=False)], [doc.Row([told])], title, screen=drawn)


_STATISTICS = (
    "Statistics of every head; the bar is how evenly it spreads its attention (entropy over that "
    "of uniform attention)"
)


def _statistics(report: PatternReport) -> doc.Table:
    """A row a head: evenness, entropy (nats), distance (tokens), confidence, first share."""
    heads = report.heads
    evenness = [entry.statistics.get("normalised_entropy") for entry in heads]
    columns = {
        doc.Column("even"): [score(value) for value in evenness],
        doc.Column("label", right=False): [entry.label or "-" for entry in heads],
        doc.Column("score"): [score(entry.score) if entry.label else "" for entry in heads],
        **_statistic_columns(heads),
    }
    table = _head_table(report, heads, [value or 0.0 for value in evenness], columns)
    return table._replace(title=[(_STATISTICS, True)])


def _every_number(report: PatternReport) -> doc.Table:
    """Every number of every head; a dash where nothing was measured."""
    header, *rows = patterns_rows(report, None)
    words = [doc.Column("head", right=False), doc.Column("label", right=False)]
    columns = words + [doc.Column(str(name)) for name in header[3:]]
    found = []
    for layer, head, label, *numbers in rows[:_MOST_ROWS]:
        name = report.name(int(str(layer)), int(str(head)))
        told = ("–" if number is None else f"{number:.4g}" for number in numbers)
        found.append(doc.Row([name, str(label) or "–", *told]))
    return doc.Table(columns, found, [("Every head", True)])


# Maps ----------------------------------------------------------------------------------------

_SMALL_MAPS = "small maps: queries down, keys across, pooled where a text is longer"
_LEAST_MAP = 58
_MAPPED = 2


def _map(report: PatternReport, entry: PatternScores, name: str, example: Example) -> doc.Map:
    """A head over a text on which its label can be seen."""
    head = report.name(entry.layer, entry.head)
    words = [
        (head, True),
        (f"{name} {score(entry.scores.get(name))}", False),
        (f"base {score(entry.base_rate.get(name))}", False),
    ]
    hides = _hides_future(report, example)
    return doc.Map(head, example.weights, example.tokens, example.keys, words, causal=hides)


def _label_maps(report: PatternReport, names: Sequence[str]) -> doc.Maps | None:
    """The best head of each label; a terminal has them small beside the tables."""
    best = [(name, report.labelled(name)[0]) for name in names]
    maps = [_map(report, head, name, head.example) for name, head in best if head.example]
    title: doc.Words = [("What it looks like", True), ("the best of each label", False)]

    def drawn(theme: Theme, room: int) -> Block:
        words = Block(tuple(wrapped([(_SMALL_MAPS, False)], room, theme)), room)
        return stack([words, scale_block(doc.WEIGHTS, theme, room)], gap=0)

    found = doc.Maps(maps, title, index_base=report.index_base, screen=drawn)
    return found if maps else None


def _watched_maps(report: PatternReport, name: str) -> doc.Maps | None:
    """The best heads of the label; on a terminal one or two side by side."""
    heads = [entry for entry in report.labelled(name) if entry.example]
    maps = [_map(report, head, name, head.example) for head in heads[:_MAPPED] if head.example]
    found = doc.Maps(maps, least_cell=1, index_base=report.index_base)

    def drawn(theme: Theme, room: int) -> Block:
        most = _MAPPED if room >= _MAPPED * (_LEAST_MAP + _MAP_GAP) - _MAP_GAP else 1
        return maps_block(found._replace(maps=maps[:most]), theme, room)

    return found._replace(screen=drawn) if maps else None
