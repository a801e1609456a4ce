"""Cuts heads out of the tensors of a model, along the axes that are shorter in the smaller model.

No names of modules are known here: a tensor whose axis is shorter in the smaller model holds heads
along that axis, and the two lengths give the width of each head. The caller checks this reading by
the outputs of the smaller model.

Which heads stay is decided in ``head_plan``; an ablated head that stays as padding is silenced by
zeros in the output projection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.errors import UnsupportedError
from attnviz.models.head_plan import CutPlan, Removed
from attnviz.records import ModelInfo

_BLOCK = re.compile(r"(.*\.\d+)\.")


class UncutError(Exception):
    """Raised if a tensor's axis cannot be split into heads, so that another size must be tried."""


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
    shapes: Mapping[str, torch.Size],
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

    def separate(kept: tuple[int, ...], heads: int) -> Callable[[], Tensor] | None:
        width, rest = divmod(full, heads)
        if rest or width * len(kept) != short:
            return None
        return lambda: _spans(kept, width)

    def together() -> Callable[[], Tensor] | None:
        width, rest = divmod(full, info.heads + 2 * info.kv_heads)
        if rest or width * (len(query) + 2 * len(key)) != short:
            return None
        keys = [info.heads + head for head in key]
        values = [info.heads + info.kv_heads + head for head in key]
        return lambda: _spans((*query, *keys, *values), width)

    readings = {
        "query": separate(query, info.heads),
        "key": separate(key, info.kv_heads),
        "fused": together(),
    }
    # Keys of width D look like queries of width D·K/H; the model's own width tells them apart.
    order = ["query", "key"]
    if full == info.kv_heads * info.head_dim != info.heads * info.head_dim:
        order.reverse()
    order.insert(0 if fused else 2, "fused")
    for name in order:
        reading = readings[name]
        if reading is not None:
            return reading()
    raise UncutError


def _spans(heads: tuple[int, ...] | list[int], width: int) -> Tensor:
    """Return the indices of some heads' entries along an axis."""
    starts = torch.tensor(heads, dtype=torch.long)[:, None] * width
    return (starts + torch.arange(width)).flatten()
