"""Replace parts of a running model: heads' outputs, queries, weights, what a layer adds.

Ablation and patching are the same intervention; they differ in where the values come from: zero, a
mean, another text, the other prompt of a pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnviz.engine.hook_points import HookedCall, LostTrackError
from attnviz.engine.patchable import Untouched
from attnviz.engine.patching import Site, What
from attnviz.records import Kind

Held: TypeAlias = Mapping[tuple[What, int], Tensor]
"""By sort and layer what a run holds: (token, head, dim); of a pattern (query, head, key). One
token stands for all."""


class Change(Protocol):
    """What a row of the batch does otherwise than the first: an ablation, or a patch."""

    @property
    def layers(self) -> Sequence[int]:
        """Return every layer in which it changes something."""
        ...

    @property
    def sites(self) -> Sequence[Site]:
        """Return what it replaces."""
        ...


def head_of(site: Site) -> int:
    """Return the index of a site's head; what a layer has once stands as its only head."""
    return site.head or 0


class Replace(Untouched):
    """An intervention that replaces sites, other ones in each row of the batch.

    kind: of attention; other kinds pass untouched.
    rows: what to replace by row; the row None stands for every row.
    values: what is put in, token for token; None puts in zero.
    directions: seed of a control: in place of the replacement, a random direction of all heads'
        outputs side by side is taken off, at each token of the norm of what the replacement would
        take off there. None replaces.
    """

    def __init__(
        self,
        kind: Kind,
        rows: Mapping[int | None, Change],
        values: Held | None = None,
        directions: int | None = None,
    ) -> None:
        self._kind = kind
        self._values = values
        self._directions = directions
        self._sites: dict[tuple[What, int], list[tuple[int | None, Site]]] = {}
        for row, change in rows.items():
            for site in change.sites:
                self._sites.setdefault((site.what, site.layer), []).append((row, site))

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        """Return the outputs (batch, token, head, dim) of a point with its sites replaced."""
        if max((row or 0 for row, _ in self._sites_of(point)), default=0) >= len(outputs):
            raise LostTrackError(f"a batch of {len(outputs)} has too few rows for its changes")
        return self.edit_rows(point, outputs, 0)

    def edit_rows(self, point: HookedCall, outputs: Tensor, first: int) -> Tensor:
        """Return the same where the outputs are those of the rows from ``first`` on.

        Outputs of heads are changed in place.
        """
        here = range(first, first + len(outputs))
        sites = [
            (None if row is None else row - first, site)
            for row, site in self._sites_of(point)
            if row is None or row in here
        ]
        if not sites:
            return outputs
        outputs = outputs if point.what == "output" else outputs.clone()
        if self._directions is not None:
            self._take_directions(point, outputs, sites)
            return outputs
        held = self._held(point, outputs)
        whole = [(row, head_of(site)) for row, site in sites if site.tokens is None]
        rows, heads = [row for row, _ in whole], [head for _, head in whole]
        if heads and rows[0] is None:
            outputs[:, :, heads] = self._of(held, heads, outputs)
        elif heads:
            # The index over tokens stands between: what is set has shape (site, token, dim).
            values = self._of(held, heads, outputs)
            outputs[rows, :, heads] = values.transpose(0, 1) if values.ndim else values
        for row, site in sites:
            if site.tokens is not None:
                self._replace_tokens(outputs, held, row, site)
        return outputs

    def _sites_of(self, point: HookedCall) -> Sequence[tuple[int | None, Site]]:
        return self._sites.get((point.what, point.layer), ()) if point.kind == self._kind else ()

    def _held(self, point: HookedCall, outputs: Tensor) -> Tensor | None:
        """Return the values of a point; LostTrackError if they have another shape."""
        if self._values is None:
            return None
        held = self._values[point.what, point.layer]
        if held.shape[1:] != outputs.shape[2:] or 1 < len(held) < outputs.shape[1]:
            raise LostTrackError(f"{point.what} of layer {point.layer} has another shape")
        return held

    @staticmethod
    def _of(held: Tensor | None, heads: Sequence[int], outputs: Tensor) -> Tensor:
        """Return what is put in: (token or 1, chosen head, dim), or a single zero."""
        if held is None:
            return outputs.new_zeros(())
        # The last block may go on with the last tokens alone.
        return held[max(len(held) - outputs.shape[1], 0) :, list(heads)].to(outputs)

    @staticmethod
    def _replace_tokens(outputs: Tensor, held: Tensor | None, row: int | None, site: Site) -> None:
        head, tokens = head_of(site), site.tokens or ()
        missing = 0 if held is None else max(len(held) - outputs.shape[1], 0)
        places = [token - missing for token in tokens if token >= missing]
        rows = outputs if row is None else outputs[row : row + 1]
        if held is None:
            rows[:, places, head] = 0
        else:
            rows[:, places, head] = held[[place + missing for place in places], head].to(outputs)

    def _take_directions(
        self, point: HookedCall, outputs: Tensor, sites: Sequence[tuple[int | None, Site]]
    ) -> None:
        held = self._held(point, outputs)
        by_row: dict[int | None, list[int]] = {}
        for row, site in sites:
            by_row.setdefault(row, []).append(head_of(site))
        for row, heads in by_row.items():
            rows = outputs if row is None else outputs[row : row + 1]
            taken = rows[:, :, heads] - self._of(held, heads, outputs)
            norm = taken.float().flatten(-2).norm(dim=-1)[..., None, None]
            generator = np.random.default_rng((self._directions or 0, point.layer, *heads))
            drawn = generator.standard_normal((point.heads, point.dim), dtype=np.float32)
            direction = torch.from_numpy(drawn / np.linalg.norm(drawn)).to(outputs.device)
            rows -= (norm * direction).to(rows.dtype)
