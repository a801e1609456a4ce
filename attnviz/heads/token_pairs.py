"""Weights as lists: one word through all heads, and the strongest token pairs of each head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.axes import Axes
from attnviz.draw.blocks import BOLD, DIM, Block, stack, text_line, without_trailing_blanks
from attnviz.draw.document import Column, Map, Maps, Row, Table, Words
from attnviz.draw.heatmap import heatmap
from attnviz.draw.labels import at_blanks, fit, token_labels, width, word_label
from attnviz.draw.prose import spelled_parts, wrapped
from attnviz.draw.provenance import share
from attnviz.draw.theme import Theme
from attnviz.heads.report import Word
from attnviz.records import HeadsReport, Tokens

# One word ------------------------------------------------------------------------------------

_COLUMN = 5  # a byte such as <ED> and the blank beside it


def looks_at(report: HeadsReport, span: range) -> NDArray[np.floating]:
    """Weights from a word: the mean over its tokens as queries; (head, key) (Clark et al. 2019)."""
    return np.stack([weights[list(span)].mean(0) for _, _, weights in report.record])


def looked_at_by(report: HeadsReport, span: range) -> NDArray[np.floating]:
    """Weights to a word: the sum over its tokens as keys; (head, query) (Clark et al. 2019)."""
    return np.stack([weights[:, list(span)].sum(1) for _, _, weights in report.record])


def token_maps(report: HeadsReport, query: Word | None, key: Word | None, values: bool) -> Maps:
    """Two maps with a row a head: the word as a query, and the word as a key.

    In cross attention a word may be on one axis only; the other map is left out.
    """
    record = report.record
    names = tuple(report.name(layer, head) for layer, head, _ in record)
    heads = Tokens((0,) * len(names), names, (False,) * len(names))
    maps = []
    if query is not None:
        weights = looks_at(report, query.span)
        if record.causal:
            weights[:, query.span.stop :] = np.nan
        title = f"what {_named(record.queries, query)} looks at"
        maps.append(Map(title, weights, heads, record.keys))
    if key is not None:
        weights = looked_at_by(report, key.span)
        if record.causal:
            weights[:, : key.span.start] = np.nan
        title = f"what looks at {_named(record.keys, key)}"
        maps.append(Map(title, weights, heads, record.queries))
    return Maps(
        maps,
        values=values,
        index_base=report.index_base,
        scale=None,
        screen=lambda theme, room: stack([_rows(each, theme, room, values) for each in maps]),
    )


def _named(tokens: Tokens, word: Word) -> str:
    """The word in quotes, its place, and the places that were passed over."""
    text = word_label(tokens.texts[word.span.start : word.span.stop])
    first, last = word.span.start, word.span.stop - 1
    place = f"token {first}" if first == last else f"tokens {first}-{last}"
    if word.elsewhere:
        place += f"; also at {', '.join(map(str, word.elsewhere))}"
    return f"“{text}” ({place})"


def _rows(shown: Map, theme: Theme, room: int, values: bool) -> Block:
    """A row a head, a column a token; where they do not all fit, those with the most weight."""
    names, weights = shown.queries.texts, shown.weights
    labels = token_labels(shown.keys, theme.encoding)
    lines = wrapped([(theme.spell(shown.name), True)], room, theme)
    space = max((room - max(map(width, names)) - 1) // _COLUMN, 1)
    if len(labels) > space:
        seen = np.flatnonzero(~np.isnan(weights).all(0))
        heaviest = np.argsort(-np.nansum(weights[:, seen], 0), kind="stable")[:space]
        chosen = np.sort(seen[heaviest])
        note = f"the {len(chosen)} of {len(labels)} tokens with the most weight, in text order"
        weights, labels = weights[:, chosen], tuple(labels[column] for column in chosen)
        lines += [text_line((line, DIM)) for line in at_blanks(note, room)]
    drawn = heatmap(weights, Axes(names, labels), theme, room, values)
    return Block((*lines, *drawn.lines), room)


# The strongest pairs -------------------------------------------------------------------------

_LONGEST, _LONGEST_IN_FILES = 14, 40
_GAP = 3
_LEAST_PAIR = 16  # a head's name gets a line of its own where less is left


def strongest_pairs(
    report: HeadsReport, layer: int, head: int, count: int
) -> list[tuple[int, int, float]]:
    """The ``count`` largest weights of a head as (query, key, weight), largest first.

    Query 0 of a causal map is left out: it sees itself alone.
    """
    weights = report.weights(layer, head)
    start = 1 if report.record.causal and len(weights) > 1 else 0
    flat = weights[start:].ravel()
    order = np.argsort(-flat, kind="stable")[:count]
    keys = weights.shape[1]
    return [
        (int(place) // keys + start, int(place) % keys, float(flat[place]))
        for place in order
        if flat[place] > 0
    ]


def pairs_table(report: HeadsReport, count: int) -> Table:
    """Each kept head's strongest pairs, query → key and weight.

    A token that the text repeats carries its place, or nobody could tell which one is meant.
    """
    pairs = {
        report.name(entry.layer, entry.head): strongest_pairs(
            report, entry.layer, entry.head, count
        )
        for entry in report.heads
    }
    axes = [token_labels(tokens) for tokens in (report.record.queries, report.record.keys)]
    queries, keys = (_unique(labels, _LONGEST_IN_FILES, "…") for labels in axes)
    most = max(map(len, pairs.values()))
    rows = []
    for name, found in pairs.items():
        cells = [f"{queries[query]} → {keys[key]} {share(weight)}" for query, key, weight in found]
        rows.append(Row([name, *cells, *[""] * (most - len(cells))]))
    title = [(f"{count} strongest pairs of each head, query → key and weight", True)]
    if any(len(set(labels)) < len(labels) for labels in axes):
        title.append(("#n: place of a token that repeats", False))
    columns = [Column(name, right=False) for name in ("head", *[""] * most)]
    return Table(
        columns,
        rows,
        title,
        screen=lambda theme, room: _pairs_block(report, title, pairs, theme, room),
    )


def _pairs_block(
    report: HeadsReport,
    title: Words,
    pairs: Mapping[str, Sequence[tuple[int, int, float]]],
    theme: Theme,
    room: int,
) -> Block:
    """As many pairs in a line as there is room for, behind or below the head's name."""
    indent = max(map(width, pairs)) + 2
    narrow = room < indent + _LEAST_PAIR
    indent = 2 if narrow else indent
    arrow = theme.spell("→")
    longest = max(min(_LONGEST, (room - indent - width(f" {arrow}  .00")) // 2), 3)
    queries, keys = (
        _unique(token_labels(tokens, theme.encoding), longest, theme.ellipsis)
        for tokens in (report.record.queries, report.record.keys)
    )
    lines = wrapped(spelled_parts(title, theme), room, theme)
    for head, found in pairs.items():
        line = text_line((head.ljust(indent), BOLD))
        used = indent
        if narrow:
            lines.append(line)
            line = text_line(" " * indent)
        for query, key, weight in found:
            pair = f"{queries[query]} {arrow} {keys[key]} "
            taken = width(pair) + width(share(weight))
            if used > indent and used + _GAP + taken > room:
                lines.append(line)
                line, used = text_line(" " * indent), indent
            gap = _GAP if used > indent else 0
            line += text_line(" " * gap + pair, (share(weight), DIM))
            used += gap + taken
        lines.append(without_trailing_blanks(line))
    return Block(tuple(lines), room)


def _unique(labels: Sequence[str], longest: int, ellipsis: str) -> list[str]:
    """The labels in at most ``longest`` columns, those that occur twice with their place."""
    counts = Counter(labels)
    names = []
    for place, label in enumerate(labels):
        sign = f"#{place}" if counts[label] > 1 else ""
        room = max(longest - len(sign), 0)
        names.append((label if width(label) <= room else fit(label, room, ellipsis)) + sign)
    return names
