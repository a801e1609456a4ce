"""Find the layers up to which changes are alike, so that they share a row until they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnviz.engine.patching import Patch, Site
from attnviz.engine.replacing import Change


@dataclass(frozen=True)
class Fork:
    """The rows of the batch in one layer, when several ablations or patches share rows.

    sources: for each row the row of the layer before that it continues; −1 for the unchanged text.
    patches: the sites that are replaced in this layer, by row.
    """

    sources: tuple[int, ...]
    patches: dict[int | None, Patch]


def forks(changes: Sequence[Change], first: int, layers: int) -> tuple[list[Fork], list[int]]:
    """Return the rows of each layer from ``first`` on, and the row of each change at the end.

    changes: the ablations or patches; those that replace equal sites so far have the same row.
    first: the first layer in which something is changed. layers: the number of layers.
    """
    sites = [_by_layer(change) for change in changes]
    ends, found = [-1] * len(changes), []
    for layer in range(first, layers):
        keys = [(end, some.get(layer, ())) for end, some in zip(ends, sites, strict=True)]
        begun = (key for key in dict.fromkeys(keys) if key != (-1, ()))
        rows = {key: row for row, key in enumerate(begun)}
        patches: dict[int | None, Patch] = {
            row: Patch(here) for (_, here), row in rows.items() if here
        }
        found.append(Fork(tuple(source for source, _ in rows), patches))
        ends = [rows.get(key, -1) for key in keys]
    return found, ends


def _by_layer(change: Change) -> dict[int, tuple[Site, ...]]:
    found: dict[int, tuple[Site, ...]] = {}
    for site in change.sites:
        found[site.layer] = (*found.get(site.layer, ()), site)
    return found
