"""Linear maps of a running model, told by what they compute: a weight may be packed or wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.engine.forward_pass import nearly_equal
from attnviz.errors import UnsupportedError
from attnviz.models.split import is_packed, is_split, whole_weight
from attnviz.models.third_party import running
from attnviz.models.whole import linear_size

_LINEAR = 0.05
"""How far a map may be from linear, relative to its largest output, for quantised inputs."""


@contextmanager
def linear_maps(
    root: nn.Module, enter: Callable[[nn.Module, tuple[Any, ...]], None]
) -> Iterator[None]:
    """Call ``enter`` before each linear map under ``root`` inside this context.

    enter: gets the module and its arguments. A linear map has a weight of two axes, or
        ``is_linear`` holds for it; parts of a wrapped one are left out.
    """
    inside: set[int] = set()
    with ExitStack() as hooks:
        for module in root.modules():
            weight = getattr(module, "weight", None)
            matrix = isinstance(weight, Tensor) and weight.ndim == 2
            if is_linear(module) and id(module) not in inside:
                inside |= {id(part) for part in module.modules() if part is not module}
            elif not matrix or id(module) in inside or isinstance(module, nn.Embedding):
                continue
            hooks.callback(module.register_forward_pre_hook(enter).remove)
        yield


def is_linear(module: nn.Module) -> bool:
    """Return True for a linear layer, also for one that is quantised or wrapped by an adapter."""
    if linear_size(module) is None:
        return False
    return not any(isinstance(part, nn.Embedding) for part in module.modules())


def weight_axis(module: Any) -> int | None:
    """Return the axis of a weight W with the inputs; None unless a trial shows x·W + b."""
    weight, size = whole_weight(module), linear_size(module)
    if is_split(getattr(module, "weight", None)):
        return int(isinstance(module, nn.Linear))
    if size is None or not isinstance(weight, Tensor) or not weight.is_floating_point():
        return None
    x, plain = _trial(size[0], weight), module.forward(weight.new_zeros(1, 1, size[0]))
    for axis in (1, 0) if weight.ndim == 2 else ():
        matrix = weight.movedim(axis, 0)
        if len(matrix) == size[0] and nearly_equal(x @ matrix + plain, module.forward(x)):
            return axis
    return None


def matrix_of(module: Any, like: Tensor, inputs: int = 0) -> Tensor:
    """Return a module's matrix (input, output); UnsupportedError if it is not linear."""
    matrix: Tensor
    if (axis := weight_axis(module)) is not None:
        matrix = whole_weight(module).movedim(axis, 0)
        return matrix
    inputs, _ = linear_size(module) or (inputs, 0)
    shift = module.forward(like.new_zeros(1, 1, inputs))[0]
    matrix = module.forward(torch.eye(inputs).to(like)[None])[0] - shift
    x = _trial(inputs, like)
    found, expected = (x @ matrix)[0], module.forward(x)[0] - shift
    if not bool((found - expected).abs().max() <= _LINEAR * expected.abs().max()):
        raise UnsupportedError(
            f"a {type(module).__module__}.{type(module).__name__} multiplies by no matrix: load "
            "the model without quantisation, or merge its adapter (merge_and_unload)"
        )
    return matrix


def packed_layers(root: nn.Module) -> str:
    """Return words for an error that name a layer of another library; empty if there is none."""
    module = next(_foreign(root), None)
    if module is None:
        return ""
    weight = getattr(module, "weight", None)
    kind = type(weight if is_packed(weight) else module)
    return (
        f" (it has {kind.__module__}.{kind.__name__} layers: merge its adapter with "
        "merge_and_unload, or load it without quantisation)"
    )


def require_rows_apart(root: Any) -> None:
    """Raise UnsupportedError if a linear layer quantises a text's tokens together, as tried."""
    for module in _foreign(root):
        kind, (inputs, _) = type(module), linear_size(module) or (0, 0)
        device = next(iter(module.parameters()), root).device
        x = _trial(inputs, torch.empty(0, dtype=root.dtype, device=device))
        with torch.no_grad(), running(root):
            alone, beside = module.forward(x), module.forward(torch.cat([x, 64 * x], 1))
        if not nearly_equal(beside[:, :3], alone):
            raise UnsupportedError(
                f"{kind.__module__}.{kind.__name__} layers quantise the tokens of a text "
                f"together, so that each token of this {type(root).__name__} depends on all: "
                "what one head does cannot be told; load the model without quantisation"
            )


def _foreign(root: nn.Module) -> Iterator[Any]:
    """Yield the linear layers of other libraries, or with a weight of another library's class."""
    for module in filter(is_linear, root.modules()):
        own = type(module).__module__.startswith(("torch.nn.", "transformers."))
        weight = getattr(module, "weight", None)
        if not own or is_packed(weight):
            yield module


def _trial(inputs: int, like: Tensor) -> Tensor:
    """Return three rows of numbers between −1 and 1: (1, 3, inputs)."""
    return torch.arange(3.0 * inputs).sin().view(1, 3, inputs).to(like)
