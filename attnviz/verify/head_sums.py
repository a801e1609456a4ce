"""Add up what the heads of each attention module put out, each through its own part of W_O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.engine.hook_points import HookPoint, HookPoints, is_linear, linear_maps
from attnviz.verify.examinee import HeadSum

__all__ = ["sum_heads"]


@torch.inference_mode()
def sum_heads(
    root: nn.Module, points: HookPoints, run: Callable[[], object]
) -> tuple[tuple[HeadSum, ...], str]:
    """The sums of one ``run`` of ``root``, and why some module has none; empty if all have.

    The output projection is the first linear map that ends after a module's heads are mixed, and
    it must read them unchanged.
    """
    watch = _Watch()
    with points.borrowed(), linear_maps(root, leave=watch.leave), points.intervening(watch):
        run()
    return tuple(watch.sums), watch.reason


class _Watch:
    """Takes down the heads of each point, then the linear map that reads them."""

    def __init__(self) -> None:
        self._pending: tuple[HookPoint, Tensor] | None = None
        self.sums: list[HeadSum] = []
        self.reason = ""

    def edit(self, number: int, point: HookPoint, outputs: Tensor) -> Tensor:
        """Look at outputs (batch, token, head, dim); see ``HeadEditor``."""
        self._pending = point, outputs[0].clone()
        return outputs

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        """After any linear map has run."""
        if self._pending is None or not is_linear(module):
            return
        (point, heads), self._pending = self._pending, None
        read = args[0].flatten(0, -2)
        if read.shape != (len(heads), point.heads * point.dim) or not torch.equal(
            read, heads.flatten(1)
        ):
            self.reason = (
                f"{type(point.module).__name__} changes its heads before they are joined (a gate "
                "or a norm): they do not sum to its output"
            )
            return
        self.sums.append(_summed(point, heads, module, output.flatten(0, -2)))


def _summed(point: HookPoint, heads: Tensor, projection: nn.Module, output: Tensor) -> HeadSum:
    """The sum in float64: heads (token, head, dim), one at a time."""
    stored: Any = projection.weight
    weight = _wide(
        stored if isinstance(projection, nn.Linear) else stored.T
    )  # (width, heads · dim)
    parts = [
        _wide(heads[:, head]) @ weight[:, head * point.dim : (head + 1) * point.dim].T
        for head in range(point.heads)
    ]
    bias: Any = projection.bias
    if bias is not None:
        parts.append(np.broadcast_to(_wide(bias), parts[0].shape))
    return HeadSum(
        kind=point.kind,
        layer=point.layer,
        summed=np.sum(parts, axis=0),
        output=_wide(output),
        terms=point.heads * point.dim + (bias is not None),
        largest=float(np.sum(np.abs(parts), axis=0).max()),
    )


def _wide(tensor: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = tensor.detach().double().cpu().numpy()
    return array
