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
from attnviz.inspect.heads.examples import (
    LEAST_MAP,
    LEAST_TEXT,
    drawn_alike,
    examples,
    examples_with_arcs,
    first_arcs,
    labelled_maps,
    text_maps,
)
from attnviz.inspect.heads.finding import (
    HeadWords,
    best_of,
    counts,
    described,
    overview_words,
    scored,
)
from attnviz.inspect.heads.links import (
    links_of,
    links_table,
    pairs_table,
    word_links,
)
from attnviz.inspect.heads.pair import pair_table
from attnviz.inspect.heads.report import HeadsReport, HeadsView
from attnviz.inspect.heads.words import run_names, score_words
from attnviz.measures.registry import label_named, said_name
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


def first_groups(found: HeadsReport, view: HeadsView, columns: int, lines: int) -> Groups:
    """Return the parts of the first screen below the finding, fitted to the terminal.

    view: the display options. columns, lines: the available width in characters and lines.
    """
    report = found.first
    if view.pairs:
        pair = view.pairs[0]
        table = pair_table(report.name, pair, least=3)
        most = min(_LISTED, lines - 5)
        hidden = max(len(table.rows) - most, 0)
        return [doc.Group([table._replace(rows=table.rows[:most], hidden=hidden)])]
    if view.words:
        return _word(report, view, columns, lines)
    if view.top is not None:
        tables = [pairs_table(each, view.top, view.sink) for each in found.reports]
        return [doc.Group([table]) for table in tables]
    if len(found.reports) > 1:
        return _runs(found, view, lines)
    if report.regions is not None:
        shares = region_group(report.regions, lambda head: report.name(*head), columns, lines // 3)
        notes = [doc.Note(note) for note in report.record.model.notes]  # how two texts were joined
        above = [doc.Group(notes), shares] if notes else [shares]
        tall = _tall(shares) + sum(1 + _lines([(note.text, False)], columns) for note in notes)
        return [*above, *_overview(found, view, columns, lines - tall)]
    return _overview(found, view, columns, lines)


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


def _overview(found: HeadsReport, view: HeadsView, columns: int, lines: int) -> Groups:
    report = found.first
    half = (columns - _GAP) // 2 if columns >= _LEAST_BESIDE else columns
    heads = {entry.head for entry in report.heads}
    if report.sorted_by is not None:
        left: list[doc.Part] = [_ranking(report, report.sorted_by, max(lines - 2, 3))]
        return [_halves(columns, left, examples(found, view, half, lines))]
    if report.selected and view.values:  # values need the whole width
        maps = examples(found, view, columns, lines)
        return [doc.Group(maps), doc.Group(_links(found, view, _LEAST_LINKS), yields=1)]
    if report.selected:
        if columns >= _WIDE and len(report.heads) == 1:
            view = view._replace(values=True)
        right = examples(found, view, half, lines)
        arcs = first_arcs(found, view, columns) if len(report.heads) == 1 else []
        lower = lines - 1 - arcs_lines(arcs[0]) if arcs else 0
        less = examples(found, view, half, lower) if lower > 0 else []
        arcs = arcs if less and drawn_alike(less, right) else []
        right, lines = (less, lower) if arcs else (right, lines)
        links = _links(found, view, lines)
        above = [doc.Group(arcs)] if arcs else []
        return [*above, _halves(columns, right, links) if right else doc.Group(links)]
    if columns >= _WIDE and (wide := _wide(found, view, columns, lines)):
        return wide
    grid = _grid(report, half, lines)
    rest = lines - len(grid.rows) - 2 - _lines(grid.title, half) - 2 * bool(grid.key)
    if rest < 0:  # if there are more layers than lines
        right = examples(found, view, half, lines)
        return [_halves(columns, _lists(found, view, lines), right)]
    if columns < _LEAST_BESIDE:
        return [doc.Group([grid]), doc.Group(_lists(found, view, rest), yields=1)]
    if _INDENT + len(heads) * _CELL > half:
        below = _halves(columns, _lists(found, view, rest), examples(found, view, half, rest))
        return [doc.Group([grid]), below._replace(yields=1)]
    right = examples(found, view, half, lines)
    small = _thumbnails(report, half, lines)
    if small:
        return [_halves(columns, [small], [*right, *_lists(found, view, _MOST_LINKS)])]
    few = report.regions is not None and rest < _LEAST_LINKS
    left = [grid, *([] if few else _lists(found, view, rest))]
    return [_halves(columns, left, right, _INDENT + len(heads) * _FULL_CELL)]


def _wide(found: HeadsReport, view: HeadsView, columns: int, lines: int) -> Groups:
    """Return the first screen for a wide terminal; empty if it does not fit.

    It has all heads, maps of some with arcs of the first, and tables next to each other. Maps stand
    below if the grid of heads is too wide.
    """
    report = found.first
    heads = {entry.head for entry in report.heads}
    room = columns - _LISTS - 2 * _APART
    small = _thumbnails(report, room - LEAST_MAP, lines, brief=True)
    wide = _INDENT + len(heads) * _FULL_CELL
    grid = _grid(report, wide, lines)
    every: list[doc.Part] = [grid]
    if small is not None and small.small is not None:
        every, wide = [small], len(heads) * (small.small[1] + _GAP) - _GAP
    if room - wide >= LEAST_MAP:
        middle = examples_with_arcs(found, view, room - wide, lines)
        if small is None and not any(isinstance(one, doc.Maps) and one.texts for one in middle):
            every += text_maps(report, view, wide, lines - len(grid.rows) - 5)
        lists = _lists(found, view, lines)
        if small is not None:
            sinks: list[doc.Part] = [doc.Note(words) for words in overview_words(report)[1:]]
            lists = [*sinks, *lists]
        groups = [doc.Group(each, spaced=True) for each in (every, middle, lists)]
        widths = wide, room - wide, _LISTS
        return [doc.Group(groups, beside=doc.Beside(0, _APART, widths=widths))]
    if wide > room + _APART:
        return []
    if dense := _dense(found, view, columns, lines):
        return dense
    tall = max(len(grid.rows) + LEAST_TEXT + 3, _MOST_LISTED)
    every += text_maps(report, view, wide, tall - len(grid.rows) - 3)
    groups = [doc.Group(each, spaced=True) for each in (every, _lists(found, view, tall))]
    above = doc.Group(groups, beside=doc.Beside(0, _APART, widths=(room + _APART, _LISTS)))
    below = examples_with_arcs(found, view, columns, lines - tall - 1)
    return [above, doc.Group(below, spaced=True, yields=1)]


def _dense(found: HeadsReport, view: HeadsView, columns: int, lines: int) -> Groups:
    """Return all heads as downsampled maps, with an example and tables; empty if none fit."""
    report = found.first
    tokens = max(len(report.record.queries), len(report.record.keys))
    layers = {entry.layer for entry in report.heads}
    across = -(-len(report.heads) // len(layers))
    size = -(-tokens // 4), max(-(-tokens // 2), _LABELLED)
    wide = across * (size[1] + _GAP) - _GAP
    room = columns - wide - _APART
    tall = len(layers) * (size[0] + 3) + 1
    if tokens < _LEAST_POOLED or tall > lines or room < _LEAST_BESIDE:
        return []
    maps = []
    places = [(entry.layer, entry.head) for entry in report.heads]
    for place, shown in zip(places, labelled_maps(report, places, HeadsView()).maps, strict=True):
        what = described(report.scores(*place))
        below = [(scored(what.short, what.score), what.finding)]
        maps.append(shown._replace(words=[(shown.name, what.finding)], below=below))
    title = _overview_title(report, shaded=False)
    small = doc.Maps(maps, title, small=size, across=across, scale=None)
    lists = _lists(found, view, _MOST_LISTED)
    right = [*examples_with_arcs(found, view, room, lines - _MOST_LISTED - 2), *lists]
    left = [small, *text_maps(report, view, wide, lines - tall - 1)]
    groups = [doc.Group(left, spaced=True), doc.Group(right, spaced=True)]
    return [doc.Group(groups, beside=doc.Beside(0, _APART, widths=(wide, room)))]


def _thumbnails(report: HeadsRecord, room: int, lines: int, brief: bool = False) -> doc.Maps | None:
    """Return a small map of each head, a row for each layer; None if they do not fit.

    brief: whether the title only says where labels come from.
    """
    record = report.record
    queries, keys = len(record.queries), len(record.keys)
    layers = sorted({entry.layer for entry in report.heads})
    heads = max(sum(entry.layer == layer for entry in report.heads) for layer in layers)
    heading = _overview_title(report, shaded=False)[: 2 if brief else None]
    rest = lines - _lines(heading, room)
    size = thumbnails_fit(max(queries, keys), len(layers), heads, rest, room)
    if size is None or heads * len(layers) > len(report.heads):
        return None
    maps = []
    places = [(entry.layer, entry.head) for entry in report.heads]
    for place, shown in zip(places, labelled_maps(report, places, HeadsView()).maps, strict=True):
        what = described(report.scores(*place))
        title = f"{shown.name} {scored(what.short, what.score)}"
        maps.append(shown._replace(words=[(title, what.finding)]))
    return doc.Maps(maps, heading, small=size, across=heads, scale=None)


def label_grid(report: HeadsRecord) -> doc.HeadGrid:
    """Return a grid with each head's label and score; descriptions of this text have no colour."""
    layers = sorted({entry.layer for entry in report.heads})
    heads = sorted({entry.head for entry in report.heads})
    base, array = report.index_base, report.record.model.is_one_layer
    return doc.HeadGrid(
        ["" if array else f"L{layer + base}" for layer in layers],
        [f"H{head + base}" for head in heads],
        {
            (layers.index(entry.layer), heads.index(entry.head)): _cell(report, entry)
            for entry in report.heads
        },
    )


def _grid(report: HeadsRecord, room: int, lines: int) -> doc.HeadGrid:
    """Return the grid of labels with a title and a legend: sinks, sources of labels, colours."""
    title = _overview_title(report, shaded=True)
    grid = label_grid(report)._replace(title=title)
    shorts = {entry.label.short for entry in report.heads}
    key = [
        doc.Key(None, meaning, f"{short}:")
        for short, meaning in _MEANINGS.items()
        if short in shorts
    ]
    taken = len(grid.rows) + _lines(title, room) + 4 + _LEAST_LINKS
    return grid._replace(key=key) if taken <= lines else grid


def _overview_title(report: HeadsRecord, shaded: bool) -> doc.Words:
    """Return the title over the grid of all heads.

    shaded: whether labels have a coloured background, which the title then explains.
    """
    source, *words = overview_words(report)
    shade = [doc.SHADE] * (shaded and any(each.label.is_finding for each in report.heads))
    return [("labels", True), *((word, False) for word in (source, *shade, *words))]


def _lines(words: doc.Words, room: int) -> int:
    """Return about how many lines a title takes at ``room`` characters of available width."""
    return -(-width(" · ".join(text for text, _ in words)) // room)


def _cell(report: HeadsRecord, entry: HeadScores) -> doc.Cell:
    what = described(entry)
    tip = f"{report.name(entry.layer, entry.head)} · {' · '.join(score_words(report, entry))}"
    score = scored("", what.score).lstrip()
    if not what.finding:
        return doc.Cell(0.0, None, score, what.short, tip)
    label = entry.label
    strength = 1.0 if math.isnan(label.score) else label.score
    tint = Tint(round(strength * (STEPS - 1)), shades(label_named(label.name).colour))
    return doc.Cell(strength, tint, score, what.short, tip)


def _lists(found: HeadsReport, view: HeadsView, lines: int) -> list[doc.Part]:
    """Return two tables: heads by label, and links between words."""
    report = found.first
    rows = [
        doc.Row(
            [_counted(each.what), str(each.heads), best_of(report, each)],
            tone="plain" if each.what.finding else "faint",
        )
        for each in counts(report)
    ]
    columns = [
        doc.Column("", right=False),
        doc.Column("heads"),
        doc.Column("best", right=False, keep=1),
    ]
    room = lines - len(rows) - 2
    if room < _LEAST_LINKS:  # the finding gives the counts too
        return _links(found, view, lines)
    return [doc.Table(columns, rows, least=2), *_links(found, view, room)]


def _counted(what: HeadWords) -> str:
    short = f" ({what.short})" if what.short != what.said else ""
    return what.said + short if what.finding else f"on this text: {what.said}{short}"


def _repeats(report: HeadsRecord) -> bool:
    """Return whether heads of this text can be tested for induction, or attention is not causal."""
    scores = [entry.scores.get("induction") for entry in report.heads]
    return not report.record.causal or any(score is not None for score in scores)


def _links(found: HeadsReport, view: HeadsView, lines: int) -> list[doc.Part]:
    """Return a table of the links between words, those that beat chance first."""
    report = found.first
    note = "" if _repeats(report) else "induction: not testable (no repeats)"
    count = min(max(lines - 2 - bool(note), 2), _MOST_LINKS)
    table = links_of(found, view.sink, count)
    if table is None:
        return [doc.Note(note)] if note else []
    return [table._replace(more=note)]


def _ranking(report: HeadsRecord, measure: str, most: int) -> doc.Table:
    values = [entry.scores[measure] for entry in report.heads]
    top = max((abs(value) for value in values if value is not None), default=0.0) or 1.0
    rows = [
        doc.Row(
            [
                report.name(entry.layer, entry.head),
                "–" if value is None else f"{value:.2f}",
                described(entry).said,
            ],
            None if value is None else (abs(value), top),
        )
        for entry, value in zip(report.heads, values, strict=True)
    ]
    source = label_source((each.label for each in report.heads), "{source}, {date}")
    names = ("", said_name(measure), source)
    columns = [doc.Column(name, right=bool(place % 2)) for place, name in enumerate(names)]
    return doc.Table(columns, rows[:most], least=3, hidden=max(len(rows) - most, 0))


# One word, several runs ----------------------------------------------------------------------


def _word(report: HeadsRecord, view: HeadsView, columns: int, lines: int) -> Groups:
    """Return the first screen for a requested word: its strongest links, and where it attends."""
    word = view.words[0]
    tables = [
        links_table(report, links[:_LISTED], f"attention {way}", view.sink, least=3)
        for way, links in zip(("from", "to"), word_links(report, word, view.sink), strict=True)
        if links
    ]
    groups = [_halves(columns, tables[:1], tables[1:])]
    rest = lines - max((len(table.rows) for table in tables), default=0) - 2
    if word[0] is not None:
        groups.append(doc.Group(text_maps(report, view, columns, rest, word[0]), yields=1))
    return groups


def _runs(found: HeadsReport, view: HeadsView, lines: int) -> Groups:
    """Return the first screen of several runs: maps of the heads that differ most, side by side."""
    moved = [each for each in found.moved if each is not None]

    def distance(place: tuple[int, int]) -> float:
        return max((each.get(place, 0.0) for each in moved), default=0.0)

    every = [(entry.layer, entry.head) for entry in found.first.heads]
    places = [*dict.fromkeys([*(found.first.notable if found.of_texts else ()), *every])]
    places.sort(key=lambda place: -distance(place))
    tallest = max(len(report.record.queries) for report in found.reports) + 4
    groups = []
    places = places[: max(lines // tallest, 1)]
    for number, place in enumerate(places):
        maps = []
        for index in found.kept_by(*place):
            (shown,) = labelled_maps(found.reports[index], [place], HeadsView()).maps
            maps.append(shown._replace(words=[*shown.words, *_run_words(found, index, place)]))
        drawn = doc.Maps(maps, values=view.values, lines=lines // len(places), scale=None)
        groups.append(doc.Group([drawn], yields=number))
    return groups


def _run_words(found: HeadsReport, index: int, place: tuple[int, int]) -> doc.Words:
    """Return how a run differs from the others, and the share of attention that a head moved.

    index: of the run in ``found.reports``. place: the (layer, head).
    """
    names = run_names(found)[1]
    moved = found.moved[index]
    words = [*names[index], *([] if moved is None else [f"moved {share(moved[place])}"])]
    return [(word, False) for word in words]
