"""The strongest token pairs of each head, a row a head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from attnviz.draw.blocks import BOLD, DIM, Block, text_line, without_trailing_blanks
from attnviz.draw.labels import fit, token_labels, width
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import share
from attnviz.draw.theme import Theme
from attnviz.records import HeadsReport

__all__ = ["strongest_pairs", "top_pairs"]

_LONGEST = 14
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


def top_pairs(report: HeadsReport, count: int, theme: Theme, room: int) -> Block:
    """Each kept head's strongest pairs, query → key and weight.

    A token that the text repeats carries its place, or nobody could tell which one is meant.
    """
    heads = [report.name(entry.layer, entry.head) for entry in report.heads]
    indent = max(map(width, heads)) + 2
    narrow = room < indent + _LEAST_PAIR
    indent = 2 if narrow else indent
    arrow = "->" if theme.ascii else "→"
    longest = max(min(_LONGEST, (room - indent - width(f" {arrow}  .00")) // 2), 3)
    axes = [
        token_labels(tokens, theme.encoding)
        for tokens in (report.record.queries, report.record.keys)
    ]
    queries, keys = (_names(labels, longest, theme) for labels in axes)
    title = [(f"{count} strongest pairs of each head, query {arrow} key and weight", True)]
    if any(len(set(labels)) < len(labels) for labels in axes):
        title.append(("#n: place of a token that repeats", False))
    lines = wrapped(title, room, theme)
    for entry, head in zip(report.heads, heads, strict=True):
        line = text_line((head.ljust(indent), BOLD))
        used = indent
        if narrow:
            lines.append(line)
            line = text_line(" " * indent)
        for query, key, weight in strongest_pairs(report, entry.layer, entry.head, count):
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


def _names(labels: Sequence[str], longest: int, theme: Theme) -> list[str]:
    """The labels in at most ``longest`` columns, those that occur twice with their place."""
    counts = Counter(labels)
    names = []
    for place, label in enumerate(labels):
        sign = f"#{place}" if counts[label] > 1 else ""
        room = max(longest - len(sign), 0)
        names.append((label if width(label) <= room else fit(label, room, theme.ellipsis)) + sign)
    return names
