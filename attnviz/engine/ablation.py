"""Remove heads from a running model: replace their outputs before the output projection.

Zeroing a slice of that projection's *output* is something else. Michel et al. 2019, "Are Sixteen
Heads Really Better than One?"
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnviz.engine.effects import Variant
from attnviz.engine.patchable import Subject
from attnviz.engine.sites import LostTrackError, Site
from attnviz.errors import UsageError
from attnviz.records import Kind

__all__ = ["RowRemoval", "StandIns", "check_heads", "removing"]

StandIns: TypeAlias = Mapping[int, Tensor]
"""By layer, what takes the place of its heads' outputs: (token or 1, head, dim)."""


@contextmanager
def removing(
    subject: Subject, heads: Collection[tuple[int, int]], stand_ins: StandIns | None = None
) -> Iterator[None]:
    """While this is open, ``subject.root`` runs without these (layer, head) pairs, for any batch.

    stand_ins: replace their outputs by these; None by zero.
    The model is in evaluation mode, and as it was on leaving, also after an exception. Raises
    UsageError for a head that does not exist.
    """
    check_heads(subject, heads)
    variant = Variant(tuple(sorted(set(heads)))) if heads else None
    editor = RowRemoval(subject.kind, {} if variant is None else {None: variant}, stand_ins)
    with subject.sites.borrowed(), subject.sites.editing(editor):
        yield


def check_heads(subject: Subject, heads: Collection[tuple[int, int]]) -> None:
    """UsageError for the first of the (layer, head) pairs that the model does not have."""
    for layer, head in heads:
        if layer not in subject.heads:
            raise UsageError(f"no layer {layer} with heads: expected {_range(list(subject.heads))}")
        if not 0 <= head < subject.heads[layer]:
            raise UsageError(
                f"no head {head} in layer {layer}: expected 0 to {subject.heads[layer] - 1}"
            )


def _range(layers: Sequence[int]) -> str:
    if list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers))


class RowRemoval:
    """Removes heads, other ones in each row of the batch.

    kind: of attention; other kinds pass untouched.
    variants: what to remove by row; the row None stands for every row.
    stand_ins: replace the outputs by these; None by zero.
    directions: seed of a control: in place of the removal, a random direction of all heads'
        outputs side by side is taken off, at each token of the norm of what the removal would
        take off there. None removes.
    """

    def __init__(
        self,
        kind: Kind,
        variants: Mapping[int | None, Variant],
        stand_ins: StandIns | None = None,
        directions: int | None = None,
    ) -> None:
        self._kind = kind
        self._stand_ins = stand_ins
        self._directions = directions
        self._pairs: dict[int, list[tuple[int | None, int]]] = {}
        for row, variant in variants.items():
            for layer, head in variant.heads:
                self._pairs.setdefault(layer, []).append((row, head))

    def edit(self, number: int, site: Site, outputs: Tensor) -> Tensor:
        """Take the heads of this site out of the outputs (batch, token, head, dim), in place."""
        pairs = self._pairs_of(site)
        if max((row or 0 for row, _ in pairs), default=0) >= len(outputs):
            raise LostTrackError(f"a batch of {len(outputs)} has too few rows for its removals")
        return self._edit(site, outputs, pairs)

    def edit_rows(self, site: Site, outputs: Tensor, first: int) -> Tensor:
        """The same where the outputs are those of the rows from ``first`` on."""
        rows = range(first, first + len(outputs))
        pairs = [
            (row - first, head)
            for row, head in self._pairs_of(site)
            if row is not None and row in rows
        ]
        return self._edit(site, outputs, pairs)

    def _pairs_of(self, site: Site) -> Sequence[tuple[int | None, int]]:
        return self._pairs.get(site.layer, []) if site.kind == self._kind else []

    def _edit(self, site: Site, outputs: Tensor, pairs: Sequence[tuple[int | None, int]]) -> Tensor:
        if not pairs:
            return outputs
        if self._directions is not None:
            self._take_directions(site, outputs, pairs)
        elif pairs[0][0] is None:
            heads = [head for _, head in pairs]
            outputs[:, :, heads] = self._values(site, heads, outputs)
        else:
            rows, heads = [row for row, _ in pairs], [head for _, head in pairs]
            # The index over tokens stands between: what is set has shape (pair, token, dim).
            values = self._values(site, heads, outputs)
            outputs[rows, :, heads] = values.transpose(0, 1) if values.ndim else values
        return outputs

    def _values(self, site: Site, heads: list[int], like: Tensor) -> Tensor:
        """What takes the heads' place: (token or 1, chosen head, dim), or a single zero."""
        if self._stand_ins is None:
            return like.new_zeros(())
        return self._stand_ins[site.layer][:, heads].to(like)

    def _take_directions(
        self, site: Site, outputs: Tensor, pairs: Sequence[tuple[int | None, int]]
    ) -> None:
        by_row: dict[int | None, list[int]] = {}
        for row, head in pairs:
            by_row.setdefault(row, []).append(head)
        for row, heads in by_row.items():
            rows = outputs if row is None else outputs[row : row + 1]
            taken = rows[:, :, heads] - self._values(site, heads, outputs)
            norm = taken.float().flatten(-2).norm(dim=-1)[..., None, None]
            generator = np.random.default_rng((self._directions or 0, site.layer, *heads))
            drawn = generator.standard_normal((site.heads, site.dim), dtype=np.float32)
            direction = torch.from_numpy(drawn / np.linalg.norm(drawn)).to(outputs.device)
            rows -= (norm * direction).to(rows.dtype)
