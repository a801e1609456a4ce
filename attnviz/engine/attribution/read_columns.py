"""Products with a weight, of which only those columns are computed that are read.

One head reads few of the columns of a projection that is shared by all heads and both sides. On a
GPU a whole product takes less time than the wait for which columns these are, so all are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from attnviz.engine.hook_points import Function, FunctionWatch, named


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x Wᵀ, whose first and second derivatives leave out rows and columns of zeros.

    x: (..., in). weight: (out, in). The second derivative takes a zero in the first's slope as zero
    for every slope: take random numbers as the slope where the result is read.
    """
    apply: Callable[..., Tensor] = _Product.apply
    return apply(x, weight.detach())


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        apply: Callable[..., Tensor] = _Reversed.apply
        return apply(slopes[0], *ctx.saved_tensors), None


class _Reversed(torch.autograd.Function):
    """The derivative of a product by x, u W; and its own by u."""

    @staticmethod
    def forward(ctx: Any, slope: Tensor, weight: Tensor) -> Tensor:
        flat = _flat(slope)
        ctx.rows, columns = _range(flat, 1), _used(flat, 0)
        weight = weight if len(columns) == len(weight) else weight[columns]
        ctx.save_for_backward(weight, columns)
        ctx.shape = slope.shape
        found = slope.new_zeros(len(flat), weight.shape[1])
        found[ctx.rows] = flat[ctx.rows].index_select(1, columns) @ weight
        return found.view(*slope.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        weight, columns = ctx.saved_tensors
        flat = _flat(slopes[0])[ctx.rows]
        try:
            inner = _range(flat, 0)
        except RuntimeError:  # several slopes at once are not asked where they are zero
            return _among(flat @ weight.mT, ctx.rows, columns, ctx.shape), None
        part = flat[:, inner] @ weight[:, inner].mT
        if part.numel() == ctx.shape.numel():
            return part.view(ctx.shape), None
        found = _flat(part.new_zeros(ctx.shape))
        found[ctx.rows].index_copy_(1, columns, part)
        return found.view(ctx.shape), None


def _among(part: Tensor, rows: slice, columns: Tensor, shape: torch.Size) -> Tensor:
    """Return zeros of a shape around rows and columns of its matrix; both are a stretch of it."""
    first, last = int(columns[0]), int(columns[-1])
    if last - first >= len(columns):
        raise RuntimeError("columns that are read are no stretch of a product")
    beside = first, shape[-1] - 1 - last, rows.start, shape[:-1].numel() - rows.stop
    return functional.pad(part, beside).view(shape)


def _flat(tensor: Tensor) -> Tensor:
    """Return a matrix (row, width), a view if it can be one, of a tensor (..., width)."""
    return tensor.reshape(-1, tensor.shape[-1])


def _used(flat: Tensor, axis: int) -> Tensor:
    """Return where a matrix is not zero along its other axis; on a GPU all, without waiting."""
    if flat.device.type != "cpu":
        return torch.arange(flat.shape[1 - axis], device=flat.device)
    return flat.any(axis).nonzero()[:, 0]


def _range(flat: Tensor, axis: int) -> slice:
    """Return the slice along the other axis of a matrix outside of which all is zero."""
    if flat.device.type != "cpu":
        return slice(0, flat.shape[1 - axis])
    used = _used(flat, axis)
    return slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0)


class _Read(NamedTuple):
    """What is read of one product: these rows and columns. shape: of the whole product."""

    shape: torch.Size
    rows: Tensor
    columns: Tensor


class ReadColumns(FunctionWatch):
    """Computes only those rows and columns of each product x Wᵀ that are read; others are zero.

    Until ``learn`` is called, all is computed. Products are matched by their order in the run; one
    whose shape differs from that of the learnt run is computed whole.
    """

    def __init__(self) -> None:
        super().__init__()
        self._whole: list[Tensor] = []
        self._read: list[_Read] | None = None
        self._at = 0

    def learn(self, read: Sequence[Tensor]) -> None:
        """Find the rows and columns of each product that results of the last run depend on."""
        followed = [whole for whole in self._whole if whole.requires_grad]
        # There is none where weights are unpacked for each product.
        if not followed or followed[0].device.type != "cpu":
            return
        slopes = iter(torch.autograd.grad(read, followed, random_like(read), allow_unused=True))
        self._read = []
        for whole in self._whole:
            slope = next(slopes) if whole.requires_grad else torch.ones_like(whole)
            flat = _flat(torch.zeros_like(whole) if slope is None else slope)
            self._read.append(_Read(whole.shape, _used(flat, 1), _used(flat, 0)))

    def __enter__(self) -> ReadColumns:
        self._whole, self._at = [], 0
        enter: Callable[[], None] = super().__enter__
        enter()
        return self

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is functional.linear:
            given = named(("input", "weight", "bias"), args, kwargs)
            x, weight, bias = given["input"], given["weight"], given.get("bias")
        elif func is torch.addmm and len(args) == 3 and not kwargs:
            bias, x, weight = args[0], args[1], args[2].mT
        else:
            return func(*args, **kwargs)
        if self._read is None:
            result = func(*args, **kwargs)
            self._whole.append(result)
            return result
        shape = torch.Size([*x.shape[:-1], len(weight)])
        known = self._read[self._at] if self._at < len(self._read) else None
        self._at += 1
        if known is None or known.shape != shape:
            return func(*args, **kwargs)
        found, rows, columns = x.new_zeros(shape), known.rows, known.columns
        part = functional.linear(_flat(x)[rows], weight[columns])
        _flat(found)[rows[:, None], columns] = part if bias is None else part + bias[columns]
        return found


def random_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return random numbers, the same in each call, of the shapes of tensors."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(one.shape, generator=generator).to(one) for one in tensors]
