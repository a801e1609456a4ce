"""The first screen of ``attnviz heads``, fitted to the lines and columns of the terminal.

The overview, the most distinctive heads and lists stand in two columns of one width, or in three on
a wide terminal; if the heads of a layer need more than a column, the overview stands above.
``columns`` or ``room``, and ``lines``, are the free width and height in characters and lines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.arcs import arcs_lines, text_columns
from attnviz.draw.labels import token_labels, visible, width, word_label
from attnviz.draw.maps import thumbnails_fit
from attnviz.draw.palette import STEPS, Tint, shades
from attnviz.draw.provenance import label_source, p_value, share
from attnviz.draw.regions import clearest, region_group
from attnviz.inspect.heads.links import (
    A_HEAD,
    LONGEST,
    attention_from,
    head_arcs,
    link_names,
    links_table,
    named_word,
    pair_table,
    pairs_table,
    strongest_links,
    strongest_words,
    titled,
    word_tables,
)
from attnviz.inspect.heads.report import HeadsReport
from attnviz.inspect.heads.sentences import (
    LabelCount,
    counts,
    overview_words,
    run_names,
    score_words,
    scored,
)
from attnviz.measures.registry import label_named, said_name
from attnviz.measures.rows import is_punctuation
from attnviz.measures.sinks import sink_of
from attnviz.measures.telling import told
from attnviz.measures.word_links import FEWEST_HEADS, NO_MORE, WordLink, WordLinks
from attnviz.measures.words import Word, word_ranges, word_text
from attnviz.records import HeadScores, HeadsRecord, Tokens

_GAP = 2
_LEAST_BESIDE, _WIDE = 72, 160
"""The columns from which two parts stand next to each other, and three."""

_INDENT, _CELL, _FULL_CELL = 3, 5, 10
_LEAST_LINKS, _MOST_LINKS = 5, 30
_LISTED, _LEAST_TEXT = 10, 4  # the most links of a word, and the least lines of a text in colour
_LABEL, _LISTING = 8, 5
"""The columns by which lines of a text are shorter, and the lines of its largest weights."""

_SHORT_TEXT = 40
"""The longest text, in tokens, that is shown as maps; a longer one is shown as coloured text."""

_MOST_MAPS, _LEGEND = 6, 2
_WIDE_TITLE = 28  # the columns of the title of a map, ``L0H0 · previous token .85`` and a gap
_FRAMED, _STRIP, _NARROW_STRIP, _IN_FULL = 108, 32, 13, 2
"""The columns from which on small maps stand beside large ones, of them and of each of them.

