"""The first screen of ``attnviz heads``, fitted to the lines and columns of the terminal.

The overview stands left, examples right; if the heads of a layer need more than half of the
columns, the overview stands above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.labels import token_labels, visible, width
from attnviz.draw.maps import thumbnails_fit
from attnviz.draw.palette import STEPS, Tint, shades
from attnviz.draw.provenance import label_source, share
from attnviz.draw.regions import clearest, region_group
from attnviz.inspect.heads.finding import (
    HeadWords,
    best_of,
    counts,
    described,
    overview_words,
    said_links,
    scored,
)
from attnviz.inspect.heads.links import (
    attention_from,
    links_table,
    named_word,
    pairs_table,
    sink_words,
    strongest_links,
    word_links,
)
from attnviz.inspect.heads.pair import pair_table
from attnviz.inspect.heads.report import HeadsReport, HeadsView
from attnviz.inspect.heads.words import score_words, variant_names
from attnviz.measures.registry import label_named
from attnviz.measures.rows import is_punctuation
from attnviz.measures.sinks import sink_of
from attnviz.measures.words import Word, word_ranges
from attnviz.records import HeadScores, HeadsRecord, Tokens

_GAP = 2
_LEAST_BESIDE = 72
_SHORT_TEXT = 40
"""The longest text, in tokens, that is shown as maps; a longer one is shown as coloured text."""

_INDENT, _CELL, _FULL_CELL = 3, 5, 10
_MOST_MAPS, _LEGEND = 6, 2
_WIDE_TITLE = 28
"""The columns of the title of a map, ``L0H0 · previous token .85`` and a gap."""

_WIDE_SCALE, _NARROW_SCALE = 62, 28
_SCALE = doc.WEIGHTS._replace(after="colour: √weight")
_SHORT_SCALE = doc.Scale([(0.0, "0"), (0.5, ".25"), (1.0, "1")], after="√weight")
_LONGEST_LABEL, _BETWEEN = 12, 3
_LEAST_LINKS, _MOST_LINKS = 5, 14
_LEAST_TEXT = 4
_LISTED = 10
_MEANINGS = {"peak": "to few tokens", "diff": "to many tokens"}
"""What a head without label attends to, by the short word in its cell."""

Groups = list[doc.Group]


def first_groups(found: HeadsReport, view: HeadsView, columns: int, lines: int) -> Groups:
    """Return the groups below the finding, fitted to this many columns and lines."""
    report = found.first
    if view.pairs:
        pair = view.pairs[0]
        table = pair_table(report.name, pair, least=3)
        most = min(_LISTED, lines - 4)
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
        return [shares, *_overview(found, view, columns, lines - _tall(shares))]
    return _overview(found, view, columns, lines)


def _tall(group: doc.Group) -> int:
    """Return the lines of tables side by side, with the empty line below them."""
    return max(len(part.rows) for part in group.parts if isinstance(part, doc.Table)) + 3


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
    """Return the width of a single causal map with tokens on its diagonal; 999 for other parts."""
    for part in parts:
        if isinstance(part, doc.Maps) and len(part.maps) == 1 and part.maps[0].causal:
            labels = token_labels(part.maps[0].keys)
            return max(
                _NARROW_SCALE,
                *(2 * place + width(label) + 3 for place, label in enumerate(labels)),
            )
    return 999


# One run -------------------------------------------------------------------------------------


def _overview(found: HeadsReport, view: HeadsView, columns: int, lines: int) -> Groups:
    report = found.first
    half = (columns - _GAP) // 2 if columns >= _LEAST_BESIDE else columns
    heads = {entry.head for entry in report.heads}
    if report.sorted_by is not None:
        left: list[doc.Part] = [_ranking(report, report.sorted_by, max(lines - 2, 3))]
        return [_halves(columns, left, _examples(found, view, half, lines))]
    if report.selected and view.values:  # values need the whole width
        maps = _examples(found, view, columns, lines)
        return [doc.Group(maps), doc.Group(_links(report, view, _LEAST_LINKS), yields=1)]
    if report.selected:
        links = _links(report, view, lines)
        right = _examples(found, view, half, lines)
        return [_halves(columns, right, links) if right else doc.Group(links)]
    grid = _grid(report, half, lines)
    rest = lines - len(grid.rows) - 2 - _lines(grid.title, half) - 2 * bool(grid.key)
    if rest < 0:  # if there are more layers than lines
        right = _examples(found, view, half, lines)
        return [_halves(columns, _lists(report, view, lines), right)]
    if columns < _LEAST_BESIDE:
        return [doc.Group([grid]), doc.Group(_lists(report, view, rest), yields=1)]
    if _INDENT + len(heads) * _CELL > half:
        below = _halves(columns, _lists(report, view, rest), _examples(found, view, half, rest))
        return [doc.Group([grid]), below._replace(yields=1)]
    right = _examples(found, view, half, lines)
    small = _thumbnails(report, half, lines)
    if small:
        return [_halves(columns, small, [*right, *_lists(report, view, _MOST_LINKS)])]
    few = report.regions is not None and rest < _LEAST_LINKS
    left = [grid, *([] if few else _lists(report, view, rest))]
    return [_halves(columns, left, right, _INDENT + len(heads) * _FULL_CELL)]


def label_grid(report: HeadsRecord) -> doc.HeadGrid:
    """Return each head's label and score; a mere description of this text has no colour."""
    layers = sorted({entry.layer for entry in report.heads})
    heads = sorted({entry.head for entry in report.heads})
    base, array = report.index_base, report.record.model.is_array
    return doc.HeadGrid(
        ["" if array else f"L{layer + base}" for layer in layers],
        [f"H{head + base}" for head in heads],
        {
            (layers.index(entry.layer), heads.index(entry.head)): _cell(report, entry)
            for entry in report.heads
        },
    )


