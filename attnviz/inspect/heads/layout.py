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
from attnviz.inspect.heads import distinctive
from attnviz.inspect.heads.distinctive import examples, labelled_maps, text_maps
from attnviz.inspect.heads.links import word_links
from attnviz.inspect.heads.listed import links_of, links_table, pair_table, pairs_table
from attnviz.inspect.heads.report import HeadsReport
from attnviz.inspect.heads.sentences import counts, overview_words, run_names, score_words, scored
from attnviz.measures.registry import label_named, said_name
from attnviz.measures.words import WordPlaces
from attnviz.records import HeadLabel, HeadScores, HeadsRecord

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
        tables = [part for part in shares.parts if isinstance(part, doc.Table)]
        tall = max(len(table.rows) for table in tables) + 3
        tall += sum(1 + _lines([(note.text, False)], columns) for note in notes)
        return [*above, *_overview(report, columns, lines - tall)]
    return _overview(report, columns, lines)


def _halves(
    columns: int, left: Sequence[doc.Part], right: Sequence[doc.Part], wanted: int = 0
) -> doc.Group:
    """Return the parts in two columns of one width, or below each other if that is too narrow.

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
            labels = enumerate(token_labels(part.maps[0].keys))
            return max(_NARROW_SCALE, *(2 * place + width(label) + 3 for place, label in labels))
    return 999


# One run -------------------------------------------------------------------------------------


def _overview(report: HeadsReport, columns: int, lines: int) -> Groups:
    run = report.first
    half = (columns - _GAP) // 2 if columns >= _LEAST_BESIDE else columns
    across = len({entry.head for entry in run.heads})
    if run.sorted_by is not None:
        ranking = _ranking(run, run.sorted_by, max(lines - 2, 3))
        return [_halves(columns, [ranking], examples(report, half, lines))]
    if run.selected and report.view.values:  # values need the whole width
        maps = examples(report, columns, lines)
        return [doc.Group(maps), doc.Group(_links(report, _LEAST_LINKS), yields=1)]
    if run.selected:
        return _chosen(report, columns, half, lines)
    if columns >= _WIDE and (wide := _wide(report, columns, lines)):
        return wide
    grid = _grid(run, half, lines)
    rest = lines - len(grid.rows) - 2 - _lines(grid.title, half) - 2 * bool(grid.key)
    if rest < 0:  # if there are more layers than lines
        return [_halves(columns, _lists(report, lines), examples(report, half, lines))]
    if columns < _LEAST_BESIDE:
        return [doc.Group([grid]), doc.Group(_lists(report, rest), yields=1)]
    if _INDENT + across * _CELL > half:
        below = _halves(columns, _lists(report, rest), examples(report, half, rest))
        return [doc.Group([grid]), below._replace(yields=1)]
    right = examples(report, half, lines)
    small = _thumbnails(run, half, lines)
    if small:
        return [_halves(columns, [small], [*right, *_lists(report, _MOST_LINKS)])]
    few = run.regions is not None and rest < _LEAST_LINKS
    left = [grid, *([] if few else _lists(report, rest))]
    return [_halves(columns, left, right, _INDENT + across * _FULL_CELL)]


def _chosen(report: HeadsReport, columns: int, half: int, lines: int) -> Groups:
    """Return the first screen of chosen heads: maps next to links, one head's arcs above."""
    one = len(report.first.heads) == 1
    values = one and columns >= _WIDE
    right = examples(report, half, lines, values=values)
    arcs = distinctive.first_arcs(report, columns) if one else []
    lower = lines - 1 - arcs_lines(arcs[0]) if arcs else 0
    less = examples(report, half, lower, values=values) if lower > 0 else []
    if arcs and less and distinctive.drawn_alike(less, right):
        below = _halves(columns, less, _links(report, lower))
        return [doc.Group(arcs), below]
    links = _links(report, lines)
    return [_halves(columns, right, links) if right else doc.Group(links)]


