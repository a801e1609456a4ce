"""The first screen of ``attnviz heads``, fitted to the lines and columns of the terminal.

The overview stands left, examples right; if the heads of a layer need more than half of the
columns, the overview stands above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnviz.draw import document as doc
from attnviz.draw.arcs import arcs_lines
from attnviz.draw.labels import token_labels, width
from attnviz.draw.maps import thumbnails_fit
from attnviz.draw.palette import STEPS, Tint, shades
from attnviz.draw.provenance import label_source, share
from attnviz.draw.regions import region_group
from attnviz.inspect.heads.distinctive import (
    LEAST_MAP,
    LEAST_TEXT,
    drawn_alike,
    examples,
    examples_with_arcs,
    first_arcs,
    labelled_maps,
    text_maps,
)
from attnviz.inspect.heads.links import word_links
from attnviz.inspect.heads.listed import links_of, links_table, pair_table, pairs_table
from attnviz.inspect.heads.report import HeadsReport
from attnviz.inspect.heads.sentences import (
    HeadWords,
    best_of,
    counts,
    described,
    overview_words,
    run_names,
    score_words,
    scored,
)
from attnviz.measures.registry import label_named, said_name
from attnviz.measures.words import WordPlaces
from attnviz.records import HeadScores, HeadsRecord

_GAP, _APART = 2, 3
_LABELLED, _LEAST_POOLED = 8, 12
"""The columns of a downsampled map, and the fewest tokens that are downsampled."""

_LEAST_BESIDE = 72
_INDENT, _CELL, _FULL_CELL = 3, 5, 10
_NARROW_SCALE = 28
_LEAST_LINKS, _MOST_LINKS = 5, 14
_LISTED = 10
_WIDE, _LISTS, _MOST_LISTED = 160, 46, 22
"""The columns from which all heads, maps and lists stand next to each other, those of the lists,
and the most lines of lists above maps."""

_MEANINGS = {"peak": "few tokens", "wide": "many tokens"}
"""What a head without label attends to, by the short word in its cell."""

Groups = list[doc.Group]


def first_groups(report: HeadsReport, columns: int, lines: int) -> Groups:
    """Return the parts of the first screen below the finding, fitted to the terminal.

    columns, lines: the available width in characters and lines.
    """
    run, view = report.first, report.view
    if view.pairs:
        table = pair_table(run, view.pairs[0], least=3)
        most = min(_LISTED, lines - 5)
        hidden = max(len(table.rows) - most, 0)
        return [doc.Group([table._replace(rows=table.rows[:most], hidden=hidden)])]
    if view.words:
        return _word(run, view.words[0], view.sink, columns, lines)
    if view.top is not None:
        tables = [pairs_table(each, view.top, view.sink) for each in report.reports]
        return [doc.Group([table]) for table in tables]
    if len(report.reports) > 1:
        return _runs(report, lines)
    if run.regions is not None:
        shares = region_group(run.regions, lambda head: run.name(*head), columns, lines // 3)
        notes = [doc.Note(note) for note in run.record.model.notes]  # how two texts were joined
        above = [doc.Group(notes), shares] if notes else [shares]
        tall = _tall(shares) + sum(1 + _lines([(note.text, False)], columns) for note in notes)
        return [*above, *_overview(report, columns, lines - tall)]
    return _overview(report, columns, lines)


def _tall(group: doc.Group) -> int:
    """Return the height in lines of a group of tables side by side, with an empty line below."""
    return max(len(part.rows) for part in group.parts if isinstance(part, doc.Table)) + 3


def _halves(
    columns: int, left: Sequence[doc.Part], right: Sequence[doc.Part], wanted: int = 0
) -> doc.Group:
    """Return the parts in two columns of one width, or below each other if that is too narrow.

    columns: the width of the screen in characters. left, right: the parts of each column.
    wanted: the width of the left, which may exceed half if a single map at the right needs less.
    """
    if columns < _LEAST_BESIDE:
        return doc.Group([*left, *right], spaced=True)
    parts = [doc.Group(left, spaced=True), doc.Group(right, spaced=True)]
    half = (columns - _GAP) // 2
    if half < wanted <= columns - _GAP - _map_width(right):
        return doc.Group(parts, beside=doc.Beside(wanted, _GAP, yields=True))
    return doc.Group(parts, beside=doc.Beside(half, _GAP, 2))


def _map_width(parts: Sequence[doc.Part]) -> int:
    """Return the width in characters of one causal map with tokens at its row ends.

    999 for other parts, which have no such width.
    """
    for part in parts:
        if isinstance(part, doc.Maps) and len(part.maps) == 1 and part.maps[0].causal:
            labels = token_labels(part.maps[0].keys)
            return max(
                _NARROW_SCALE, *(2 * place + width(label) + 3 for place, label in enumerate(labels))
            )
    return 999


# One run -------------------------------------------------------------------------------------


def _overview(report: HeadsReport, columns: int, lines: int) -> Groups:
    run = report.first
    half = (columns - _GAP) // 2 if columns >= _LEAST_BESIDE else columns
    heads = {entry.head for entry in run.heads}
    if run.sorted_by is not None:
        left: list[doc.Part] = [_ranking(run, run.sorted_by, max(lines - 2, 3))]
        return [_halves(columns, left, examples(report, half, lines))]
    if run.selected and report.view.values:  # values need the whole width
        maps = examples(report, columns, lines)
        return [doc.Group(maps), doc.Group(_links(report, _LEAST_LINKS), yields=1)]
    if run.selected:
        values = columns >= _WIDE and len(run.heads) == 1
        right = examples(report, half, lines, values=values)
        arcs = first_arcs(report, columns) if len(run.heads) == 1 else []
        lower = lines - 1 - arcs_lines(arcs[0]) if arcs else 0
        less = examples(report, half, lower, values=values) if lower > 0 else []
        arcs = arcs if less and drawn_alike(less, right) else []
        right, lines = (less, lower) if arcs else (right, lines)
        links = _links(report, lines)
        above = [doc.Group(arcs)] if arcs else []
        return [*above, _halves(columns, right, links) if right else doc.Group(links)]
    if columns >= _WIDE and (wide := _wide(report, columns, lines)):
        return wide
    grid = _grid(run, half, lines)
    rest = lines - len(grid.rows) - 2 - _lines(grid.title, half) - 2 * bool(grid.key)
    if rest < 0:  # if there are more layers than lines
        right = examples(report, half, lines)
        return [_halves(columns, _lists(report, lines), right)]
    if columns < _LEAST_BESIDE:
        return [doc.Group([grid]), doc.Group(_lists(report, rest), yields=1)]
    if _INDENT + len(heads) * _CELL > half:
        below = _halves(columns, _lists(report, rest), examples(report, half, rest))
        return [doc.Group([grid]), below._replace(yields=1)]
    right = examples(report, half, lines)
    small = _thumbnails(run, half, lines)
    if small:
        return [_halves(columns, [small], [*right, *_lists(report, _MOST_LINKS)])]
    few = run.regions is not None and rest < _LEAST_LINKS
    left = [grid, *([] if few else _lists(report, rest))]
    return [_halves(columns, left, right, _INDENT + len(heads) * _FULL_CELL)]


def _wide(report: HeadsReport, columns: int, lines: int) -> Groups:
    """Return the first screen for a wide terminal; empty if it does not fit.

    It has all heads, maps of some with arcs of the first, and tables next to each other. Maps stand
    below if the grid of heads is too wide.
    """
    run = report.first
    heads = {entry.head for entry in run.heads}
    room = columns - _LISTS - 2 * _APART
    small = _thumbnails(run, room - LEAST_MAP, lines, brief=True)
    wide = _INDENT + len(heads) * _FULL_CELL
    grid = _grid(run, wide, lines)
    every: list[doc.Part] = [grid]
    if small is not None and small.small is not None:
        every, wide = [small], len(heads) * (small.small[1] + _GAP) - _GAP
    if room - wide >= LEAST_MAP:
        middle = examples_with_arcs(report, room - wide, lines)
        if small is None and not any(isinstance(one, doc.Maps) and one.texts for one in middle):
            every += text_maps(run, report.view.sink, wide, lines - len(grid.rows) - 5)
        lists = _lists(report, lines)
        if small is not None:
            sinks: list[doc.Part] = [doc.Note(words) for words in overview_words(run)[1:]]
            lists = [*sinks, *lists]
        groups = [doc.Group(each, spaced=True) for each in (every, middle, lists)]
        widths = wide, room - wide, _LISTS
        return [doc.Group(groups, beside=doc.Beside(0, _APART, widths=widths))]
    if wide > room + _APART:
        return []
    if dense := _dense(report, columns, lines):
        return dense
    tall = max(len(grid.rows) + LEAST_TEXT + 3, _MOST_LISTED)
    every += text_maps(run, report.view.sink, wide, tall - len(grid.rows) - 3)
    groups = [doc.Group(each, spaced=True) for each in (every, _lists(report, tall))]
    above = doc.Group(groups, beside=doc.Beside(0, _APART, widths=(room + _APART, _LISTS)))
    below = examples_with_arcs(report, columns, lines - tall - 1)
    return [above, doc.Group(below, spaced=True, yields=1)]


def _dense(report: HeadsReport, columns: int, lines: int) -> Groups:
    """Return all heads as downsampled maps, with an example and tables; empty if none fit."""
    run = report.first
    tokens = max(len(run.record.queries), len(run.record.keys))
    layers = {entry.layer for entry in run.heads}
    across = -(-len(run.heads) // len(layers))
    size = -(-tokens // 4), max(-(-tokens // 2), _LABELLED)
    wide = across * (size[1] + _GAP) - _GAP
    room = columns - wide - _APART
    tall = len(layers) * (size[0] + 3) + 1
    if tokens < _LEAST_POOLED or tall > lines or room < _LEAST_BESIDE:
        return []
    maps = []
    for place, shown in zip(run.places, labelled_maps(run, run.places).maps, strict=True):
        what = described(run.scores(*place))
        below = [(scored(what.short, what.score), what.finding)]
        maps.append(shown._replace(words=[(shown.name, what.finding)], below=below))
    title = _overview_title(run, shaded=False)
    small = doc.Maps(maps, title, small=size, across=across, scale=None)
    lists = _lists(report, _MOST_LISTED)
    right = [*examples_with_arcs(report, room, lines - _MOST_LISTED - 2), *lists]
    left = [small, *text_maps(run, report.view.sink, wide, lines - tall - 1)]
    groups = [doc.Group(left, spaced=True), doc.Group(right, spaced=True)]
    return [doc.Group(groups, beside=doc.Beside(0, _APART, widths=(wide, room)))]


def _thumbnails(run: HeadsRecord, room: int, lines: int, brief: bool = False) -> doc.Maps | None:
    """Return a small map of each head, a row for each layer; None if they do not fit.

    brief: whether the title only says where labels come from.
    """
    record = run.record
    queries, keys = len(record.queries), len(record.keys)
    layers = sorted({entry.layer for entry in run.heads})
    heads = max(sum(entry.layer == layer for entry in run.heads) for layer in layers)
    heading = _overview_title(run, shaded=False)[: 2 if brief else None]
    rest = lines - _lines(heading, room)
    size = thumbnails_fit(max(queries, keys), len(layers), heads, rest, room)
    if size is None or heads * len(layers) > len(run.heads):
        return None
    maps = []
    for place, shown in zip(run.places, labelled_maps(run, run.places).maps, strict=True):
        what = described(run.scores(*place))
        title = f"{shown.name} {scored(what.short, what.score)}"
        maps.append(shown._replace(words=[(title, what.finding)]))
    return doc.Maps(maps, heading, small=size, across=heads, scale=None)


def label_grid(run: HeadsRecord) -> doc.HeadGrid:
    """Return a grid with each head's label and score; descriptions of this text have no colour."""
    layers = sorted({entry.layer for entry in run.heads})
    heads = sorted({entry.head for entry in run.heads})
    base, array = run.index_base, run.record.model.is_one_layer
    return doc.HeadGrid(
        ["" if array else f"L{layer + base}" for layer in layers],
        [f"H{head + base}" for head in heads],
        {
            (layers.index(entry.layer), heads.index(entry.head)): _cell(run, entry)
            for entry in run.heads
        },
    )


