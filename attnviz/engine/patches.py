"""Interventions of activation patching: keep what sites hold, put it in, or find its slope."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from attnviz.engine.hook_points import HookPoint, LostTrackError
from attnviz.engine.patching import Patch, Site, What
from attnviz.records import Kind

Held: TypeAlias = Mapping[tuple[What, int], Tensor]
"""By sort and layer what a run holds: (token, head, dim); of a pattern (query, head, key)."""


def head_of(site: Site) -> int:
    """The index of a site's head; what a layer has once stands as its only head."""
    return site.head or 0


def values_of(held: Held, site: Site) -> Tensor:
    """What a run holds at a site: (token, dim)."""
    values = held[site.what, site.layer][:, head_of(site)]
    return values if site.tokens is None else values[list(site.tokens)]


class Exchange:
    """An intervention of single texts and of batches; this one changes nothing."""

    def edit(self, number: int, point: HookPoint, outputs: Tensor) -> Tensor:
        """As ``Intervention`` has it."""
        return self.edit_rows(point, outputs, 0)

    def edit_rows(self, point: HookPoint, outputs: Tensor, first: int) -> Tensor:
        """As ``RowIntervention`` has it."""
        return outputs


class Keep(Exchange):
    """Takes down what the first row holds, of one kind of attention."""

    def __init__(self, kind: Kind, what: Collection[What]) -> None:
        self._kind = kind
        self._what = what
        self.held: dict[tuple[What, int], Tensor] = {}

    def edit_rows(self, point: HookPoint, outputs: Tensor, first: int) -> Tensor:
        if point.kind == self._kind and point.what in self._what and not first:
            self.held[point.what, point.layer] = outputs[0].clone()
        return outputs


class PutIn(Exchange):
    """Puts what another run holds in the place of sites, other ones in each row of a batch.

    rows: what to replace by row. held: what the other run holds, token for token.
    """

    def __init__(self, kind: Kind, rows: Mapping[int, Patch], held: Held) -> None:
        self._kind = kind
        self._held = held
        self._sites: dict[tuple[What, int], list[tuple[int, Site]]] = {}
        for row, patch in rows.items():
            for site in patch.sites:
                self._sites.setdefault((site.what, site.layer), []).append((row, site))

    def edit_rows(self, point: HookPoint, outputs: Tensor, first: int) -> Tensor:
        if point.kind != self._kind:
            return outputs
        inside = range(first, first + len(outputs))
        sites = [
            (row - first, site)
            for row, site in self._sites.get((point.what, point.layer), ())
            if row in inside
        ]
        if not sites:
            return outputs
        outputs = outputs if point.what == "output" else outputs.clone()
        held = self._held[point.what, point.layer]
        if held.shape[1:] != outputs.shape[2:] or len(held) < outputs.shape[1]:
            raise LostTrackError(f"{point.what} of layer {point.layer} has another shape")
        missing = len(held) - outputs.shape[1]  # the last block may go on with the last tokens
        for row, site in sites:
            values = held[:, head_of(site)].to(outputs)
            if site.tokens is None:
                outputs[row, :, head_of(site)] = values[missing:]
            else:
                chosen = [token for token in site.tokens if token >= missing]
                places = [token - missing for token in chosen]
                outputs[row, places, head_of(site)] = values[chosen]
        return outputs


class Slopes(Exchange):
    """Adds zeros to what a run holds, by which something can be differentiated.

    held: what it holds. zeros: what was added, (1, token, head, dim).
    """

    def __init__(self, kind: Kind, what: Collection[What]) -> None:
        self._kind = kind
        self._what = what
        self.held: dict[tuple[What, int], Tensor] = {}
        self.zeros: dict[tuple[What, int], Tensor] = {}

    def edit_rows(self, point: HookPoint, outputs: Tensor, first: int) -> Tensor:
        if point.kind != self._kind or point.what not in self._what:
            return outputs
        place = point.what, point.layer
        self.held[place] = outputs[0].detach()
        self.zeros[place] = torch.zeros_like(outputs, requires_grad=True)
        return outputs + self.zeros[place]


def reached(patch: Patch, places: Collection[int] | None) -> Patch | None:
    """The patch at those of its tokens that another text has; None where none is left."""
    if places is None:
        return patch
    sites = []
    for site in patch.sites:
        tokens = [token for token in (site.tokens or sorted(places)) if token in places]
        if tokens:
            sites.append(replace(site, tokens=tuple(tokens)))
    return Patch(tuple(sites)) if sites else None