def _wide(report: HeadsReport, columns: int, lines: int) -> Groups:
    """Return the first screen for a wide terminal; empty if it does not fit.

    It has all heads, maps of some with arcs of the first, and tables next to each other. Maps stand
    below if the grid of heads is too wide.
    """
    run, sink = report.first, report.view.sink
    across = len({entry.head for entry in run.heads})
    room = columns - _LISTS - 2 * _APART
    small = _thumbnails(run, room - distinctive.LEAST_MAP, lines, brief=True)
    wide = _INDENT + across * _FULL_CELL
    grid = _grid(run, wide, lines)
    every: list[doc.Part] = [grid]
    if small is not None and small.small is not None:
        every, wide = [small], across * (small.small[1] + _GAP) - _GAP
    if room - wide >= distinctive.LEAST_MAP:
        middle = distinctive.examples_with_arcs(report, room - wide, lines)
        if small is None and not any(isinstance(one, doc.Maps) and one.texts for one in middle):
            every += text_maps(run, sink, wide, lines - len(grid.rows) - 5)
        lists = _lists(report, lines)
        if small is not None:
            lists = [*(doc.Note(words) for words in overview_words(run)[1:]), *lists]
        groups = [doc.Group(each, spaced=True) for each in (every, middle, lists)]
        return [doc.Group(groups, beside=doc.Beside(0, _APART, widths=(wide, room - wide, _LISTS)))]
    if wide > room + _APART:
        return []
    if dense := _dense(report, columns, lines):
        return dense
    tall = max(len(grid.rows) + distinctive.LEAST_TEXT + 3, _MOST_LISTED)
    every += text_maps(run, sink, wide, tall - len(grid.rows) - 3)
    groups = [doc.Group(each, spaced=True) for each in (every, _lists(report, tall))]
    above = doc.Group(groups, beside=doc.Beside(0, _APART, widths=(room + _APART, _LISTS)))
    below = distinctive.examples_with_arcs(report, columns, lines - tall - 1)
    return [above, doc.Group(below, spaced=True, yields=1)]


