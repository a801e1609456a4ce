"""Weights that are split over processes (tensor parallelism), or wait outside of the device.

transformers' tensor parallelism keeps a part of each large weight in every process, and runs the
same program in all of them. What reads a weight itself gets it whole here, by an exchange in which
all processes take part.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from attnviz.errors import UnsupportedError

# The linear maps to queries and to keys, by their names in transformers' plans.
_QUERIES, _KEYS = {"q_proj", "q_b_proj", "query_key_value", "qkv_proj"}, {"k_proj"}


def device_of(model: Any) -> torch.device:
    """Return the device for a model's inputs, also if its weights are stored on another one."""
    parts = model.modules() if hasattr(model, "_hf_hook") else ()
    hooks = (getattr(part, "_hf_hook", None) for part in parts)  # accelerate's, outermost first
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    device = next((device for device in devices if device is not None), None)
    return model.device if device is None else torch.device(device)


def is_split(tensor: Any) -> bool:
    """Return True if a tensor is a part of one that is split over processes."""
    distributed: Any = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def mesh_of(module: nn.Module) -> Any:
    """Return the processes over which a module's weights are split, or None if they are whole."""
    part: Any = next(filter(is_split, module.parameters()), None)
    return None if part is None else part.device_mesh


def processes_of(model: nn.Module) -> int:
    """Return over how many processes a model's weights are split, 1 if they are whole."""
    mesh = mesh_of(model)
    return 1 if mesh is None else int(mesh.size())


def require_even(name: str, config: Any, plan: Mapping[str, str], number: int) -> None:
    """Raise UnsupportedError if a plan cannot split the heads of a model evenly over processes."""
    splits = {rule.rpartition(".")[2] for rule, way in plan.items() if way == "colwise"}
    heads = getattr(config, "num_attention_heads", number)
    shared = getattr(config, "num_key_value_heads", None) or heads
    for count, noun, maps in ((heads, "heads", _QUERIES), (shared, "key/value heads", _KEYS)):
        if isinstance(count, int) and not splits.isdisjoint(maps) and count % number:
            raise UnsupportedError(
                f"{name!r} has {count} {noun}, which cannot be split evenly over {number} "
                "processes: take another number of them, or --device auto"
            )


def require_one_process(model: nn.Module) -> None:
    """Raise UnsupportedError if the weights of a model that computes attention itself are split."""
    if mesh_of(model) is not None:
        raise UnsupportedError(
            f"{type(model).__name__} computes attention by itself: its heads cannot be put "
            "together from several processes; load it whole, in one process"
        )


def require_numbers(model: nn.Module) -> None:
    """Raise UnsupportedError if some weights of a model are neither in memory nor on a device."""
    if any(weight.is_meta for weight in model.parameters()):
        raise UnsupportedError(
            f"weights of this {type(model).__name__} wait on disk, and all are read here: load it "
            "without --device auto"
        )


def least(model: nn.Module, number: int | None) -> int | None:
    """Return the smallest of the processes' numbers, so that all of them make the same calls."""
    mesh = mesh_of(model)
    if mesh is None or number is None:
        return number
    from torch import distributed  # loaded if anything is split

    smallest = torch.tensor(number, device=mesh.device_type)
    distributed.all_reduce(smallest, distributed.ReduceOp.MIN, mesh.get_group())
    return int(smallest)


def is_packed(tensor: Any) -> bool:
    """Return True for a tensor of a library's own class, such as one with quantised numbers."""
    known = isinstance(tensor, torch.Tensor) and type(tensor) not in (torch.Tensor, nn.Parameter)
    return known and not is_split(tensor)


def whole_weight(module: nn.Module, name: str = "weight") -> Any:
    """Return a module's whole parameter ``name``, wherever it is stored; None if it has none.

    A split parameter is gathered, one in memory or on disk is read. A quantised layer's packed
    tensor, or method of this name, is no parameter.
    """
    weight: Any = getattr(module, name, None)
    if not hasattr(weight, "is_meta") or is_packed(weight):  # a method is no tensor
        return None
    if is_split(weight):
        with torch.inference_mode(False):  # it may be differentiated later
            return weight.detach().full_tensor()
    if weight is not None and weight.is_meta and hasattr(module, "_hf_hook"):
        from accelerate.utils import align_module_device  # what put it elsewhere

        with torch.inference_mode(False), align_module_device(module):
            return getattr(module, name).detach()
    return weight


@contextmanager
def whole_modules(root: nn.Module) -> Iterator[None]:
    """Let every process run the whole of each module inside this context.

    A module's weights are gathered for its call only. What follows a pass through torch's
    functions, or differentiates it, then meets none of the steps that join the processes' parts.
    """
    with ExitStack() as restored:
        for module in root.modules() if mesh_of(root) is not None else ():
            if not getattr(module, "_is_hooked", False):
                continue
            own = vars(module)
            before = own.get("forward")
            own["forward"] = _whole_forward(module)
            if before is None:
                restored.callback(own.pop, "forward")
            else:
                restored.callback(own.__setitem__, "forward", before)
        yield


def _whole_forward(module: nn.Module) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        parts: dict[str, Any] = {
            name: weight
            for name, weight in module.named_parameters(recurse=False)
            if is_split(weight)
        }
        for name, part in parts.items():
            module._parameters[name] = nn.Parameter(part.full_tensor(), requires_grad=False)
        try:
            plain: Any = type(module).forward
            return plain(module, *args, **kwargs)
        finally:
            module._parameters.update(parts)

    return forward