The last is how many heads have a large map there.
"""

_WIDE_SCALE = 62
_SCALE = doc.WEIGHTS._replace(after="colour: √weight")
_SHORT_SCALE = doc.Scale([(0.0, "0"), (0.5, ".25"), (1.0, "1")], after="√weight")
_LONGEST_LABEL, _BETWEEN = 12, 3
_ARCS_ROOM = 200  # the longest text, in columns, over which a page draws arcs
_HEADED = 6  # the columns of a cell below its token, where tokens do not stand on the diagonal
_NARROW_SCALE = 28  # the columns of the legend of a narrow map
_MEANINGS = {"peak": "peaked (few tokens)", "diff": "diffuse (many tokens)"}
"""What a head without label attends to, by the short word in its cell."""

Groups = list[doc.Group]


def first_groups(report: HeadsReport, columns: int, lines: int) -> Groups:
    """Return the parts that a terminal shows below the finding, fitted to its size."""
    run, view = report.first, report.view
    if view.pairs:
        table, most = pair_table(run, view.pairs[0], least=3), min(_LISTED, lines - 5)
        hidden = max(len(table.rows) - most, 0)
        return [doc.Group([table._replace(rows=table.rows[:most], hidden=hidden)])]
    if view.words:
        word = view.words[0]
        tables = word_tables(run, word, view.sink, "attention {}", _LISTED)
        groups = [_columns(columns, tables[:1], tables[1:])]
        rest = lines - max((len(table.rows) for table in tables), default=0) - 2
        if word[0] is not None:
            texts = text_maps(run, view.sink, columns, rest, word[0])
            groups.append(doc.Group(texts, yields=1))
        return groups
    if view.top is not None:
        return [doc.Group([pairs_table(run, view.top, view.sink)]) for run in report.reports]
    if len(report.reports) > 1:
        return _runs(report, lines)
    if run.regions is not None:
        shares = region_group(run.regions, lambda head: run.name(*head), columns, lines // 3)
        notes = [doc.Note(note) for note in run.record.model.notes]  # how two texts were joined
        above = [doc.Group(notes), shares] if notes else [shares]
        tall = 3 + max(len(part.rows) for part in shares.parts if isinstance(part, doc.Table))
        tall += sum(1 + _lines([(note.text, False)], columns) for note in notes)
        return [*above, *_overview(report, columns, lines - tall)]
    return _overview(report, columns, lines)


def _columns(columns: int, *parts: Sequence[doc.Part], wanted: int = 0) -> doc.Group:
    """Return the parts in columns of one width, or below each other if that is too narrow.

    wanted: the width of the first of two, which may exceed half if a causal map beside it needs
        less.
    """
    if columns < _LEAST_BESIDE:
        return doc.Group([part for column in parts for part in column], spaced=True)
    members = [doc.Group(column, spaced=True) for column in parts]
    room, second = _room(columns, len(parts)), parts[-1]
    if wanted > room and len(second) == 1 and isinstance(second[0], doc.Maps):
        first, *more = second[0].maps
        ends = (2 * at + width(label) + 3 for at, label in enumerate(token_labels(first.keys)))
        if first.causal and not more and wanted <= columns - _GAP - max(_NARROW_SCALE, *ends):
            return doc.Group(members, beside=doc.Beside(wanted, _GAP, yields=True))
    return doc.Group(members, beside=doc.Beside(room, _GAP, len(parts)))


def _room(columns: int, count: int) -> int:
    return (columns - _GAP * (count - 1)) // count if columns >= _LEAST_BESIDE else columns


def examples(report: HeadsReport, room: int, lines: int, *, values: bool = False) -> list[doc.Part]:
    """Return maps of the most distinctive heads that fit; for a long text the coloured text."""
    values |= report.view.values
    run, record, heads = report.first, report.first.record, distinctive(report)
    queries, keys, banded = len(record.queries), len(record.keys), bool(record.keys.regions)
    if max(queries, keys) <= _SHORT_TEXT and heads:
        widths = [*map(width, token_labels(record.keys))]
        labels = min(max(widths), _LONGEST_LABEL) + 1 + 2 * banded
        cell = 4 if values and 4 * keys + labels <= room else 2
        wide = labels + keys * min(labels, _HEADED)
        if record.causal:  # each label stands at the end of its row
            ends = enumerate((min(label, _LONGEST_LABEL) for label in widths), start=1)
            wide = max(cell * at + 1 + label for at, label in ends) + 2 * banded
        tall = queries + (1 if record.causal else 2) + banded
        beside = max((room + _BETWEEN) // (wide + _BETWEEN), 1)
        tall += room // beside < _WIDE_TITLE  # the title takes two lines
        down = min((lines + 1) // (tall + 1), max(_MOST_MAPS // beside, 1))
        if down and cell * keys + labels <= room:
            maps = [head_map(run, head) for head in heads[: beside * down]]
            spare = lines - -(-len(maps) // beside) * (tall + 1) >= _LEGEND
            scale = _SCALE if room >= _WIDE_SCALE else _SHORT_SCALE
            return [doc.Maps(maps, values=values, lines=lines, scale=scale if spare else None)]
    return _told_text(report, room, lines)


def _maps_and_text(report: HeadsReport, room: int, lines: int) -> list[doc.Part]:
    """Return what ``examples`` does, and if lines are left below maps, the text that is told."""
    parts = examples(report, room, lines)
    shown = [part for part in parts if isinstance(part, doc.Maps) and not part.texts]
    beside = room // max(2 * len(report.first.record.keys) + _LONGEST_LABEL, 1) or 1
    down = sum(-(-len(part.maps) // beside) for part in shown)
    spare = lines - down * (len(report.first.record.queries) + 3) - _LEGEND - 2
    more = shown and spare > _LEAST_TEXT
    return [*parts, *(_told_text(report, room, spare) if more else [])]


def _told_text(report: HeadsReport, room: int, lines: int) -> list[doc.Part]:
    """Return ``text_maps`` of the word and the head that the finding names, if there are any."""
    run, sink, tellings = report.first, report.view.sink, report.told
    pair = None
    if len(run.heads) == 1 and len(report.reports) == 1:  # a chosen head, as its card tells of it
        tellings = told(run.record, None, {run.heads[0].place: run.heads[0].label})
        pair = strongest_words(run) if run.regions is None else None
    if not tellings or run.regions is not None:
        return text_maps(run, sink, room, lines, None if pair is None else Word(pair[0]))
    link, query = tellings[0].link, tellings[0].link.query
    if tellings[0].why in ("induction", "label", "asked"):
        weights = run.weights(link.layer, link.head)[np.ix_(query, link.key)]
        query = query[int(weights.max(1).argmax()) :][:1]
    return text_maps(run, sink, room, lines, Word(query), run.places.index((link.layer, link.head)))


def distinctive(report: HeadsReport) -> list[tuple[int, int]]:
    """Return the (layer, head) of all heads, the most distinctive first.

    First come the heads that ``finding`` names, then the best one of each label, then those with
    links above their control, then all others. Heads that the user chose or sorted keep their
    order.
    """
    run = report.first
    if run.selected or run.sorted_by is not None:
        return [*run.places]
    labelled = [count for count in counts(run) if count.label.is_finding]
    clear = [count for count in labelled if not math.isnan(count.label.score)]
    clear.sort(key=lambda count: (run.rests(*count.best), count.label.short == "self"))
    links = [telling.link for telling in report.told], above_usual(report.agreed_links)
    lead, linking = ([(link.layer, link.head) for link in some] for some in links)
    if run.regions is not None:
        lead = [run.regions.heads[clearest(run.regions)[0]]]
    best = [count.best for count in clear], [count.best for count in labelled]
    return [*dict.fromkeys(chain(lead, best[0], linking, best[1], run.places))]


def head_map(run: HeadsRecord, head: tuple[int, int], words: doc.Words = ()) -> doc.Map:
    """Return the map of a head (layer, head); by default its name and label are the title."""
    label, name, record = run.scores(*head).label, run.name(*head), run.record
    words = words or [(name, True), (scored(label.said, label.score), False)]
    axes = record.queries, record.keys
    return doc.Map(name, run.weights(*head), *axes, words, causal=record.causal)


def text_maps(
    run: HeadsRecord,
    sink: bool,
    room: int,
    lines: int,
    chosen: Word | None = None,
    best: int | None = None,
) -> list[doc.Part]:
    """Return the text coloured by attention from one word: mean of all heads, and one head.

    chosen: the word; by default the clearest region, or the last word. best: the index of the head;
        by default the clearest one.
    """
    if lines < _LEAST_TEXT:
        return []
    queries, given = run.record.queries, best
    if run.regions is not None and chosen is None and queries.regions:
        best, region, _ = clearest(run.regions)
        token = visible([*run.regions.queries][region])
        asking = [at for at, name in enumerate(queries.regions) if visible(name) == token]
    else:
        ranges = [word for word in word_ranges(queries) if not queries.special[word.start]]
        texts = [(word, word_text(queries, word)) for word in reversed(ranges)]
        plain = (word for word, text in texts if text.strip() and not is_punctuation(text))
        word = chosen or Word(next(plain, range(len(queries) - 1, len(queries))))
        asking, token = [*word.span], named_word(queries, word)
        around = [whole for whole in ranges if asking[0] in whole and len(whole) > 1]
        if len(asking) == 1 and around:
            whole = named_word(queries, Word(around[0]))
            token = f"“{word_label([queries.texts[asking[0]]])}” in {whole}"
    weights = attention_from(run, asking)
    weights[:, sink_of(run.record)[1] & (not sink)] = np.nan
    if run.record.causal:
        weights[:, asking[-1] + 1 :] = np.nan
    if run.record.kind != "cross" and (run.regions is None or chosen):
        weights[:, asking] = np.nan
    if np.isnan(weights).all():
        return []
    far = np.nan_to_num(weights)
    far[:, max(asking[0] - 1, 0) : asking[-1] + 2] = 0  # neighbours are always linked
    others = np.argsort(-far.max(1), kind="stable").tolist()
    best = others[0] if best is None else best
    names = [run.name(layer, head) for layer, head, _ in run.record]
    mean = np.where(np.isnan(weights).all(0), np.nan, np.nan_to_num(weights).mean(0))
    rows = [(f"mean of {len(names)} heads", mean)] if len(names) > 1 else []
    letters = sum(map(len, run.record.keys.texts))
    if len(names) == 1 or lines > 2 * _LEAST_TEXT + 2 * letters // room:
        rows.append((names[best], weights[best]))
    rows = [(names[given], weights[given]), *rows[:-1]] if given is not None else rows
    most = lines // (letters // max(room - _INDENT - _LABEL, 1) + _LISTING + 1)
    bare = lines // (letters // max(room - _INDENT, 1) + 3)
    more = max(most, min(bare, 3)) - len(rows) if len(rows) > 1 else 0
    rows += [(names[at], weights[at]) for at in others if at != best][: max(more, 0)]
    maps = []
    for name, row in rows:
        full = float(np.nanmax(row, initial=0.0)) or 1.0
        words = [(name, True), (f"max {share(full)}", False)]
        asked = Tokens((0,), (name,), (False,))
        maps.append(doc.Map(name, row[None, :], asked, run.record.keys, words, full=full))
    title = titled(f"attention from {token}", run, sink)
    most = max((lines - len(maps) - _lines(title, room)) // len(maps), 1)
    if letters // max(room - _INDENT - _LABEL, 1) + _LISTING <= most:
        most = 0  # all of the text, and its largest weights in words
    return [doc.Maps(maps, title, texts=True, lines=most, scale=None)]


def first_arcs(report: HeadsReport, room: int = _ARCS_ROOM) -> list[doc.Arcs]:
    """Return arcs of the most distinctive head, or [] if the text is wider than ``room``."""
    if text_columns(report.first.record.keys) > room:
        return []
    arcs = head_arcs(report.first, *distinctive(report)[0], report.view.sink)
    return [arcs] if arcs is not None and arcs.arcs else []


def _maps_and_arcs(
    report: HeadsReport, room: int, lines: int, arcs_room: int, *, values: bool = False
) -> tuple[list[doc.Part], list[doc.Arcs]]:
    """Return what ``examples`` does, and the first head's arcs if they fit above or below maps."""
    for arcs in first_arcs(report, arcs_room):
        rest = lines - 1 - arcs_lines(arcs)
        fewer = examples(report, room, rest, values=values) if rest > 0 else []
        if any(isinstance(part, doc.Maps) and not part.texts for part in fewer):
            return fewer, [arcs]
    return examples(report, room, lines, values=values), []


