"""Functions on torch modules: the sum of a module's heads, and digests of its parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
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
    """One attention module's output, next to the sum of its heads.

    kind, layer: which attention. summed: Σ_h z_h W_O^h + b_O in float64, (token, width). output:
    the module's own, of the same shape. terms: number of terms of each sum. largest: the largest
    sum of absolute contributions.
    """

    kind: Kind
    layer: int
    summed: NDArray[np.float64]
    output: NDArray[np.float64]
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
        """Record the outputs (batch, token, head, dim) of a call, and return them unchanged.

        number, point: of the call, see ``Intervention``.
        """
        self._pending = point, outputs[0].clone()
        return outputs

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        """Record the sum of the latest heads if this linear map is their output projection.

        It is called after each linear map. module, args, output: the map, its arguments and its
        output.
        """
        if self._pending is None or not is_linear(module):
            return
        (point, heads), self._pending = self._pending, None
        if weight_axis(module) is None:
            self.reason = f"{type(module).__name__} multiplies by more than its weight"
            return
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


def _summed(point: HookedCall, heads: Tensor, projection: nn.Module, output: Tensor) -> HeadSum:
    """Return the sum in float64 of heads (token, head, dim) through their output projection.

    point: the attention call. output: the output of the projection.
    """
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


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
)


def module_state(root: nn.Module) -> dict[str, str]:
    """Return a digest (SHA-256) of every part of ``root`` that observing must not change."""
    modules = list(root.named_modules())
    return {
        "parameters": _digest(_tensors(root.named_parameters())),
        "buffers": _digest(_tensors(root.named_buffers())),
        "gradients": _digest(
            f"{name} {one.requires_grad} {one.grad is None}".encode()
            for name, one in root.named_parameters()
        ),
        "hooks": _digest(
            f"{name} {kind} {[*getattr(module, kind, ())]}".encode()
            for name, module in modules
            for kind in _HOOKS
        ),
        "training modes": _digest(f"{name} {module.training}".encode() for name, module in modules),
        "configs": _digest(_configs(modules)),
    }


def _digest(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _tensors(named: Iterable[tuple[str, Tensor]]) -> Iterable[bytes]:
    for name, tensor in named:
        yield f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.device}".encode()
        # As bytes, because NumPy has no bfloat16.
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().tobytes()


def _configs(modules: Iterable[tuple[str, nn.Module]]) -> Iterable[bytes]:
    for name, module in modules:
        config: Any = getattr(module, "config", None)
        if hasattr(config, "to_dict"):
            fields = json.dumps(config.to_dict(), sort_keys=True, default=str)
            yield f"{name} {config._attn_implementation} {fields}".encode()


def dropout_of(root: nn.Module) -> float:
    """Return the largest dropout probability of any module of ``root``."""
    found = [0.0]
    for module in root.modules():
        if isinstance(module, nn.Dropout):
            found.append(module.p)
        # Attention modules keep the probability as a number, without an nn.Dropout.
        found += [
            value
            for name, value in vars(module).items()
            if "dropout" in name and isinstance(value, float) and 0 <= value < 1
        ]
    return max(found)