def _grid(report: HeadsRecord, room: int, lines: int) -> doc.HeadGrid:
    """Return the grid of labels with what it shows: sinks, where labels come from, the colours."""
    title = _overview_title(report)
    grid = label_grid(report)._replace(title=title)
    shorts = {entry.label.short for entry in report.heads}
    key = [
        doc.Key(None, meaning, f"{short}:")
        for short, meaning in _MEANINGS.items()
        if short in shorts
    ]
    taken = len(grid.rows) + _lines(title, room) + 4 + _LEAST_LINKS
    return grid._replace(key=key) if taken <= lines else grid


def _overview_title(report: HeadsRecord) -> doc.Words:
    return [("labels", True), *((words, False) for words in overview_words(report))]


def _lines(words: doc.Words, room: int) -> int:
    """Return about how many lines the words of a title take."""
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


def _lists(report: HeadsRecord, view: HeadsView, lines: int) -> list[doc.Part]:
    """Return a table of heads by label, and the strongest links, in at most ``lines`` lines."""
    rows = [
        doc.Row(
            [_counted(each.what), str(each.heads), best_of(report, each)],
            tone="plain" if each.what.finding else "faint",
        )
        for each in counts(report)
    ]
    columns = [doc.Column("", right=False), doc.Column("heads"), doc.Column("best", right=False)]
    room = lines - len(rows) - 2
    if room < _LEAST_LINKS:  # the finding gives the counts too
        return _links(report, view, lines)
    return [doc.Table(columns, rows, least=2), *_links(report, view, room)]


def _counted(what: HeadWords) -> str:
    return what.said if what.finding else f"on this text: {what.said}"


def _repeats(report: HeadsRecord) -> bool:
    """Return whether the text can show induction, or the attention is not causal."""
    scores = [entry.scores.get("induction") for entry in report.heads]
    return not report.record.causal or any(score is not None for score in scores)