def _grid(run: HeadsRecord, room: int, lines: int) -> doc.HeadGrid:
    """Return the grid of labels with a title and a legend: sinks, sources of labels, colours."""
    title = _overview_title(run, shaded=True)
    grid = label_grid(run)._replace(title=title)
    shorts = {entry.label.short for entry in run.heads}
    key = [
        doc.Key(None, meaning, f"{short}:")
        for short, meaning in _MEANINGS.items()
        if short in shorts
    ]
    taken = len(grid.rows) + _lines(title, room) + 4 + _LEAST_LINKS
    return grid._replace(key=key) if taken <= lines else grid


def _overview_title(run: HeadsRecord, shaded: bool) -> doc.Words:
    """Return the title over the grid of all heads.

    shaded: whether labels have a coloured background, which the title then explains.
    """
    source, *words = overview_words(run)
    shade = [doc.SHADE] * (shaded and any(each.label.is_finding for each in run.heads))
    return [("labels", True), *((word, False) for word in (source, *shade, *words))]


def _lines(words: doc.Words, room: int) -> int:
    """Return about how many lines a title takes at ``room`` characters of available width."""
    return -(-width(" · ".join(text for text, _ in words)) // room)


def _cell(run: HeadsRecord, entry: HeadScores) -> doc.Cell:
    what = described(entry)
    tip = f"{run.name(entry.layer, entry.head)} · {' · '.join(score_words(run, entry))}"
    score = scored("", what.score).lstrip()
    if not what.finding:
        return doc.Cell(0.0, None, score, what.short, tip)
    label = entry.label
    strength = 1.0 if math.isnan(label.score) else label.score
    tint = Tint(round(strength * (STEPS - 1)), shades(label_named(label.name).colour))
    return doc.Cell(strength, tint, score, what.short, tip)


def _lists(report: HeadsReport, lines: int) -> list[doc.Part]:
    """Return two tables: heads by label, and links between words."""
    run = report.first
    rows = [
        doc.Row(
            [_counted(each.what), str(each.heads), best_of(run, each)],
            tone="plain" if each.what.finding else "faint",
        )
        for each in counts(run)
    ]
    columns = [
        doc.Column("", right=False),
        doc.Column("heads"),
        doc.Column("best", right=False, keep=1),
    ]
    room = lines - len(rows) - 2
    if room < _LEAST_LINKS:  # the finding gives the counts too
        return _links(report, lines)
    return [doc.Table(columns, rows, least=2), *_links(report, room)]


def _counted(what: HeadWords) -> str:
    short = f" ({what.short})" if what.short != what.said else ""
    return what.said + short if what.finding else f"on this text: {what.said}{short}"


def _repeats(run: HeadsRecord) -> bool:
    """Return whether heads of this text can be tested for induction, or attention is not causal."""
    scores = [entry.scores.get("induction") for entry in run.heads]
    return not run.record.causal or any(score is not None for score in scores)


def _links(report: HeadsReport, lines: int) -> list[doc.Part]:
    """Return a table of the links between words, those that beat chance first."""
    run = report.first
    note = "" if _repeats(run) else "induction: not testable (no repeats)"
    count = min(max(lines - 2 - bool(note), 2), _MOST_LINKS)
    table = links_of(report, count)
    if table is None:
        return [doc.Note(note)] if note else []
    return [table._replace(more=note)]


def _ranking(run: HeadsRecord, measure: str, most: int) -> doc.Table:
    values = [entry.scores[measure] for entry in run.heads]
    top = max((abs(value) for value in values if value is not None), default=0.0) or 1.0
    rows = [
        doc.Row(
            [
                run.name(entry.layer, entry.head),
                "–" if value is None else f"{value:.2f}",
                described(entry).said,
            ],
            None if value is None else (abs(value), top),
        )
        for entry, value in zip(run.heads, values, strict=True)
    ]
    source = label_source((each.label for each in run.heads), "{source}, {date}")
    names = ("", said_name(measure), source)
    columns = [doc.Column(name, right=bool(place % 2)) for place, name in enumerate(names)]
    return doc.Table(columns, rows[:most], least=3, hidden=max(len(rows) - most, 0))


# One word, several runs ----------------------------------------------------------------------


def _word(run: HeadsRecord, word: WordPlaces, sink: bool, columns: int, lines: int) -> Groups:
    """Return the first screen for a requested word: its strongest links, and where it attends."""
    tables = [
        links_table(run, links[:_LISTED], f"attention {way}", sink, least=3)
        for way, links in zip(("from", "to"), word_links(run, word, sink), strict=True)
        if links
    ]
    groups = [_halves(columns, tables[:1], tables[1:])]
    rest = lines - max((len(table.rows) for table in tables), default=0) - 2
    if word[0] is not None:
        groups.append(doc.Group(text_maps(run, sink, columns, rest, word[0]), yields=1))
    return groups


def _runs(report: HeadsReport, lines: int) -> Groups:
    """Return the first screen of several runs: maps of the heads that differ most, side by side."""
    moved = [each for each in report.moved if each is not None]

    def distance(place: tuple[int, int]) -> float:
        return max((each.get(place, 0.0) for each in moved), default=0.0)

    first = report.first
    places = [*dict.fromkeys([*(first.notable if report.of_texts else ()), *first.places])]
    places.sort(key=lambda place: -distance(place))
    tallest = max(len(run.record.queries) for run in report.reports) + 4
    groups = []
    places = places[: max(lines // tallest, 1)]
    for number, place in enumerate(places):
        maps = []
        for index in report.kept_by(*place):
            (shown,) = labelled_maps(report.reports[index], [place]).maps
            maps.append(shown._replace(words=[*shown.words, *_run_words(report, index, place)]))
        drawn = doc.Maps(maps, values=report.view.values, lines=lines // len(places), scale=None)
        groups.append(doc.Group([drawn], yields=number))
    return groups


def _run_words(report: HeadsReport, index: int, place: tuple[int, int]) -> doc.Words:
    """Return how a run differs from the others, and the share of attention that a head moved.

    index: of the run in ``report.reports``. place: the (layer, head).
    """
    names = run_names(report)[1]
    moved = report.moved[index]
    words = [*names[index], *([] if moved is None else [f"moved {share(moved[place])}"])]
    return [(word, False) for word in words]
