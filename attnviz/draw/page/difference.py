"""The difference of two captures of a page, as one more capture of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from attnviz.draw.page.data import MAPS_ALONE, Look, PageCapture, PageMeasure
from attnviz.draw.scale import signed_limit

LARGEST_CHANGE = PageMeasure("largest_change", "largest change")
"""What orders the heads of a difference: the largest change of an attention weight, in [0, 1]."""

_LOOK = 4


def largest_changes(captures: Sequence[PageCapture]) -> Iterator[Look]:
    """Yield the largest difference of each of the heads that differ most.

    captures: those of ``with_difference``; nothing is yielded if they have no difference.
    """
    for capture in captures[2:]:
        sizes = [float(np.nanmax(np.abs(map_), initial=0.0)) for map_ in capture.weights]
        order = sorted(range(len(sizes)), key=lambda at: -sizes[at])
        yield from (change_look(capture, at) for at in order[:_LOOK] if sizes[at])


def change_look(capture: PageCapture, head: int) -> Look:
    """Return the largest change of a head. capture: the difference. head: its index there."""
    weights = np.nan_to_num(capture.weights[head])
    query, key = map(int, np.unravel_index(np.abs(weights).argmax(), weights.shape))
    gap = f"{weights[query, key]:+.2f}".replace("-", "−").replace("0.", ".", 1)
    return Look(2, head, query, key, f"{capture.link(query, key)} {gap}")


def with_difference(a: PageCapture, b: PageCapture, name: str) -> Iterator[PageCapture]:
    """Yield two captures and, if their maps have equal shapes, the difference B − A under a name.

    Only heads that both have are in the difference, without the scores of A; colours are full at
    its largest value.
    """
    yield from (a, b)
    known = {head.name: at for at, head in enumerate(b.heads)}
    shared = [(at, known[head.name]) for at, head in enumerate(a.heads) if head.name in known]
    sizes = {(len(one.queries), len(one.keys), one.causal) for one in (a, b)}
    if not shared or len(sizes) > 1:
        return
    kept = replace(a, notes=(), **MAPS_ALONE).of([first for first, _ in shared])
    weights = [b.weights[second] - a.weights[first] for first, second in shared]
    changes = [float(np.nanmax(np.abs(map_), initial=0.0)) for map_ in weights]
    heads = [
        replace(head, facts="", values={LARGEST_CHANGE.key: change})
        for head, change in zip(kept.heads, changes, strict=True)
    ]
    limit = signed_limit(np.array(changes))
    verbs = "attends differently to", "is attended to differently by"
    kept = replace(kept, name=name, heads=heads, weights=weights, given="difference", limit=limit)
    yield replace(kept, verbs=verbs)
