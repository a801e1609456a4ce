"""The most distinctive heads, drawn: maps, arcs, or a long text in colour."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.arcs import arcs_lines, text_columns
from attnviz.draw.labels import token_labels, visible, width
from attnviz.draw.provenance import share
from attnviz.draw.regions import clearest
from attnviz.inspect.heads.links import attention_from
from attnviz.inspect.heads.listed import above_usual, head_arcs, named_word, sink_words, titled
from attnviz.inspect.heads.report import HeadsReport
from attnviz.inspect.heads.sentences import counts, said_links, scored
from attnviz.measures.rows import is_punctuation
from attnviz.measures.sinks import sink_of
from attnviz.measures.words import Word, word_ranges
from attnviz.records import HeadsRecord, Tokens

LEAST_TEXT, LEAST_MAP = 4, 40
"""The least lines of a text in colour, and columns of a map."""

_SHORT_TEXT = 40
"""The longest text, in tokens, that is shown as maps; a longer one is shown as coloured text."""

_MOST_MAPS, _LEGEND = 6, 2
_WIDE_TITLE = 28
"""The columns of the title of a map, ``L0H0 · previous token .85`` and a gap."""

_WIDE_SCALE = 62
_SCALE = doc.WEIGHTS._replace(after="colour: √weight")
_SHORT_SCALE = doc.Scale([(0.0, "0"), (0.5, ".25"), (1.0, "1")], after="√weight")
_LONGEST_LABEL, _BETWEEN = 12, 3
_ARCS_ROOM = 200
"""The longest text, in columns, over which a page draws arcs."""

_HEADED = 6
"""The columns of a cell below its token, where tokens do not stand on the diagonal."""


def examples(report: HeadsReport, room: int, lines: int, *, values: bool = False) -> list[doc.Part]:
    """Return maps of the most distinctive heads that fit; for a long text the coloured text.

    room, lines: the available width in characters and lines. values: writes the weights into the
    cells, also if nobody asked for them.
    """
    values |= report.view.values
    run, record = report.first, report.first.record
    queries, keys = len(record.queries), len(record.keys)
    places = distinctive(report)
    if max(queries, keys) <= _SHORT_TEXT and places:
        labels = min(max(map(width, token_labels(record.keys))), _LONGEST_LABEL) + 1
        labels += 2 * bool(record.keys.regions)  # their bands
        cell = 4 if values and 4 * keys + labels <= room else 2
        least = cell * keys + labels
        wide = least if record.causal else labels + keys * min(labels, _HEADED)
        tall = queries + (1 if record.causal else 2) + bool(record.keys.regions)
        beside = max((room + _BETWEEN) // (wide + _BETWEEN), 1)
        tall += room // beside < _WIDE_TITLE  # the title takes two lines
        down = min((lines + 1) // (tall + 1), max(_MOST_MAPS // beside, 1))
        if down and least <= room:
            maps = labelled_maps(run, places[: beside * down], values)._replace(lines=lines)
            rows = -(-len(maps.maps) // beside)
            spare = lines - rows * (tall + 1) >= _LEGEND
            scale = _SCALE if room >= _WIDE_SCALE else _SHORT_SCALE
            return [maps._replace(scale=scale) if spare else maps]
    return text_maps(run, report.view.sink, room, lines)


def distinctive(report: HeadsReport) -> list[tuple[int, int]]:
    """Return the (layer, head) of all heads, the most distinctive first.

    First come the heads that ``finding`` names, then the best one of each label, then those with
    links above their usual weight, then all others. Heads that the user chose or sorted keep their
    order.
    """
    run = report.first
    order = [*run.places]
    if run.selected or run.sorted_by is not None:
        return order
    labelled = [count for count in counts(run) if count.what.is_finding]
    clear = [count for count in labelled if not math.isnan(count.what.score)]
    clear.sort(key=lambda count: (run.rests(*count.place), count.what.short == "self"))
    linking = [(link.layer, link.head) for link in above_usual(report.agreed_links)]
    lead = [(said.link.layer, said.link.head) for said in said_links(report)]
    if run.regions is not None:
        lead = [run.regions.heads[clearest(run.regions)[0]]]
    lead += [*(count.place for count in clear), *linking, *(count.place for count in labelled)]
    return [*dict.fromkeys([*lead, *order])]


def labelled_maps(
    run: HeadsRecord, places: Sequence[tuple[int, int]], values: bool = False
) -> doc.Maps:
    def shown(place: tuple[int, int]) -> doc.Map:
        label, name, record = run.scores(*place).label, run.name(*place), run.record
        words = [(name, True), (scored(label.said, label.score), False)]
        weights = run.weights(*place)
        return doc.Map(name, weights, record.queries, record.keys, words, causal=record.causal)

    return doc.Maps([*map(shown, places)], values=values, scale=None)


def text_maps(
    run: HeadsRecord, sink: bool, room: int, lines: int, chosen: Word | None = None
) -> list[doc.Part]:
    """Return the text coloured by attention from one word: mean of all heads, and clearest head.

    sink: whether the attention sink is shown. room, lines: the available width in characters and
        lines. chosen: the word; None for the last one.
    """
    if lines < LEAST_TEXT:
        return []
    queries, regions = run.record.queries, run.regions
    if regions is not None and chosen is None and queries.regions:
        best, region, _ = clearest(regions)
        token = visible([*regions.queries][region])
        asking = [at for at, name in enumerate(queries.regions) if visible(name) == token]
    else:
        word = chosen or _last_word(run)
        asking, token = [*word.span], named_word(queries, word)
    weights = attention_from(run, asking)
    weights[:, sink_of(run.record)[1] & (not sink)] = np.nan
    if run.record.causal:
        weights[:, asking[-1] + 1 :] = np.nan
    if run.record.kind != "cross" and (regions is None or chosen):
        weights[:, asking] = np.nan
    if np.isnan(weights).all():
        return []
    if regions is None or chosen:
        far = np.nan_to_num(weights)
        far[:, max(asking[0] - 1, 0) : asking[-1] + 2] = 0  # neighbours are always linked
        best = int(far.max(1).argmax())
    names = [run.name(layer, head) for layer, head, _ in run.record]
    mean = np.where(np.isnan(weights).all(0), np.nan, np.nan_to_num(weights).mean(0))
    rows = [(f"mean of {len(names)} heads", mean)] if len(names) > 1 else []
    letters = sum(map(len, run.record.keys.texts))
    if len(names) == 1 or lines > 2 * LEAST_TEXT + 2 * letters // room:
        rows.append((names[best], weights[best]))
    title = f"attention from {token}"
    maps = [_text(run, name, values) for name, values in rows]
    taken = len(maps) + 1 + (width(f"{title} · {sink_words(run, sink)}") > room)
    most = max((lines - taken) // len(maps), 1)
    return [doc.Maps(maps, titled(title, run, sink), texts=True, lines=most, scale=None)]


def _text(run: HeadsRecord, name: str, values: NDArray[np.floating]) -> doc.Map:
    """Return a map of one query, to be drawn as the text coloured by attention weights."""
    full = float(np.nanmax(values, initial=0.0)) or 1.0
    one = Tokens((0,), (name,), (False,))
    words = [(name, True), (f"full colour {share(full)}", False)]
    return doc.Map(name, values[None, :], one, run.record.keys, words, full=full)


def _last_word(run: HeadsRecord) -> Word:
    """Return the last word that is neither special nor punctuation; else the last token."""
    tokens = run.record.queries
    for word in reversed(word_ranges(tokens)):
        text = "".join(tokens.texts[word.start : word.stop])
        if text.strip() and not tokens.special[word.start] and not is_punctuation(text):
            return Word(word)
    return Word(range(len(tokens) - 1, len(tokens)))


def examples_with_arcs(report: HeadsReport, room: int, lines: int) -> list[doc.Part]:
    """Return maps of heads as ``examples`` does, and the first head's arcs below if they fit.

    room, lines: the available width in characters and lines.
    """
    arcs = first_arcs(report, room)
    rest = lines - 1 - arcs_lines(arcs[0]) if arcs else 0
    fewer = examples(report, room, rest) if rest > 0 else []
    if fewer and not any(part.texts for part in fewer if isinstance(part, doc.Maps)):
        return [*fewer, *arcs]
    return examples(report, room, lines)


def drawn_alike(some: Sequence[doc.Part], others: Sequence[doc.Part]) -> bool:
    """Return whether both lists of parts show maps, or both show coloured texts."""
    texts = {part.texts for part in (*some, *others) if isinstance(part, doc.Maps)}
    return len(texts) == 1


def first_arcs(report: HeadsReport, room: int = _ARCS_ROOM) -> list[doc.Arcs]:
    """Return the arcs of the most distinctive head if the text fits into a line of ``room``."""
    if text_columns(report.first.record.keys) > room:
        return []
    arcs = head_arcs(report.first, *distinctive(report)[0], report.view.sink)
    return [arcs] if arcs is not None and arcs.arcs else []