def _overview(report: HeadsReport, columns: int, lines: int) -> Groups:
    run, half = report.first, _room(columns, 2)
    if run.sorted_by is not None:
        ranking = _ranking(run, run.sorted_by, max(lines - 2, 3))
        return [_columns(columns, [ranking], examples(report, half, lines))]
    if run.selected and report.view.values:  # values need the whole width
        maps = examples(report, columns, lines)
        return [doc.Group(maps), doc.Group(_links(report, _LEAST_LINKS), yields=1)]
    if run.selected:
        alone = len(run.heads) == 1
        values, across = alone and columns >= _WIDE, columns * alone
        maps, arcs = _maps_and_arcs(report, half, lines, across, values=values)
        links = _links(report, lines - sum(map(arcs_lines, arcs)) - len(arcs))
        chosen = _columns(columns, maps, links) if maps else doc.Group(links)
        return [doc.Group(arcs), chosen] if arcs else [chosen]
    across = len({entry.head for entry in run.heads})
    if columns >= _WIDE:
        third = _room(columns, 3)
        small = _thumbnails(run, third, lines, brief=True)
        if small or _INDENT + across * _FULL_CELL <= third:
            grid = _grid(run, third, lines)
            maps, arcs = _maps_and_arcs(report, third, lines, third)
            drawn = [part for part in maps if isinstance(part, doc.Maps)]
            notes = [doc.Note(words) for words in overview_words(run)[1:]] if small else []
            lists, spare = [*notes, *_lists(report, lines)], lines - len(grid.rows) - 8
            coloured = any(part.texts for part in drawn)
            many = 0 if coloured else sum(len(part.maps) for part in drawn)
            strip = None if small else _strip(report, spare, third, many)
            tall = sum(len(part.rows) + 5 for part in lists if isinstance(part, doc.Table))
            room = spare + 3 if strip is None else lines - tall
            texts = [] if small or coloured else _told_text(report, third, room)
            left = [small or grid, *(texts if strip is None else [strip])]
            if coloured and strip is None and not small and len(lists) > 1:
                left.append(lists.pop(0))
            lists += texts if strip is not None else []
            return [_columns(columns, left, [*maps, *arcs], lists)]
    grid = _grid(run, half, lines)
    rest = lines - len(grid.rows) - 2 - _lines(grid.title, half) - 2 * bool(grid.key)
    if rest < 0:  # if there are more layers than lines
        return [_columns(columns, _lists(report, lines), examples(report, half, lines))]
    if columns < _LEAST_BESIDE:
        return [doc.Group([grid]), doc.Group(_lists(report, rest), yields=1)]
    if _INDENT + across * _CELL > half:
        below = _columns(columns, _lists(report, rest), examples(report, half, rest))
        return [doc.Group([grid]), below._replace(yields=1)]
    whole = _INDENT + across * _FULL_CELL
    if columns >= _FRAMED and (strip := _strip(report, lines)) is not None:
        large = _maps_and_text(report, columns - _STRIP - whole, lines)
        if any(isinstance(part, doc.Maps) and not part.texts for part in large):
            return [doc.beside([grid, *_lists(report, rest)], [*large], strip)]
    right = _maps_and_text(report, half, lines)
    if small := _thumbnails(run, half, lines):
        return [_columns(columns, [small], [*right, *_lists(report, _MOST_LINKS)])]
    few = run.regions is not None and rest < _LEAST_LINKS
    return [_columns(columns, [grid, *([] if few else _lists(report, rest))], right, wanted=whole)]


