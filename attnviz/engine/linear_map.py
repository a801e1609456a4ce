"""Linear maps of a running model: told by what they compute, and products with their matrices.

A weight may be packed or wrapped, so that a trial says what a module computes. A GPU multiplies
halves many times as fast as float32; a processor skips what is read of no product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnviz.engine.forward_pass import nearly_equal
from attnviz.engine.hook_points import Function, FunctionWatch, hooked, named
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
    inside, maps = set[nn.Module](), list[nn.Module]()
    for module in root.modules():
        weight = getattr(module, "weight", None)
        matrix = isinstance(weight, Tensor) and weight.ndim == 2
        if is_linear(module) and module not in inside:
            inside |= {part for part in module.modules() if part is not module}
        elif not matrix or module in inside or isinstance(module, nn.Embedding):
            continue
        maps.append(module)
    with hooked(*(module.register_forward_pre_hook(enter) for module in maps)):
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
    product, expected = (x @ matrix)[0], module.forward(x)[0] - shift
    if not bool((product - expected).abs().max() <= _LINEAR * expected.abs().max()):
        raise UnsupportedError(
            f"a {type(module).__module__}.{type(module).__name__} multiplies by no matrix: load "
            "the model without quantisation, or merge its adapter (merge_and_unload)"
        )
    return matrix


def packed_layers(root: nn.Module) -> str:
    """Return words for an error that name a layer of another library; empty if there is none."""
    for module in _foreign(root):
        weight = getattr(module, "weight", None)
        kind = type(weight if is_packed(weight) else module)
        return (
            f" (it has {kind.__module__}.{kind.__name__} layers: merge its adapter with "
            "merge_and_unload, or load it without quantisation)"
        )
    return ""


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
        if not own or is_packed(getattr(module, "weight", None)):
            yield module


def _trial(inputs: int, like: Tensor) -> Tensor:
    """Return three rows of numbers between −1 and 1: (1, 3, inputs)."""
    return torch.arange(3.0 * inputs).sin().view(1, 3, inputs).to(like)


# Products with a matrix in half precision ---------------------------------------------------------


@cache
def sums_halves(device: str, dtype: torch.dtype) -> bool:
    """Return True if torch can multiply matrices of ``dtype`` on ``device`` and sum in float32."""
    if device == "cpu" or dtype not in (torch.float16, torch.bfloat16):
        return False
    ones = torch.ones(16, 16, device=device, dtype=dtype)
    try:
        return summed(ones, ones).dtype == torch.float32
    except (TypeError, RuntimeError):  # NotImplementedError is one
        return False


def summed(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return rows · matrixᵀ in float32; rows and matrix have the same half-precision type."""
    return torch.mm(rows, matrix.T, out_dtype=torch.float32)


class Halves:
    """Rows (row, width) as sums of halves; float16 has few exponents, so that each row is scaled.

    dtype: of the halves. Rows that have it already are a single part.
    """

    def __init__(self, rows: Tensor, dtype: torch.dtype) -> None:
        self._exponent: Tensor | None = None
        rows = rows if rows.dtype == dtype else rows.float()
        if rows.dtype != dtype == torch.float16:
            exponent = torch.frexp(rows.abs().amax(-1, keepdim=True)).exponent.clamp(-120, 120)
            self._exponent, rows = exponent, torch.ldexp(rows, -exponent)
        self._high = rows.to(dtype)
        self._low = None if rows.dtype == dtype else (rows - self._high.to(rows.dtype)).to(dtype)

    def times(self, matrix: Tensor) -> Tensor:
        """Return the rows times a matrix of halves (word, width), (row, word) in float32."""
        products = summed(self._high, matrix)
        if self._low is not None:
            products += summed(self._low, matrix)
        return products if self._exponent is None else products.ldexp_(self._exponent)


# Products of which few columns are read -----------------------------------------------------------


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
        by_x = slope.new_zeros(len(flat), weight.shape[1])
        by_x[ctx.rows] = flat[ctx.rows].index_select(1, columns) @ weight
        return by_x.view(*slope.shape[:-1], -1)

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
        whole = _flat(part.new_zeros(ctx.shape))
        whole[ctx.rows].index_copy_(1, columns, part)
        return whole.view(ctx.shape), None


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
        whole, rows, columns = x.new_zeros(shape), known.rows, known.columns
        part = functional.linear(_flat(x)[rows], weight[columns])
        _flat(whole)[rows[:, None], columns] = part if bias is None else part + bias[columns]
        return whole


def random_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return random numbers, the same in each call, of the shapes of tensors."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(like.shape, generator=generator).to(like) for like in tensors]
