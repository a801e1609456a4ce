"""Cut edges in a running torch model by editing its scores before the softmax."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from attnviz.engine.hook_points import HookedCall
from attnviz.engine.patchable import PatchableModel
from attnviz.engine.selection import check_heads
from attnviz.records import Input


@contextmanager
def cutting(
    model: PatchableModel,
    heads: Collection[tuple[int, int]],
    edges: Collection[tuple[int, int]],
    given: Input,
) -> Iterator[None]:
    """Run the block with some query–key pairs (edges) cut in the borrowed ``model``.

    heads: (layer, head) of each in which they are cut. edges: query–key pairs of positions. given:
    the text of the run. Raises UsageError for a head that does not exist, and while the model runs
    UnsupportedError if an edge cannot be cut.
    """
    check_heads(model.heads, heads)
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(layer, []).append(head)
    pairs = torch.tensor(sorted(set(edges)), dtype=torch.long, device=model.device).reshape(-1, 2)

    def hide(point: HookedCall, queries: int, keys: int) -> Tensor | None:
        if point.kind != model.kind or point.layer not in by_layer:
            return None
        hidden = torch.zeros(point.heads, queries, keys, dtype=torch.bool, device=pairs.device)
        for head in by_layer[point.layer]:
            hidden[head, pairs[:, 0], pairs[:, 1]] = True
        return hidden

    with model.hook_points.hiding(hide, given):
        yield
