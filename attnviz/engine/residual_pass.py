"""A forward pass that is linear in what is written to the residual stream.

Everything beside the stream is held at its value in this run: what reads from it, the scale of each
norm, the weights of attention. What enters the stream is a leaf of torch's graph, and a logit is
Σ ⟨∂logit/∂leaf, leaf⟩. No family of models is known here; a tensor is followed from where it was
written, function by function:

- a sum makes a leaf of each summand that is not followed: a feed-forward network's output, a bias;
- a matrix product within a block reads, and ends the way, if it sums over the stream's width; what
  mixes several streams does not, and neither does what reads a head's output;
- of two followed factors, and of a divisor, none is followed: they are scales;
- a norm keeps its scale, and so does an activation behind the blocks: it is its input times a ratio
  (Bach et al. 2015, "On Pixel-Wise Explanations", section 2.3); a soft-capping of logits is undone;
- no other function is followed. A way that is lost so leaves its leaves without a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from attnviz.engine.attribution import PartKind
from attnviz.engine.hook_points import HookPoint, Intervention, LostTrackError, hooked
from attnviz.engine.patchable import PatchableModel

_SUMS = {"add", "radd", "sub", "rsub"}
_JOINTS = {"cat", "concat", "stack"}
_PRODUCTS = {"mul", "rmul", "multiply"}
_QUOTIENTS = {"div", "true_divide", "truediv", "divide"}
_MATRIX_PRODUCTS = {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d"}
_MIXING = {"matmul", "rmatmul", "mm", "bmm"}
_NORMS = {"layer_norm", "rms_norm"}
_ACTIVATIONS = {"gelu", "relu", "silu", "leaky_relu", "hardtanh", "mish"}
_OUT_OF_PLACE: Mapping[Any, Any] = {
    Tensor.add_: torch.add,
    Tensor.sub_: torch.sub,
    Tensor.mul_: torch.mul,
    Tensor.div_: torch.div,
}
"""What ``a += b`` and its like are computed by, for a leaf cannot change; a stays as it was."""

_LINEAR = {
    *("view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze"),
    *(
        "transpose",
        "permute",
        "swapaxes",
        "movedim",
        "moveaxis",
        "t",
        "T",
        "mT",
        "expand",
        "expand_as",
    ),
    *("contiguous", "clone", "to", "type", "type_as", "float", "double", "half", "bfloat16"),
    *("getitem", "narrow", "select", "chunk", "split", "unbind", "index_select", "gather"),
    *("repeat", "repeat_interleave", "roll", "flip", "neg", "mean", "sum", "dropout"),
}
"""Functions that are linear in their first argument, whatever the others are."""


@dataclass(eq=False)
class Leaf:
    """Something that enters the stream.

    value: of any layout, over one text.
    layer: None outside the blocks.
    point: of heads, the number of their attention call; the value is then (1, token, head, dim).
    """

    kind: PartKind
    value: Tensor
    layer: int | None
    point: int | None = None


class ResidualPass(TorchFunctionMode):
    """Follows one pass of a borrowed model over one text.

    leaves: in the order in which they enter the stream.
    squeezed: what the logits' soft-capping was given in place of which they stay as they are; None
        without one.
    """

    def __init__(self, model: PatchableModel, watch: Intervention) -> None:
        super().__init__()
        self._model = model
        self._watch = watch
        self._depth = 0
        self._layer: int | None = None
        self._width: int | None = None
        self._opened = 0
        self._unembedded = self._encoding = False
        self.leaves: list[Leaf] = []
        self.squeezed: Tensor | None = None

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the pass that runs while this is open; ``watch`` is told of each head's output."""
        root, points = self._model.root, self._model.hook_points
        encoder: Any = None
        with ExitStack() as hooks:
            if any(point.kind == "encoder" for point in points.found):
                find: Any = root.get_encoder
                encoder = find()
                hooks.enter_context(_around(encoder, self._enter_encoder, self._leave_encoder))
            for number, block in _outermost_entries(root, encoder):
                hooks.enter_context(_around(block, self._entering(number), self._leave_block))
            if self._model.head is not None:
                hooks.enter_context(_around(self._model.head, _nothing, self._leave_head))
            hooks.enter_context(points.intervening(self))
            hooks.enter_context(torch.no_grad())
            hooks.enter_context(self)
            yield

    def edit(self, number: int, point: HookPoint, outputs: Tensor) -> Tensor:
        """A leaf in place of the heads' outputs (1, token, head, dim)."""
        self._watch.edit(number, point, outputs)
        if self._encoding:
            return outputs
        # A head's point knows the layer better than the block's place in its list.
        for leaf in self.leaves[self._opened :]:
            leaf.layer = point.layer
        self._layer, self._opened = point.layer, len(self.leaves) + 1
        found: Tensor = self._leaf("head", outputs, in_stream=False, point=number)
        return found

    def _leaf(
        self, kind: PartKind, value: Tensor, *, in_stream: bool, point: int | None = None
    ) -> Any:
        leaf = value.detach().clone().requires_grad_()
        inside = self._depth > 0 or kind == "mlp"
        self.leaves.append(Leaf(kind, leaf, self._layer if inside else None, point))
        return _followed(leaf, in_stream)

    # Where the pass is -----------------------------------------------------------------------

    def _enter_encoder(self, *call: Any) -> None:
        self._encoding = True

    def _leave_encoder(self, *call: Any) -> None:
        self._encoding = False

    def _entering(self, number: int) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            self._width = args[0].shape[-1] if args and isinstance(args[0], Tensor) else None
            self._depth += 1
            self._layer = number
            self._opened = len(self.leaves)

        return enter

    def _leave_block(self, *call: Any) -> None:
        self._depth -= 1

    def _leave_head(self, *call: Any) -> None:
        self._unembedded = True

    # What is followed ------------------------------------------------------------------------

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        found = [one for one in tree_leaves((args, kwargs)) if _is_followed(one)]
        name = _name(func)
        if not found:
            result = func(*args, **kwargs)
            starts = name == "embedding" and self._layer is None and not self._encoding
            return self._leaf("embedding", result, in_stream=True) if starts else result
        in_stream = any(getattr(one, _IN_STREAM) for one in found)
        way = self._way(name, any(one is args[0] for one in found) if args else False, found)
        if way is None:
            if _is_in_place(func) and any(one is args[0] for one in found):
                raise LostTrackError(f"the residual stream is changed in place by {name}")
            return func(*_held(args), **_held(kwargs))
        with torch.enable_grad():
            result = way(_OUT_OF_PLACE.get(func, func), args, kwargs)
        return tree_map(lambda one: _followed(one, in_stream), result)

    def _way(self, name: str, first: bool, found: list[Any]) -> _Way | None:
        """How to compute a function whose result is followed; None where it is not.

        first: whether the first argument is among the ``found`` that are followed.
        """
        reads = self._depth > 0 and any(getattr(one, _IN_STREAM) for one in found)
        if name in _MATRIX_PRODUCTS:
            own = {"addmm": self._biased, "baddbmm": self._biased}
            own |= {"linear": self._linear, "conv1d": self._linear}
            summed = found[0].shape[-1 if first or found[0].ndim == 1 else -2]
            mixes = name in _MIXING and self._width not in (None, summed)
            return None if (reads and not mixes) or len(found) > 1 else own.get(name, _plainly)
        if name in _SUMS:
            return self._sum
        if name in _JOINTS:
            return self._join
        if name in _PRODUCTS:
            return _plainly if len(found) == 1 else None
        if name == "setitem":
            return self._set
        if not first:
            return None
        if name in _LINEAR:
            return _plainly
        if name in _QUOTIENTS:
            return _divided
        if name in _NORMS:
            return self._norm
        if name == "tanh" and self._unembedded:
            return self._uncapped
        # What half precision keeps from overflowing is bounded in the stream itself.
        return _by_ratio if name == "clamp" or (name in _ACTIVATIONS and not reads) else None

    def _summand(self, value: Any, like: Tensor, shape: torch.Size) -> Any:
        """What is added, as a leaf of this shape if it is not followed."""
        if _is_followed(value) or (not isinstance(value, Tensor) and value == 0):
            return value
        added = torch.as_tensor(value, dtype=like.dtype, device=like.device)
        whole = added.shape == shape and not isinstance(value, nn.Parameter)
        kind: PartKind = "mlp" if whole else "bias"
        return self._leaf(
            "embedding" if self._layer is None else kind, added.expand(shape), in_stream=False
        )

    def _sum(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        both = args if len(args) > 1 else (*args, kwargs["other"])
        like = next(one for one in both if _is_followed(one))
        shape = func(*_held(args), **_held(kwargs)).shape
        more = {name: value for name, value in kwargs.items() if name != "other"}
        return func(*(self._summand(one, like, shape) for one in both[:2]), *both[2:], **more)

    def _join(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        parts = args[0] if args else kwargs["tensors"]
        like = next(one for one in parts if _is_followed(one))
        joined = [self._summand(one, like, one.shape) for one in parts]
        return func(joined, *args[1:], **{k: v for k, v in kwargs.items() if k != "tensors"})

    def _set(self, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        whole, places, value = args
        if not _is_followed(whole) and bool(whole.any()):
            raise LostTrackError("the residual stream is written over something else")
        like = whole if _is_followed(whole) else value
        func(whole, places, self._summand(value, like, whole[places].shape))
        _followed(whole, any(getattr(one, _IN_STREAM, False) for one in (whole, value)))

    def _linear(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
        """``linear`` and ``conv1d``."""
        given = _named(_CONVOLUTION, args, kwargs)
        bias = given.pop("bias", None)
        if bias is not None and func is not functional.linear:
            bias = bias[:, None]  # (channel, token)
        return self._shifted(func(**given), bias)

    def _biased(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
        """``addmm`` and ``baddbmm``."""
        product = args[1] @ args[2] * kwargs.get("alpha", 1)
        return self._shifted(product, args[0] * kwargs.get("beta", 1))

    def _norm(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
        centred = func is functional.layer_norm
        given = _named(_LAYER_NORM if centred else _RMS_NORM, args, kwargs)
        x = given["input"]
        wide = x if x.dtype == torch.float64 else x.float()
        axes = tuple(range(-len(given["normalized_shape"]), 0))
        if centred:
            wide = wide - wide.mean(axes, keepdim=True)
        eps = given.get("eps", 1e-5 if centred else None)
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        scale = wide.detach().square().mean(axes, keepdim=True).add(eps).rsqrt()
        result = (wide * scale).to(x.dtype)
        weight = given.get("weight")
        return self._shifted(result if weight is None else result * weight, given.get("bias"))

    def _shifted(self, product: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return product
        leaf: Tensor = self._summand(bias, product, product.shape)
        return product + leaf

    def _uncapped(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.squeezed = args[0].detach()
        return args[0]


_IN_STREAM = "in_residual_stream"
"""The mark of a followed tensor: whether it is the stream itself, or only on its way there."""

_Way = Callable[[Callable[..., Any], Any, Any], Any]
_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_LAYER_NORM = ("input", "normalized_shape", "weight", "bias", "eps")
_RMS_NORM = ("input", "normalized_shape", "weight", "eps")


def _plainly(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _divided(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return func(args[0], *_held(args[1:]), **_held(kwargs))


def _by_ratio(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x = args[0]
    result = func(*_held(args), **_held(kwargs))
    return x * torch.where(x == 0, 0, result / x).detach()


def _is_followed(one: Any) -> bool:
    return isinstance(one, Tensor) and hasattr(one, _IN_STREAM)


def _followed(one: Any, in_stream: bool) -> Any:
    """Mark a tensor as one that is followed."""
    if isinstance(one, Tensor) and one.requires_grad:
        setattr(one, _IN_STREAM, in_stream)
    return one


def _is_in_place(func: Callable[..., Any]) -> bool:
    return func.__name__.endswith("_") and not func.__name__.endswith("__")


def _held(given: Any) -> Any:
    return tree_map(lambda one: one.detach() if _is_followed(one) else one, given)


def _named(names: Collection[str], args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def _name(func: Callable[..., Any]) -> str:
    """``add`` for ``torch.add``, ``Tensor.__add__`` and ``Tensor.add_``."""
    of: Any = func  # the reading of an attribute is a method of the attribute
    name: str = getattr(func, "__name__", "")
    return (of.__self__.__name__ if name == "__get__" else name).strip("_")


def _nothing(*call: Any) -> None:
    """A hook that does nothing."""


@contextmanager
def _around(
    module: nn.Module, enter: Callable[..., None], leave: Callable[..., None]
) -> Iterator[None]:
    """Hook these before and behind ``module``."""
    with (
        hooked(module.register_forward_pre_hook(enter)),
        hooked(module.register_forward_hook(leave)),
    ):
        yield


def _outermost_entries(
    module: nn.Module, left_out: nn.Module | None
) -> Iterator[tuple[int, nn.Module]]:
    """Each entry of a ``ModuleList`` that is within no other, with its place."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from enumerate(child)
        elif child is not left_out:
            yield from _outermost_entries(child, left_out)