def _links(report: HeadsRecord, view: HeadsView, lines: int) -> list[doc.Part]:
    note = "" if _repeats(report) else "induction: not testable (no repeats)"
    count = min(max(lines - 1 - bool(note), 2), _MOST_LINKS)
    a_head = -(-count // len(report.heads)) if report.selected else 2
    links = strongest_links(report, count, view.sink, max(a_head, 2))
    if not links:
        return [doc.Note(note)] if note else []
    return [links_table(report, links, "strongest links", view.sink)._replace(more=note)]


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
    names = ("", measure.replace("_", " "), source)
    columns = [doc.Column(name, right=bool(place % 2)) for place, name in enumerate(names)]
    return doc.Table(columns, rows[:most], least=3, hidden=max(len(rows) - most, 0))


# Examples ------------------------------------------------------------------------------------


def _examples(found: HeadsReport, view: HeadsView, room: int, lines: int) -> list[doc.Part]:
    """Return maps of the most distinctive heads that fit; for a long text the coloured text."""
    report, record = found.first, found.first.record
    queries, keys = len(record.queries), len(record.keys)
    places = distinctive(found)
    if max(queries, keys) <= _SHORT_TEXT and places:
        labels = min(max(map(width, token_labels(record.keys))), _LONGEST_LABEL) + 1
        labels += 2 * bool(record.keys.regions)  # their bands
        cell = 4 if view.values and 4 * keys + labels <= room else 2
        least = cell * keys + labels
        wide = least if record.causal else least + 2 * keys
        tall = queries + (1 if record.causal else 2) + bool(record.keys.regions)
        beside = max((room + _BETWEEN) // (wide + _BETWEEN), 1)
        tall += room // beside < _WIDE_TITLE  # the title takes two lines
        down = min((lines + 1) // (tall + 1), max(_MOST_MAPS // beside, 1))
        if down and least <= room:
            maps = _maps(report, places[: beside * down], view)
            rows = -(-len(maps.maps) // beside)
            spare = lines - rows * (tall + 1) >= _LEGEND
            scale = _SCALE if room >= _WIDE_SCALE else _SHORT_SCALE
            return [maps._replace(scale=scale) if spare else maps]
    return _texts(report, view, room, lines)


def distinctive(found: HeadsReport) -> list[tuple[int, int]]:
    """Return the heads: those of the finding, labelled ones, then strongest links.

    Chosen or sorted heads keep their order.
    """
    report = found.first
    order = [(entry.layer, entry.head) for entry in report.heads]
    if report.selected or report.sorted_by is not None:
        return order
    named = [each for each in counts(report) if each.what.finding]
    shown = [each for each in named if not math.isnan(each.what.score)]
    shown.sort(key=lambda each: (report.rests(*each.place), each.what.short == "self"))
    linking = [link[:2] for link in strongest_links(report, _MOST_MAPS + 1)]
    lead = [(link.layer, link.head) for link in said_links(found)]
    if report.regions is not None:
        lead = [report.regions.heads[clearest(report.regions)[0]]]
    places = lead, [each.place for each in shown], linking, [each.place for each in named], order
    return [*dict.fromkeys(place for each in places for place in each)]


def _maps(report: HeadsRecord, places: Sequence[tuple[int, int]], view: HeadsView) -> doc.Maps:
    record = report.record
    shown = []
    for place in places:
        what, name = described(report.scores(*place)), report.name(*place)
        words = [(name, True), (scored(what.said, what.score), False)]
        weights = report.weights(*place)
        shown.append(
            doc.Map(name, weights, record.queries, record.keys, words, causal=record.causal)
        )
    return doc.Maps(shown, values=view.values, index_base=report.index_base, scale=None)


def _thumbnails(report: HeadsRecord, room: int, lines: int) -> list[doc.Part]:
    """Return a small map of each head, a row for each layer; empty if they do not fit."""
    record = report.record
    queries, keys = len(record.queries), len(record.keys)
    layers = sorted({entry.layer for entry in report.heads})
    heads = max(sum(entry.layer == layer for entry in report.heads) for layer in layers)
    heading = _overview_title(report)
    rest = lines - _lines(heading, room)
    size = thumbnails_fit(max(queries, keys), len(layers), heads, rest, room)
    if size is None or heads * len(layers) > len(report.heads):
        return []
    maps = []
    places = [(entry.layer, entry.head) for entry in report.heads]
    for place, shown in zip(places, _maps(report, places, HeadsView()).maps, strict=True):
        what = described(report.scores(*place))
        title = f"{shown.name} {scored(what.short, what.score)}"
        maps.append(shown._replace(words=[(title, what.finding)]))
    return [doc.Maps(maps, heading, small=size, across=heads, scale=None)]


def _texts(
    report: HeadsRecord, view: HeadsView, room: int, lines: int, chosen: Word | None = None
) -> list[doc.Part]:
    """Return the text coloured by attention from one word: mean of heads, and clearest head."""
    if lines < _LEAST_TEXT:
        return []
    queries, regions = report.record.queries, report.regions
    if regions is not None and chosen is None and queries.regions:
        best, region, _ = clearest(regions)
        token = visible([*regions.queries][region])
        asking = [at for at, name in enumerate(queries.regions) if visible(name) == token]
    else:
        word = chosen or _last_word(report)
        asking, token = [*word.span], named_word(queries, word)
    weights = attention_from(report, asking)
    weights[:, sink_of(report.record)[1] & (not view.sink)] = np.nan
    if report.record.causal:
        weights[:, asking[-1] + 1 :] = np.nan
    if report.record.kind != "cross" and (regions is None or chosen):
        weights[:, asking] = np.nan
    if np.isnan(weights).all():
        return []
    if regions is None or chosen:
        far = np.nan_to_num(weights)
        far[:, max(asking[0] - 1, 0) : asking[-1] + 2] = 0  # neighbours are always linked
        best = int(far.max(1).argmax())
    names = [report.name(layer, head) for layer, head, _ in report.record]
    mean = np.where(np.isnan(weights).all(0), np.nan, np.nan_to_num(weights).mean(0))
    rows = [(f"mean of {len(names)} heads", mean)] if len(names) > 1 else []
    letters = sum(map(len, report.record.keys.texts))
    if len(names) == 1 or lines > 2 * _LEAST_TEXT + 2 * letters // room:
        rows.append((names[best], weights[best]))
    said = sink_words(report, view.sink)
    title: doc.Words = [(f"attention from {token}", True), *([(said, False)] if said else [])]
    maps = [_text(report, name, values) for name, values in rows]
    taken = len(maps) + 1 + (width(f"attention from {token} · {said}") > room)
    return [
        doc.Maps(maps, title, texts=True, lines=max((lines - taken) // len(maps), 1), scale=None)
    ]


def _text(report: HeadsRecord, name: str, values: NDArray[np.floating]) -> doc.Map:
    """Return a map with one row of weights over the text."""
    full = float(np.nanmax(values, initial=0.0)) or 1.0
    one = Tokens((0,), (name,), (False,))
    words = [(name, True), (f"full colour {share(full)}", False)]
    return doc.Map(name, values[None, :], one, report.record.keys, words, full=full)


def _last_word(report: HeadsRecord) -> Word:
    """Return the last word that is neither special nor punctuation; else the last token."""
    tokens = report.record.queries
    for word in reversed(word_ranges(tokens)):
        text = "".join(tokens.texts[word.start : word.stop])
        if text.strip() and not tokens.special[word.start] and not is_punctuation(text):
            return Word(word)
    return Word(range(len(tokens) - 1, len(tokens)))


# One word, several runs ----------------------------------------------------------------------


def _word(report: HeadsRecord, view: HeadsView, columns: int, lines: int) -> Groups:
    """Return tables of the strongest links from and to the word, then the text it attends to."""
    word = view.words[0]
    tables = [
        links_table(report, links[:_LISTED], f"attention {way}", view.sink, least=3)
        for way, links in zip(("from", "to"), word_links(report, word, view.sink), strict=True)
        if links
    ]
    groups = [_halves(columns, tables[:1], tables[1:])]
    rest = lines - max((len(table.rows) for table in tables), default=0) - 2
    if word[0] is not None:
        groups.append(doc.Group(_texts(report, view, columns, rest, word[0]), yields=1))
    return groups


def _runs(found: HeadsReport, view: HeadsView, lines: int) -> Groups:
    """Return the maps of the heads that differ most between the runs, side by side."""
    moved = [each for each in found.moved if each is not None]

    def distance(place: tuple[int, int]) -> float:
        return max((each.get(place, 0.0) for each in moved), default=0.0)

    places = [(entry.layer, entry.head) for entry in found.first.heads]
    places.sort(key=lambda place: -distance(place))
    tallest = max(len(report.record.queries) for report in found.reports) + 4
    groups = []
    places = places[: max(lines // tallest, 1)]
    for number, place in enumerate(places):
        maps = []
        for index in found.kept_by(*place):
            (shown,) = _maps(found.reports[index], [place], HeadsView()).maps
            maps.append(shown._replace(words=[*shown.words, *_run_words(found, index, place)]))
        drawn = doc.Maps(maps, values=view.values, lines=lines // len(places), scale=None)
        groups.append(doc.Group([drawn], yields=number))
    return groups


def _run_words(found: HeadsReport, index: int, place: tuple[int, int]) -> doc.Words:
    """Return how a run differs from the others, and how much attention the head moved."""
    names = variant_names([report.record for report in found.reports])[1]
    moved = found.moved[index]
    words = [*names[index], *([] if moved is None else [f"moved {share(moved[place])}"])]
    return [(word, False) for word in words]
