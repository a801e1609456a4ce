"""Cuts heads out of a model: which ones stay, and the tensors of the smaller model.

An architecture has one head count for all its layers, and one number of query heads for each
key/value head. So an ablated head is cut out only if every layer loses one; else it stays as
padding, silenced by zeros in the output projection.

No names of modules are known here: a tensor whose axis is shorter in the smaller model holds heads
along that axis, and the two lengths give the width of each head. The caller checks this reading by
the outputs of the smaller model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnviz.errors import UnsupportedError
from attnviz.records import ModelInfo

if TYPE_CHECKING:  # plans are made without torch
    from torch import Size, Tensor

Removed = Mapping[int, Collection[int]]
"""For each layer the ablated query heads; a layer without any may be left out."""

_BLOCK = re.compile(r"(.*\.\d+)\.")


class UncutError(Exception):
    """Raised if a tensor's axis cannot be split into heads, so that another size must be tried."""


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
    most_groups = max((sum(map(bool, groups)) for groups in live.values()), default=kv_heads)
    most_members = max((len(group) for groups in live.values() for group in groups), default=size)
    shapes = [
        (kept, members)
        for kept in range(max(most_groups, 1), kv_heads + 1)
        for members in range(max(most_members, 1), size + 1)
        if (kept, members) != (kv_heads, size)
    ]
    # A query head costs two projections (its query and its output), a key/value head two as well.
    shapes.sort(key=lambda shape: shape[0] * shape[1] + shape[0])
    return tuple(_plan(live, size, *shape) for shape in shapes)


def _plan(live: Mapping[int, list[list[int]]], size: int, kept: int, members: int) -> CutPlan:
    key = {
        layer: _filled([i for i, g in enumerate(groups) if g], kept, range(len(groups)))
        for layer, groups in live.items()
    }
    query = {
        layer: tuple(
            head
            for group in key[layer]
            for head in _filled(groups[group], members, range(group * size, (group + 1) * size))
        )
        for layer, groups in live.items()
    }
    return CutPlan(kept * members, kept, query, key)


def _filled(chosen: list[int], count: int, among: range) -> tuple[int, ...]:
    """Return ``count`` heads of ``among`` in order: the chosen ones, and others to fill up."""
    others = [head for head in among if head not in chosen]
    return tuple(sorted(chosen + others[: count - len(chosen)]))


@dataclass(frozen=True)
class OutputProjection:
    """The output projection of one layer, whose input is the outputs of all heads side by side.

    module: the projection's name within the model.
    axis: the axis of its weight along which the heads lie.
    plain: False if the module is quantised or wrapped, so that changing its weight has no effect.
    """

    module: str
    axis: int
    plain: bool = True

    @property
    def weight(self) -> str:
        return f"{self.module}.weight"

    @property
    def block(self) -> str:
        """Return the prefix of the layer's own modules, such as ``model.layers.3.``."""
        match = _BLOCK.match(self.module)
        return f"{match[1]}." if match else ""


def silenced(
    state: Mapping[str, Tensor],
    projections: Mapping[int, OutputProjection],
    removed: Removed,
    heads: int,
) -> dict[str, Tensor]:
    """Return ``state`` with zeros in the output projections for the removed heads.

    projections, removed: by layer. heads: of a layer. Only changed tensors are copied. Raises
    UnsupportedError if two layers share one projection and do not lose the same heads.
    """
    by_weight: dict[tuple[str, int], dict[int, frozenset[int]]] = {}
    for layer, projection in projections.items():
        wanted = by_weight.setdefault((projection.weight, projection.axis), {})
        wanted[layer] = frozenset(removed.get(layer, ()))
    changed = dict(state)
    for (weight, axis), layers in by_weight.items():
        if len(set(layers.values())) > 1:
            raise UnsupportedError(
                f"the layers {', '.join(map(str, layers))} share one output projection: a head "
                "can only be removed from all of them"
            )
        gone = sorted(next(iter(layers.values())))
        if gone:
            tensor = state[weight].clone()
            width = tensor.shape[axis] // heads
            tensor.index_fill_(axis, _spans(gone, width).to(tensor.device), 0.0)
            changed[weight] = tensor
    return changed


def cut_tensors(
    state: Mapping[str, Tensor],
    shapes: Mapping[str, Size],
    plan: CutPlan,
    info: ModelInfo,
    projections: Mapping[int, OutputProjection],
    *,
    fused: bool,
) -> dict[str, Tensor]:
    """Return ``state`` without the removed heads, as tensors of the smaller model, of ``shapes``.

    info: the model before the cut. fused: True assumes that an axis holds all queries, then all
    keys, then all values if its length allows that, rather than the heads of one of them. Raises
    UncutError if an axis cannot be read as heads.
    """
    if state.keys() != shapes.keys():
        raise UncutError
    blocks = {projection.block: layer for layer, projection in projections.items()}
    cut: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for axis, (full, short) in enumerate(zip(tensor.shape, shapes[name], strict=True)):
            if full != short:
                layer = next((blocks[b] for b in blocks if b and name.startswith(b)), None)
                if layer is None:
                    raise UncutError
                index = _kept(full, short, plan, info, layer, fused)
                tensor = tensor.index_select(axis, index.to(tensor.device))
        cut[name] = tensor
    return cut


def _kept(full: int, short: int, plan: CutPlan, info: ModelInfo, layer: int, fused: bool) -> Tensor:
    """Return the indices of the ``short`` entries of ``full`` that stay along a tensor's axis."""
    query, key = plan.query[layer], plan.key[layer]
    keys = [info.heads + head for head in key]
    values = [info.heads + info.kv_heads + head for head in key]
    readings: dict[str, tuple[Sequence[int], int]] = {
        "query": (query, info.heads),
        "key": (key, info.kv_heads),
        "fused": ((*query, *keys, *values), info.heads + 2 * info.kv_heads),
    }
    # Keys of width D look like queries of width D·K/H; the model's own width tells them apart.
    order = ["query", "key"]
    if full == info.kv_heads * info.head_dim != info.heads * info.head_dim:
        order.reverse()
    order.insert(0 if fused else 2, "fused")
    for name in order:
        kept, heads = readings[name]
        width, rest = divmod(full, heads)
        if not rest and width * len(kept) == short:
            return _spans(kept, width)
    raise UncutError


def _spans(heads: Sequence[int], width: int) -> Tensor:
    """Return the indices of some heads' entries along an axis."""
    import torch

    starts = torch.tensor(heads, dtype=torch.long)[:, None] * width
    return (starts + torch.arange(width)).flatten()
