"""Digests of all that a torch module is: numbers, hooks, modes, configs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["dropout_of", "module_state"]

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
