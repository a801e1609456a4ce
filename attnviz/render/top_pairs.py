"""The strongest token pairs of each head, a row a head."""

from __future__ import annotations

import numpy as np

from attnviz.records import HeadsReport
from attnviz.render.blocks import BOLD, DIM, Block, Line, text_line
from attnviz.render.facts import share
from attnviz.render.labels import fit, token_labels, width
from attnviz.render.theme import Theme

__all__ = ["strongest_pairs", "top_pairs"]

_LONGEST = 14


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
    """Each kept head's strongest pairs, query → key and weight."""
    queries = token_labels(report.record.queries, theme.encoding)
    keys = token_labels(report.record.keys, theme.encoding)
    arrow = "->" if theme.ascii else "→"
    lines: list[Line] = [
        text_line((f"{count} strongest pairs of each head, query {arrow} key and weight", BOLD))
    ]
    indent = max(len(report.name(entry.layer, entry.head)) for entry in report.heads) + 2
    for entry in report.heads:
        line = text_line((report.name(entry.layer, entry.head).ljust(indent), BOLD))
        used = indent
        for query, key, weight in strongest_pairs(report, entry.layer, entry.head, count):
            names = [
                label if width(label) <= _LONGEST else fit(label, _LONGEST, theme.ellipsis)
                for label in (queries[query], keys[key])
            ]
            pair = f"{names[0]} {arrow} {names[1]} "
            taken = width(pair) + 3
            if used > indent and used + taken > room:
                lines.append(line)
                line, used = text_line(" " * indent), indent
            line += text_line(pair, (share(weight), DIM), "   ")
            used += taken + 3
        lines.append(line)
    return Block(tuple(lines), room)