def _dense(report: HeadsReport, columns: int, lines: int) -> Groups:
    """Return all heads as downsampled maps, with an example and tables; empty if none fit."""
    run = report.first
    tokens = max(len(run.record.queries), len(run.record.keys))
    layers = len({entry.layer for entry in run.heads})
    across = -(-len(run.heads) // layers)
    size = -(-tokens // 4), max(-(-tokens // 2), _LABELLED)
    wide = across * (size[1] + _GAP) - _GAP
    room = columns - wide - _APART
    tall = layers * (size[0] + 3) + 1
    if tokens < _LEAST_POOLED or tall > lines or room < _LEAST_BESIDE:
        return []
    maps = []
    for entry, shown in zip(run.heads, labelled_maps(run, run.places).maps, strict=True):
        label = entry.label
        below = [(scored(label.short, label.score), label.is_finding)]
        maps.append(shown._replace(words=[(shown.name, label.is_finding)], below=below))
    title = _overview_title(run, shaded=False)
    small = doc.Maps(maps, title, small=size, across=across, scale=None)
    example = distinctive.examples_with_arcs(report, room, lines - _MOST_LISTED - 2)
    left = [small, *text_maps(run, report.view.sink, wide, lines - tall - 1)]
    right = [*example, *_lists(report, _MOST_LISTED)]
    groups = [doc.Group(left, spaced=True), doc.Group(right, spaced=True)]
    return [doc.Group(groups, beside=doc.Beside(0, _APART, widths=(wide, room)))]


def _thumbnails(run: HeadsRecord, room: int, lines: int, brief: bool = False) -> doc.Maps | None:
    """Return a small map of each head, a row for each layer; None if they do not fit.

    brief: whether the title only says where labels come from.
    """
    layers = [entry.layer for entry in run.heads]
    across, down = max(map(layers.count, layers)), len({*layers})
    heading = _overview_title(run, shaded=False)[: 2 if brief else None]
    tokens, rest = max(len(run.record.queries), len(run.record.keys)), lines - _lines(heading, room)
    size = thumbnails_fit(tokens, down, across, rest, room)
    if size is None or across * down > len(run.heads):
        return None
    maps = []
    for entry, shown in zip(run.heads, labelled_maps(run, run.places).maps, strict=True):
        title = f"{shown.name} {scored(entry.label.short, entry.label.score)}"
        maps.append(shown._replace(words=[(title, entry.label.is_finding)]))
    return doc.Maps(maps, heading, small=size, across=across, scale=None)


def label_grid(run: HeadsRecord) -> doc.HeadGrid:
    """Return a grid with each head's label and score; descriptions of this text have no colour."""
    grid = doc.head_grid({entry.place: _cell(run, entry) for entry in run.heads}, run.index_base)
    return grid._replace(rows=[""]) if run.record.model.is_one_layer else grid


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
    shade = [doc.SHADE] * (shaded and any(entry.label.is_finding for entry in run.heads))
    return [("labels", True), *((word, False) for word in (source, *shade, *words))]


def _lines(words: doc.Words, room: int) -> int:
    """Return about how many lines a title takes at ``room`` characters of available width."""
    return -(-width(" · ".join(text for text, _ in words)) // room)


def _cell(run: HeadsRecord, entry: HeadScores) -> doc.Cell:
    label = entry.label
    tip = f"{run.name(*entry.place)} · {' · '.join(score_words(run, entry))}"
    score = scored("", label.score).lstrip()
    if not label.is_finding:
        return doc.Cell(0.0, None, score, label.short, tip)
    strength = 1.0 if math.isnan(label.score) else label.score
    tint = Tint(round(strength * (STEPS - 1)), shades(label_named(label.name).colour))
    return doc.Cell(strength, tint, score, label.short, tip)


def _lists(report: HeadsReport, lines: int) -> list[doc.Part]:
    """Return two tables: heads by label, and links between words."""
    run = report.first

    def named(label: HeadLabel) -> str:
        short = f" ({label.short})" if label.short != label.said else ""
        return f"{'' if label.is_finding else 'on this text: '}{label.said}{short}"

    def best(label: HeadLabel, head: tuple[int, int]) -> str:
        return "" if math.isnan(label.score) else scored(run.name(*head), label.score)

    labels = doc.table(
        counts(run),
        doc.ColumnOf("", lambda count: named(count.what), right=False),
        doc.ColumnOf("heads", lambda count: str(count.heads)),
        doc.ColumnOf("best", lambda count: best(count.what, count.place), right=False, keep=1),
        row=lambda count: {"tone": "plain" if count.what.is_finding else "faint"},
        least=2,
    )
    room = lines - len(labels.rows) - 2
    if room < _LEAST_LINKS:  # the finding gives the counts too
        return _links(report, lines)
    return [labels, *_links(report, room)]


def _links(report: HeadsReport, lines: int) -> list[doc.Part]:
    """Return a table of the links between words, those that beat chance first."""
    run = report.first
    repeats = any(entry.scores.get("induction") is not None for entry in run.heads)
    testable = repeats or not run.record.causal
    note = "" if testable else "induction: not testable (no repeats)"
    table = links_of(report, min(max(lines - 2 - bool(note), 2), _MOST_LINKS))
    if table is None:
        return [doc.Note(note)] if note else []
    return [table._replace(more=note)]


def _ranking(run: HeadsRecord, measure: str, most: int) -> doc.Table:
    values = {entry.place: entry.scores[measure] for entry in run.heads}
    top = max((abs(value) for value in values.values() if value is not None), default=0.0) or 1.0

    def number(entry: HeadScores) -> str:
        value = values[entry.place]
        return "–" if value is None else f"{value:.2f}"

    def bar(entry: HeadScores) -> dict[str, tuple[float, float]]:
        value = values[entry.place]
        return {} if value is None else {"bar": (abs(value), top)}

    source = label_source((entry.label for entry in run.heads), "{source}, {date}")
    return doc.table(
        run.heads[:most],
        doc.ColumnOf("", lambda entry: run.name(*entry.place), right=False),
        doc.ColumnOf(said_name(measure), number),
        doc.ColumnOf(source, lambda entry: entry.label.said, right=False),
        row=bar,
        least=3,
        hidden=max(len(run.heads) - most, 0),
    )


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
    first, names = report.first, run_names(report)[1]

    def distance(place: tuple[int, int]) -> float:
        return max((moved.get(place, 0.0) for moved in report.moved if moved), default=0.0)

    places = [*dict.fromkeys([*(first.notable if report.of_texts else ()), *first.places])]
    places.sort(key=lambda place: -distance(place))
    tallest = max(len(run.record.queries) for run in report.reports) + 4
    groups = []
    places = places[: max(lines // tallest, 1)]
    for number, place in enumerate(places):
        maps = []
        for index in report.kept_by(*place):
            (shown,) = labelled_maps(report.reports[index], [place]).maps
            moved = report.moved[index]
            words = [*names[index], *([] if moved is None else [f"moved {share(moved[place])}"])]
            maps.append(shown._replace(words=[*shown.words, *((word, False) for word in words)]))
        drawn = doc.Maps(maps, values=report.view.values, lines=lines // len(places), scale=None)
        groups.append(doc.Group([drawn], yields=number))
    return groups
