"""Which heads stay in a smaller model: plain arithmetic on the numbers of heads.

An architecture has one head count for all its layers, and one number of query heads for each
key/value head. So an ablated head is cut out only if every layer loses one; else it stays as
padding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

Removed = Mapping[int, Collection[int]]
"""For each layer the ablated query heads; a layer without any may be left out."""


@dataclass(frozen=True)
class CutPlan:
    """A plan for cutting heads: how many heads each layer keeps, the same number in all, and which.

    heads, kv_heads: how many query heads and key/value heads every layer keeps.
    query: for each layer the original query heads that stay, in order; ``heads`` of them.
    key: for each layer the original key/value heads that stay, in order; ``kv_heads`` of them.
    """

    heads: int
    kv_heads: int
    query: Mapping[int, tuple[int, ...]]
    key: Mapping[int, tuple[int, ...]]


def cut_plans(
    removed: Removed, layers: Iterable[int], heads: int, kv_heads: int
) -> tuple[CutPlan, ...]:
    """Return every plan with fewer heads that keeps all but ``removed`` ones, smallest first."""
    if heads % kv_heads:
        return ()
    size = heads // kv_heads  # query heads on one key/value head
    live = {
        layer: [
            [head for head in range(first, first + size) if head not in removed.get(layer, ())]
            for first in range(0, heads, size)
        ]
        for layer in layers
    }
    groups = max((sum(map(bool, found)) for found in live.values()), default=kv_heads)
    members = max((len(group) for found in live.values() for group in found), default=size)
    shapes = [
        (kept, each)
        for kept in range(max(groups, 1), kv_heads + 1)
        for each in range(max(members, 1), size + 1)
        if (kept, each) != (kv_heads, size)
    ]
    # A query head costs two projections (its query and its output), a key/value head two as well.
    shapes.sort(key=lambda shape: shape[0] * shape[1] + shape[0])
    return tuple(_plan(live, size, *shape) for shape in shapes)


def _plan(live: Mapping[int, list[list[int]]], size: int, kept: int, each: int) -> CutPlan:
    key = {
        layer: _filled([i for i, g in enumerate(found) if g], kept, range(len(found)))
        for layer, found in live.items()
    }
    query = {
        layer: tuple(
            head
            for group in key[layer]
            for head in _filled(found[group], each, range(group * size, (group + 1) * size))
        )
        for layer, found in live.items()
    }
    return CutPlan(kept * each, kept, query, key)


def _filled(chosen: list[int], count: int, among: range) -> tuple[int, ...]:
    """Return ``count`` heads of ``among`` in order: the chosen ones, and others to fill up."""
    others = [one for one in among if one not in chosen]
    return tuple(sorted(chosen + others[: count - len(chosen)]))
