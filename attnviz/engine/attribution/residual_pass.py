"""A forward pass that is linear in what is written to the residual stream.

Everything outside of the stream is held at its value in this run: what reads from it, the scale of
each norm, the weights of attention. What enters the stream is a leaf of torch's graph, and a logit
is Σ ⟨∂logit/∂leaf, leaf⟩. No family of models is known here; a tensor is followed from where it was
written, function by function:

- A sum makes a leaf of each summand that is not followed: a feed-forward network's output, a bias.
- A matrix product within a block reads from the stream, and ends the way, if it sums over the
  stream's width. Mixing several streams does not end the way, nor does reading a head's output.
- A product of two followed factors is not followed, nor is a divisor: they are scales.
- A norm keeps its scale. An activation after the blocks does too: it is its input times a ratio
  (Bach et al. 2015, "On Pixel-Wise Explanations", section 2.3). A softcap of logits is undone.
- No other function is followed. Leaves whose way ends there have no gradient.

On request what is read is followed too, up to the queries, keys and values of attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from attnviz.engine.attribution.own_scores import ReachedError, by_head, factors_of
from attnviz.engine.attribution.parts import PartKind
from attnviz.engine.attribution.scores import SIDES
from attnviz.engine.hook_points import (
    Function,
    FunctionWatch,
    HookedCall,
    Intervention,
    name_of,
    named,
)
from attnviz.engine.linear_map import product, random_like
from attnviz.engine.patchable import PatchableModel
from attnviz.engine.patching import ATTENDED, What
from attnviz.engine.replacing import LostTrackError
from attnviz.models.split import is_packed, whole_modules

SUMS = {"add", "radd", "sub", "rsub"}
JOINTS = {"cat", "concat", "stack"}
PRODUCTS = {"mul", "rmul", "multiply"}
QUOTIENTS = {"div", "true_divide", "truediv", "divide"}
MATRIX_PRODUCTS = {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d"}
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


def plainly(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def by_ratio(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x = args[0]
    result = func(*held(args), **held(kwargs))
    return x * torch.where(x == 0, 0, result / x).detach()


def is_followed(argument: Any) -> bool:
    return isinstance(argument, Tensor) and hasattr(argument, _MARK)


def mark_of(tensor: Any) -> FollowedMark:
    return getattr(tensor, _MARK)


def followed(result: Any, mark: FollowedMark) -> Any:
    """Return ``result``, marked with its state if it is a tensor that requires a gradient."""
    if isinstance(result, Tensor) and result.requires_grad:
        setattr(result, _MARK, mark)
    return result


def held(given: Any, mark: FollowedMark | None = None) -> Any:
    """Return ``given``, which may be nested, with tracked tensors detached, or those of a mark."""

    def hold(argument: Any) -> Any:
        ends = is_followed(argument) and mark in (None, mark_of(argument))
        return argument.detach() if ends else argument

    return tree_map(hold, given)


@dataclass(eq=False)
class Leaf:
    """A tensor that enters the residual stream: the output of one part of the model.

    value: of any layout, over the texts of the pass. layer: None outside of the blocks.
    point: for heads the index of their attention call; the value is then (text, token, head, dim).
    """

    kind: PartKind
    value: Tensor
    layer: int | None
    point: int | None = None


class ResidualPass(FunctionWatch):
    """Runs a model over texts of one length and tracks what enters the residual stream.

    watch: its ``edit`` is called with the output of the heads of each attention call.
    reading: True also tracks the queries, keys and values. by_product: True takes queries and keys
        from the product that makes the scores, in a model that shows no attention inputs; values
        are then not tracked.
    last: the attention call at which the pass ends, with ``ReachedError``, as soon as its queries
        and keys are read; None to run to the end. texts: how many there are.
    inside: a module, and the index of one of its calls, whose input is a leaf of its own.
    leaves: the parts that enter the residual stream, in this order. read: the queries, keys and
        values (text, token, head, dim), by attention call and by which of the three.
    squeezed: the input of the logits' softcap, which is skipped; None without one.
    neurons: the index of the leaf of ``inside``; None until it is met.
    by_ratio: whether an activation behind the blocks was replaced by the factor output / input.
    """

    def __init__(
        self,
        model: PatchableModel,
        watch: Intervention,
        *,
        reading: bool = False,
        by_product: bool = False,
        last: int | None = None,
        texts: int = 1,
        inside: tuple[nn.Module, int] | None = None,
    ) -> None:
        super().__init__()
        self._model, self._watch, self._reading = model, watch, reading
        self._by_product, self._last, self._texts = by_product, last, texts
        self._factors: tuple[Tensor, Tensor] | None = None
        self.read: dict[tuple[int, What], Tensor] = {}
        self._depth = 0
        self._layer: int | None = None
        self._width: int | None = None
        self._opened = 0
        self._unembedded = self._encoding = self._in_table = False
        self.leaves: list[Leaf] = []
        self._inside, self._calls = inside, 0
        self.neurons: int | None = None
        self.squeezed: Tensor | None = None
        self.by_ratio = False

    @contextmanager
    def following(self) -> Iterator[None]:
        """Track the pass that runs inside this context."""
        root, points = self._model.root, self._model.hook_points
        encoder: Any = None

        def noting(name: str, value: bool) -> Callable[..., None]:
            return lambda *call: setattr(self, name, value)

        def leave_table(table: nn.Module, args: tuple[Any, ...], output: Tensor) -> Any:
            self._in_table = False  # what a wrapped table sums up is one part
            return None if self._encoding else self._leaf("embedding", output, FollowedMark.STREAM)

        with ExitStack() as hooks:

            def around(module: Any, enter: Callable[..., Any], leave: Callable[..., Any]) -> None:
                hooks.callback(module.register_forward_pre_hook(enter).remove)
                hooks.callback(module.register_forward_hook(leave).remove)

            kinds = {point.kind for point in points.calls}
            if "encoder" in kinds and len(kinds) > 1:  # else the encoder itself is followed
                find: Any = root.get_encoder
                encoder = find()
                around(encoder, noting("_encoding", True), noting("_encoding", False))
            for number, block in _outermost_entries(root, encoder):
                around(block, partial(self._enter_block, number), self._leave_block)
            table: Any = getattr(root, "get_input_embeddings", lambda: None)()
            if isinstance(table, nn.Module) and not isinstance(table, nn.Embedding):
                around(table, noting("_in_table", True), leave_table)
            if self._model.head is not None:
                left = self._model.head.register_forward_hook(noting("_unembedded", True))
                hooks.callback(left.remove)
            if self._inside is not None:
                entered = self._inside[0].register_forward_pre_hook(self._enter_inside)
                hooks.callback(entered.remove)
            inside = ATTENDED if self._reading and not self._by_product else ()
            hooks.enter_context(points.intervening(self, inside=inside))
            hooks.enter_context(whole_modules(root))
            hooks.enter_context(torch.no_grad())
            hooks.enter_context(self)
            yield

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        """Return a call's outputs (text, token, head, dim) as a differentiable leaf."""
        if point.sort != "output":
            self.read[number, point.sort] = outputs
            self._end_at(number)
            return outputs.detach()
        if self._factors is not None:
            query, key = self._factors
            self._factors = None
            for side, factor in zip(SIDES, (by_head(query), by_head(key)), strict=True):
                if len(factor) % self._texts == 0:
                    by_text = factor.unflatten(0, (self._texts, -1))
                    self.read[number, side] = by_text.transpose(1, 2)
            self._end_at(number)
        self._watch.edit(number, point, outputs)
        if self._encoding:
            return outputs
        # A head's hook point knows the layer better than the block's place in its list.
        for leaf in self.leaves[self._opened :]:
            leaf.layer = point.layer
        self._layer, self._opened = point.layer, len(self.leaves) + 1
        return self._leaf("head", outputs, FollowedMark.WRITTEN, point=number)

    def _end_at(self, number: int) -> None:
        """End the pass if this is its last attention call, and its queries and keys are read."""
        if number == self._last and all((number, side) in self.read for side in SIDES):
            raise ReachedError

    def _leaf(
        self, kind: PartKind, value: Tensor, mark: FollowedMark, *, point: int | None = None
    ) -> Any:
        shared = value.ndim == 3 and len(value) == 1 < self._texts  # such as learned positions
        alone = value.expand(self._texts, -1, -1) if shared else value
        leaf = alone.detach().clone().requires_grad_()
        inside = self._depth > 0 or kind == "mlp"
        self.leaves.append(Leaf(kind, leaf, self._layer if inside else None, point))
        return followed(leaf, mark)

    # Where the pass is -----------------------------------------------------------------------

    def _enter_block(self, number: int, block: nn.Module, args: tuple[Any, ...]) -> None:
        self._width = args[0].shape[-1] if args and isinstance(args[0], Tensor) else None
        self._depth += 1
        self._layer, self._opened = number, len(self.leaves)

    def _leave_block(self, *call: Any) -> None:
        self._depth -= 1

    def _enter_inside(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        assert self._inside is not None
        self._calls += 1
        if self._calls - 1 != self._inside[1] or self._encoding:
            return None
        self.neurons = len(self.leaves)
        return (self._leaf("mlp", args[0], FollowedMark.WRITTEN), *args[1:])

    # What is followed ------------------------------------------------------------------------

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is Tensor.requires_grad_:  # as hooks for training call it: no number changes
            return func(*args, **kwargs)
        given = tree_leaves((args, kwargs))
        tracked = [argument for argument in given if is_followed(argument)]
        marks = {mark_of(tensor) for tensor in tracked}
        name, written = name_of(func), getattr(func, "__name__", "")
        in_place = written.endswith("_") and not written.endswith("__")
        first = bool(args) and any(tensor is args[0] for tensor in tracked)
        if func is Tensor.copy_ and is_followed(args[1]) and mark_of(args[1]) == FollowedMark.READ:
            return self._copy(*args)
        if FollowedMark.READ in marks and (len(marks) > 1 or in_place):
            # A tensor that was read may be added to the stream again; from there on it is a part.
            return self.call(func, *held((args, kwargs), FollowedMark.READ))
        if not tracked:
            result = func(*args, **kwargs)
            starts = name == "embedding" and self._layer is None
            starts = starts and not self._encoding and not self._in_table
            return self._leaf("embedding", result, FollowedMark.STREAM) if starts else result
        reads = self._depth > 0 and FollowedMark.STREAM in marks
        if reads and name in MIXING:  # over another axis than the width it mixes several streams
            summed = tracked[0].shape[-1 if first or tracked[0].ndim == 1 else -2]
            reads = self._width in (None, summed)
        if self._by_product and marks == {FollowedMark.READ}:
            with torch.enable_grad():
                factors = factors_of(func, args, kwargs)
            if factors is not None and all(factor.requires_grad for factor in factors):
                query, key = (followed(factor, FollowedMark.READ) for factor in factors)
                self._factors = query, key
        way = self._way(name, first, len(tracked) == 1, reads or FollowedMark.READ in marks)
        if any(map(is_packed, given)):
            way = None  # such a weight does not know every function that follows it
        if way is None or (reads and name in MATRIX_PRODUCTS and not self._reading):
            if first and in_place:
                raise LostTrackError(f"the residual stream is changed in place by {name}")
            return func(*held(args), **held(kwargs))
        mark = FollowedMark.READ if reads and name in MATRIX_PRODUCTS else max(marks)
        with torch.enable_grad():
            result = way(OUT_OF_PLACE.get(func, func), args, kwargs)
        return tree_map(lambda tensor: followed(tensor, mark), result)

    def _way(self, name: str, first: bool, alone: bool, reads: bool) -> Way | None:
        """Return what computes a function with a tracked result; None if it is not tracked.

        first, alone: whether the first argument is tracked, and whether a single argument is.
        """
        if name in MATRIX_PRODUCTS:
            own = {"addmm": self._biased, "baddbmm": self._biased}
            own |= {"linear": self._linear, "conv1d": self._linear}
            adds = first and name in ("addmm", "baddbmm")  # the followed tensor is added to
            return own.get(name, plainly) if alone and not adds else None
        if name in SUMS:
            return self._sum
        if name in JOINTS:
            return self._join
        if name in PRODUCTS:
            return plainly if alone else None
        if name == "setitem":
            return self._set
        if not first:
            return None
        if name in LINEAR:
            return plainly
        if name in QUOTIENTS:
            return lambda func, args, kwargs: func(args[0], *held(args[1:]), **held(kwargs))
        if name in NORMS:
            return self._norm
        if name == "tanh" and self._unembedded:
            return self._uncapped
        if name == "clamp":  # half precision clamps the stream itself against overflow
            return by_ratio
        pooler = name == "tanh" and bool(self._model.labels)  # elsewhere it is a part of a gelu
        if (name in ACTIVATIONS or pooler) and not reads:
            self.by_ratio = True
            return by_ratio
        return None

    def _summand(self, value: Any, like: Tensor, shape: torch.Size) -> Any:
        """Return a summand of the residual stream; if it is not tracked yet, it becomes a leaf."""
        if is_followed(value) or (not isinstance(value, Tensor) and value == 0):
            return value
        added = torch.as_tensor(value, dtype=like.dtype, device=like.device)
        whole = added.shape == shape and not isinstance(value, nn.Parameter)
        kind: PartKind = "embedding" if self._layer is None else "mlp" if whole else "bias"
        return self._leaf(kind, added.expand(shape), FollowedMark.WRITTEN)

    def _sum(self, func: Function, args: Any, kwargs: Any) -> Any:
        both = args if len(args) > 1 else (*args, kwargs["other"])
        like = next(filter(is_followed, both))
        shape = func(*held(args), **held(kwargs)).shape
        more = {name: value for name, value in kwargs.items() if name != "other"}
        return func(*(self._summand(term, like, shape) for term in both[:2]), *both[2:], **more)

    def _join(self, func: Function, args: Any, kwargs: Any) -> Any:
        parts = args[0] if args else kwargs["tensors"]
        like = next(filter(is_followed, parts))
        joined = [self._summand(part, like, part.shape) for part in parts]
        return func(joined, *args[1:], **{k: v for k, v in kwargs.items() if k != "tensors"})

    def _set(self, func: Function, args: Any, kwargs: Any) -> None:
        whole, places, value = args
        if not is_followed(whole) and bool(whole.any()):
            raise LostTrackError("the residual stream is written over something else")
        like = whole if is_followed(whole) else value
        func(whole, places, self._summand(value, like, whole[places].shape))
        followed(whole, max(map(mark_of, filter(is_followed, (whole, value)))))

    def _copy(self, places: Tensor, value: Tensor) -> Tensor:
        """Copy a tensor that was read into a view of another, which is tracked from here on."""
        if places._base is None:
            return places.copy_(value.detach())
        with torch.enable_grad():
            shape = places.size(), places.stride(), places.storage_offset()
            places._base.as_strided(*shape).copy_(value)
        followed(places._base, FollowedMark.READ)
        return places

    def _linear(self, func: Function, args: Any, kwargs: Any) -> Tensor:
        given = named(CONVOLUTION, args, kwargs)
        bias = given.pop("bias", None)
        if func is functional.linear:
            return self._shifted(product(given["input"], given["weight"]), bias)
        return self._shifted(func(**given), bias if bias is None else bias[:, None])  # by channel

    def _biased(self, func: Function, args: Any, kwargs: Any) -> Tensor:
        x, weight = args[1:3]
        whole = product(x, weight.mT) if weight.ndim == 2 else x @ weight
        return self._shifted(whole * kwargs.get("alpha", 1), args[0] * kwargs.get("beta", 1))

    def _norm(self, func: Function, args: Any, kwargs: Any) -> Tensor:
        centred = func is functional.layer_norm
        given = named(LAYER_NORM if centred else RMS_NORM, args, kwargs)
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

    def _uncapped(self, func: Function, args: Any, kwargs: Any) -> Any:
        self.squeezed = args[0].detach()
        return args[0]


def head_alone(value: Tensor, head: int) -> Tensor:
    """Return a leaf's value (text, token, head, dim) with zeros for all heads but one."""
    return heads_alone(value, [head])[0]


def heads_alone(value: Tensor, heads: Sequence[int]) -> Tensor:
    """Return a leaf (heads, text, token, head, dim) for each of some heads, zero for the others."""
    alone = value.new_zeros(len(heads), *value.shape)
    for at, head in enumerate(heads):
        alone[at, :, :, head] = value[:, :, head]
    return alone


class Jacobian:
    """Computes J Δz: the change of queries, keys and values for changes Δz of a pass's leaves z.

    Autograd gives the products u J, linear in u; their derivative by u, times Δz, is J Δz.
    numbers: how many the first observed tensor has.
    """

    def __init__(self, read: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
        self._probes = [probe.requires_grad_() for probe in random_like(read)]
        self.numbers = self._probes[0].numel()
        with torch.enable_grad():
            self._products = torch.autograd.grad(
                read, leaves, self._probes, create_graph=True, allow_unused=True
            )

    def leads(self, leaf: int) -> bool:
        """Return True if a tracked query, key or value depends on the leaf with this index."""
        slope = self._products[leaf]
        return slope is not None and slope.numel() > 0  # XLM's keys of earlier calls are empty

    def moved(self, change: Mapping[int, Tensor]) -> Sequence[Tensor | None]:
        """Return J Δz of each observed tensor, or None; ``change`` has Δz by leaf's index."""
        chosen = [at for at in change if self.leads(at)]
        return torch.autograd.grad(
            [self._products[at] for at in chosen],
            self._probes,
            [change[at] for at in chosen],
            allow_unused=True,
            retain_graph=True,
        )

    def moved_each(self, leaf: int, changes: Tensor) -> Tensor:
        """Return J Δz of the first observed tensor for several Δz of one leaf, (change, ...).

        All at once, or one by one where torch knows no product of several for some function.
        """
        options: dict[str, Any] = {"allow_unused": True, "retain_graph": True}
        with suppress(RuntimeError):
            if len(changes) > 1:
                products, options["is_grads_batched"] = self._products[leaf], True
                return torch.autograd.grad(products, self._probes, changes, **options)[0]
        moved = [self.moved({leaf: change})[0] for change in changes]
        return torch.stack([change for change in moved if change is not None])


def _outermost_entries(
    module: nn.Module, left_out: nn.Module | None
) -> Iterator[tuple[int, nn.Module]]:
    """Yield (index, module) of each entry of the outermost ``ModuleList``s but ``left_out``."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from enumerate(child)
        elif child is not left_out:
            yield from _outermost_entries(child, left_out)