def _short_titled(run: HeadsRecord, heads: Sequence[tuple[int, int]]) -> list[doc.Map]:
    """Return the map of each head below its name, and its label in a short word."""
    maps = []
    for head in heads:
        label = run.scores(*head).label
        title = f"{run.name(*head)} {scored(label.short, label.score)}"
        maps.append(head_map(run, head, [(title, label.is_finding)]))
    return maps


def _strip(
    report: HeadsReport, lines: int, room: int = _STRIP, large: int = _IN_FULL
) -> doc.Maps | None:
    """Return small maps of the next most distinctive heads that fit; None if not even one does."""
    run = report.first
    tokens = max(len(run.record.queries), len(run.record.keys))
    size = (tokens + 1) // 2, max(tokens, _NARROW_STRIP)
    across, down = (room - _GAP) // (size[1] + _GAP), lines // (size[0] + 2)
    if not across or not down or tokens > _SHORT_TEXT:
        return None
    heads = distinctive(report)[large : large + across * down]
    title = [("further heads" if large else "clearest heads", True)]
    return doc.Maps(_short_titled(run, heads), title, small=size, scale=None) if heads else None


def _thumbnails(run: HeadsRecord, room: int, lines: int, brief: bool = False) -> doc.Maps | None:
    """Return a small map of each head, a row for each layer; None if they do not fit."""
    layers = [entry.layer for entry in run.heads]
    across, down = max(map(layers.count, layers)), len({*layers})
    heading = _overview_title(run, shaded=False)[: 2 if brief else None]
    tokens, rest = max(len(run.record.queries), len(run.record.keys)), lines - _lines(heading, room)
    size = thumbnails_fit(tokens, down, across, rest, room)
    if size is None or across * down > len(run.heads):
        return None
    maps = _short_titled(run, run.places)
    return doc.Maps(maps, heading, small=size, across=across, scale=None)


