"""Tensors that are followed through a pass, and what is known about torch's functions on them.

A followed tensor carries a mark, and is linear in what it was computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

SUMS = {"add", "radd", "sub", "rsub"}
JOINTS = {"cat", "concat", "stack"}
PRODUCTS = {"mul", "rmul", "multiply"}
QUOTIENTS = {"div", "true_divide", "truediv", "divide"}
MATRIX_PRODUCTS = {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d"}
SCORING = {"matmul", "bmm", "baddbmm"}
"""The matrix products whose result may be those of queries and keys."""

MIXING = {"matmul", "rmatmul", "mm", "bmm"}
NORMS = {"layer_norm", "rms_norm"}
ACTIVATIONS = {"gelu", "relu", "silu", "leaky_relu", "hardtanh", "mish"}
OUT_OF_PLACE: Mapping[Any, Any] = {
    Tensor.add_: torch.add,
    Tensor.sub_: torch.sub,
    Tensor.mul_: torch.mul,
    Tensor.div_: torch.div,
}
"""The functions that replace ``a += b`` and its like: they leave a unchanged, as leaves require."""

LINEAR = {
    "broadcast_to",
    *("view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze"),
    *("transpose", "permute", "swapaxes", "movedim", "moveaxis", "t", "T", "mT", "expand"),
    *("expand_as", "repeat", "repeat_interleave", "roll", "flip", "index_select", "gather"),
    *("contiguous", "clone", "to", "type", "type_as", "float", "double", "half", "bfloat16"),
    *("getitem", "narrow", "select", "chunk", "split", "unbind", "neg", "mean", "sum", "dropout"),
    *("view_as_complex", "view_as_real"),
}
"""Functions that are linear in their first argument, for any values of the others."""


class FollowedMark(IntEnum):
    """The state of a tracked tensor: before the residual stream, in it, or computed from it."""

    WRITTEN = 0
    STREAM = 1
    READ = 2


_MARK = "residual_mark"
"""The name of the attribute that holds a tensor's mark."""

Way = Callable[[Callable[..., Any], Any, Any], Any]
CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
LAYER_NORM = ("input", "normalized_shape", "weight", "bias", "eps")
RMS_NORM = ("input", "normalized_shape", "weight", "eps")


def by_head(factor: Tensor) -> Tensor:
    """Return the queries or keys (..., token, dim) of one text as (head, token, dim)."""
    return factor.flatten(0, -3)


def plainly(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def divided(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return func(args[0], *held(args[1:]), **held(kwargs))


def by_ratio(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x = args[0]
    result = func(*held(args), **held(kwargs))
    return x * torch.where(x == 0, 0, result / x).detach()


def is_followed(one: Any) -> bool:
    return isinstance(one, Tensor) and hasattr(one, _MARK)


def mark_of(one: Any) -> FollowedMark:
    found: FollowedMark = getattr(one, _MARK)
    return found


def followed(one: Any, mark: FollowedMark) -> Any:
    """Return ``one``, marked with its state ``mark`` if it is a tensor that requires a gradient."""
    if isinstance(one, Tensor) and one.requires_grad:
        setattr(one, _MARK, mark)
    return one


def is_in_place(func: Callable[..., Any]) -> bool:
    return func.__name__.endswith("_") and not func.__name__.endswith("__")


def held(given: Any, mark: FollowedMark | None = None) -> Any:
    """Return ``given``, which may be nested, with its tracked tensors detached from the gradient.

    mark: only tensors in this state are detached; None detaches every tracked tensor.
    """

    def hold(one: Any) -> Any:
        ends = is_followed(one) and mark in (None, mark_of(one))
        return one.detach() if ends else one

    return tree_map(hold, given)


def named(names: Collection[str], args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def name_of(func: Callable[..., Any]) -> str:
    """Return a torch function's plain name: ``add`` for ``torch.add``, ``__add__`` and ``add_``."""
    of: Any = func  # reading an attribute calls __get__ of the attribute
    name: str = getattr(func, "__name__", "")
    return (of.__self__.__name__ if name == "__get__" else name).strip("_")
