"""What is seen of a torch module: what its heads add up to, and digests of all that it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.engine.sites import Site, Sites
from attnviz.verify.examinee import HeadSum

__all__ = ["dropout_of", "module_state", "sum_heads"]


@torch.inference_mode()
def sum_heads(
    root: nn.Module, sites: Sites, run: Callable[[], object]
) -> tuple[tuple[HeadSum, ...], str]:
    """The sums of one ``run`` of ``root``, and why some module has none; empty if all have.

    The output projection is the first linear map that ends after a module's heads are mixed, and
    it must read them unchanged.
    """
    watch = _Watch()
    with sites.borrowed(), watch.linear_maps(root), sites.editing(watch):
        run()
    return tuple(watch.sums), watch.reason


class _Watch:
    """Takes down the heads of each site, then the linear map that reads them."""

    def __init__(self) -> None:
        self._pending: tuple[Site, Tensor] | None = None
        self.sums: list[HeadSum] = []
        self.reason = ""

    def edit(self, number: int, site: Site, outputs: Tensor) -> Tensor:
        """Look at outputs (batch, token, head, dim); see ``HeadEditor``."""
        self._pending = site, outputs[0].clone()
        return outputs

    @contextmanager
    def linear_maps(self, root: nn.Module) -> Iterator[None]:
        """Watch every linear map under ``root`` while this is open."""
        with ExitStack() as hooks:
            for module in root.modules():
                if _is_linear(module):
                    hooks.callback(module.register_forward_hook(self._leave).remove)
            yield

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if self._pending is None:
            return
        (site, heads), self._pending = self._pending, None
        read = args[0].flatten(0, -2)
        if read.shape != (len(heads), site.heads * site.dim) or not torch.equal(
            read, heads.flatten(1)
        ):
            self.reason = (
                f"{type(site.module).__name__} changes its heads before they are joined (a gate "
                "or a norm): they do not sum to its output"
            )
            return
        self.sums.append(_summed(site, heads, module, output.flatten(0, -2)))


def _is_linear(module: nn.Module) -> bool:
    # transformers' Conv1D is a linear layer with its weight transposed.
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _summed(site: Site, heads: Tensor, projection: nn.Module, output: Tensor) -> HeadSum:
    """The sum in float64: heads (token, head, dim), one at a time."""
    stored: Any = projection.weight
    weight = _wide(
        stored if isinstance(projection, nn.Linear) else stored.T
    )  # (width, heads · dim)
    parts = [
        _wide(heads[:, head]) @ weight[:, head * site.dim : (head + 1) * site.dim].T
        for head in range(site.heads)
    ]
    bias: Any = projection.bias
    if bias is not None:
        parts.append(np.broadcast_to(_wide(bias), parts[0].shape))
    return HeadSum(
        kind=site.kind,
        layer=site.layer,
        summed=np.sum(parts, axis=0),
        output=_wide(output),
        terms=site.heads * site.dim + (bias is not None),
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
    """A SHA-256 of every part of ``root`` that observing must leave alone."""
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
    """The largest probability of dropout that any module of ``root`` has."""
    found = [0.0]
    for module in root.modules():
        if isinstance(module, nn.Dropout):
            found.append(module.p)
        # Attention takes its probability as a number, without a module for it.
        found += [
            value
            for name, value in vars(module).items()
            if "dropout" in name and isinstance(value, float) and 0 <= value < 1
        ]
    return max(found)
