"""The sum of an attention module's heads through its output projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.engine.hook_points import HookedCall, HookPoints
from attnviz.engine.linear_map import is_linear, linear_maps, weight_axis
from attnviz.records import Kind


@dataclass(frozen=True, eq=False)
class HeadSum:
    """One attention module's output, compared with the sum of its heads.

    kind, layer: which attention. difference: the largest absolute one of Σ_h z_h W_O^h + b_O in
    float64 and the module's own output. terms: number of terms of each sum. largest: the largest
    sum of absolute contributions.
    """

    kind: Kind
    layer: int
    difference: float
    terms: int
    largest: float


@torch.inference_mode()
def sum_heads(
    root: nn.Module, points: HookPoints, run: Callable[[], object]
) -> tuple[tuple[HeadSum, ...], str]:
    """Run a torch model; return the sums of its heads, one for each attention module.

    Also returns why some module has no sum, or "". root: the model. points: its attention calls.
    run: runs it once. The output projection is the first linear map that ends after a module's
    heads are mixed, and its input must be the heads' outputs, unchanged.
    """
    watch = _Watch()
    with points.borrowed(), linear_maps(root, leave=watch.leave), points.intervening(watch):
        run()
    return tuple(watch.sums), watch.reason


class _Watch:
    """Records the heads' outputs of each attention call, then the linear map that takes them."""

    def __init__(self) -> None:
        self._pending: tuple[HookedCall, Tensor] | None = None
        self.sums: list[HeadSum] = []
        self.reason = ""

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        """Record the outputs (batch, token, head, dim) of a call, and return them unchanged."""
        self._pending = point, outputs[0].clone()
        return outputs

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        """Record the sum of the latest heads if this linear map is their output projection."""
        if self._pending is None or not is_linear(module):
            return
        (point, heads), self._pending = self._pending, None
        if weight_axis(module) is None:
            self.reason = f"{type(module).__name__} multiplies by more than its weight"
            return
        read = args[0].flatten(0, -2)
        if not torch.equal(read, heads.flatten(1)):
            self.reason = (
                f"{type(point.module).__name__} changes its heads before they are joined (a gate "
                "or a norm): they do not sum to its output"
            )
            return
        self.sums.append(_summed(point, heads, module, output.flatten(0, -2)))


def _summed(point: HookedCall, heads: Tensor, projection: nn.Module, output: Tensor) -> HeadSum:
    """Return the sum in float64 of heads (token, head, dim) through their output projection."""
    stored: Any = projection.weight
    matrix = stored if isinstance(projection, nn.Linear) else stored.T
    by_head = _wide(matrix).reshape(len(matrix), point.heads, point.dim)
    parts = [*np.einsum("thd,whd->htw", _wide(heads), by_head)]
    bias: Any = projection.bias
    if bias is not None:
        parts.append(np.broadcast_to(_wide(bias), parts[0].shape))
    return HeadSum(
        kind=point.kind,
        layer=point.layer,
        difference=float(np.abs(np.sum(parts, axis=0) - _wide(output)).max()),
        terms=point.heads * point.dim + (bias is not None),
        largest=float(np.sum(np.abs(parts), axis=0).max()),
    )


def _wide(tensor: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = tensor.detach().double().cpu().numpy()
    return array