def label_grid(run: HeadsRecord) -> doc.HeadGrid:
    """Return a grid of each head's label and score; labels that only describe the text are grey."""
    grid = doc.head_grid({entry.place: _cell(run, entry) for entry in run.heads}, run.index_base)
    return grid._replace(rows=[""]) if run.record.model.is_one_layer else grid


def _grid(run: HeadsRecord, room: int, lines: int) -> doc.HeadGrid:
    """Return the grid of labels with a title and a legend: sinks, sources of labels, colours."""
    grid = label_grid(run)._replace(title=_overview_title(run, shaded=True))
    shorts = {entry.label.short for entry in run.heads}
    key = [doc.Key(None, said, f"{short}:") for short, said in _MEANINGS.items() if short in shorts]
    taken = len(grid.rows) + _lines(grid.title, room) + 4 + _LEAST_LINKS
    return grid._replace(key=key) if taken <= lines else grid


def _overview_title(run: HeadsRecord, shaded: bool) -> doc.Words:
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
    run = report.first

    def named(count: LabelCount) -> str:
        label = count.label
        short = f" ({label.short})" if label.short != label.said else ""
        return f"{'' if label.is_finding else 'unlabelled: '}{label.said}{short}"

    def best(count: LabelCount) -> str:
        score = count.label.score
        return "" if math.isnan(score) else scored(run.name(*count.best), score)

    labels = doc.table(
        counts(run),
        doc.ColumnOf("", named, right=False),
        doc.ColumnOf("heads", lambda count: str(count.heads)),
        doc.ColumnOf("best", best, right=False, keep=1),
        row=lambda count: {"tone": "plain" if count.label.is_finding else "faint"},
        least=2,
    )
    room = lines - len(labels.rows) - 2
    if room < _LEAST_LINKS:  # the finding gives the counts too
        return _links(report, lines)
    return [labels, *_links(report, room)]


def _links(report: HeadsReport, lines: int) -> list[doc.Part]:
    run = report.first
    repeats = any(entry.scores.get("induction") is not None for entry in run.heads)
    testable = repeats or not run.record.causal
    note = "" if testable else "induction: not testable (no repeats)"
    table = links_of(report, min(max(lines - 2 - bool(note), 2), _MOST_LINKS))
    if table is None:
        return [doc.Note(note)] if note else []
    return [table._replace(more=note)]


def above_usual(links: WordLinks | None) -> list[WordLink]:
    """Return the links whose weight exceeds their head's mean there by more than rounding."""
    return [link for link in (links.links if links else ()) if link.weight - link.habit >= NO_MORE]


def _agreed_table(report: HeadsReport, links: Sequence[WordLink], heads: int) -> doc.Table:
    """Return a table of links between words, each with the head that stands out most for it."""
    run, tested = report.first, heads >= FEWEST_HEADS
    queries, keys = link_names(run.record, LONGEST)
    order = "furthest above control first"
    if tested:
        order = "by p" + ", none significant" * (not any(link.beats_chance for link in links))

    agree = [
        doc.ColumnOf[WordLink]("p", lambda link: p_value(link.chance)),
        doc.ColumnOf[WordLink]("heads", lambda link: str(link.heads), keep=5),
    ]
    return doc.table(
        links,
        doc.ColumnOf(
            "", lambda link: f"{queries[link.query.start]} → {keys[link.key.start]}", right=False
        ),
        doc.ColumnOf("top head", lambda link: run.name(*link[2:4]), right=False, tone="strong"),
        doc.ColumnOf("weight", lambda link: share(link.weight)),
        doc.ColumnOf("control", lambda link: share(link.habit), keep=4),
        *agree[: 2 * tested],
        row=lambda link: {"tone": "faint" if tested and not link.beats_chance else "plain"},
        title=[("links", True), (order, False), *[("norm-weighted", False)] * run.norm_weighted],
        least=1,
    )


def links_of(report: HeadsReport, count: int) -> doc.Table | None:
    """Return a table of the links between words that are least likely by chance, or None.

    If the text is too long to test, those furthest above the head's control are listed; of chosen
    heads, and with the sink, the strongest. None means that no link of the chosen heads is above
    its control, or that the weights are random, so that no link means anything.
    """
    run, agreed, sink = report.first, report.agreed_links, report.view.sink
    if run.record.model.weights == "random" and not (sink or run.selected):
        return None
    above = [] if sink else above_usual(agreed)[:count]
    if agreed is not None and above:
        return _agreed_table(report, above, agreed.heads)
    if agreed is not None and not (sink or run.selected):
        return None
    of_each = max(-(-count // len(run.heads)), A_HEAD)
    unusual = agreed is None and not sink and not run.selected
    links = strongest_links(run, count, sink, of_each, unusual=unusual)
    title = "links furthest above control" if unusual else "strongest links"
    return links_table(run, links, title, sink) if links else None


def _ranking(run: HeadsRecord, measure: str, most: int) -> doc.Table:
    known = [abs(value) for entry in run.heads if (value := entry.scores[measure]) is not None]
    top = max(known, default=0.0) or 1.0

    def number(entry: HeadScores) -> str:
        value = entry.scores[measure]
        return "–" if value is None else f"{value:.2f}"

    def bar(entry: HeadScores) -> dict[str, tuple[float, float]]:
        value = entry.scores[measure]
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


def _runs(report: HeadsReport, lines: int) -> Groups:
    first, names = report.first, run_names(report)[1]

    def distance(head: tuple[int, int]) -> float:
        return max((moved.get(head, 0.0) for moved in report.moved if moved), default=0.0)

    heads = [*dict.fromkeys([*(first.notable if report.of_texts else ()), *first.places])]
    heads.sort(key=distance, reverse=True)
    tallest = max(len(run.record.queries) for run in report.reports) + 4
    groups, heads = [], heads[: max(lines // tallest, 1)]
    for number, head in enumerate(heads):
        maps = []
        for index in report.kept_by(*head):
            shown, moved = head_map(report.reports[index], head), report.moved[index]
            words = [*names[index], *([] if moved is None else [f"moved {share(moved[head])}"])]
            maps.append(shown._replace(words=[*shown.words, *((word, False) for word in words)]))
        drawn = doc.Maps(maps, values=report.view.values, lines=lines // len(heads), scale=None)
        groups.append(doc.Group([drawn], yields=number))
    return groups
