"""Hook points: the places in a running model where its heads' outputs can be read and changed.

There is one for each attention call. A head's output z_h is the attention-weighted sum of its
values, before any gate or projection. The calls of the library's own attention are found here;
``transformers_points`` finds those of other models. Each says how tensors inside a call are edited.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from attnviz.attention.functional import combine_masks
from attnviz.attention.module import MultiHeadAttention
from attnviz.engine.observer import to_numpy
from attnviz.engine.patching import ATTENDED, What
from attnviz.engine.replacing import LostTrackError as LostTrackError
from attnviz.errors import UsageError
from attnviz.records import Floats, Input, Kind


@dataclass(frozen=True)
class HookedCall:
    """One attention call of a pass, and which of its tensors is observed or edited.

    module: where the tensor is. dim: of one head's output. sort: of the tensor; one without
    heads counts as one head.
    """

    kind: Kind
    layer: int
    module: nn.Module
    heads: int
    dim: int
    sort: What = "output"


class Intervention(Protocol):
    """The interface of a function that changes what heads put out while a model runs."""

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        """Return the outputs (batch, token, head, dim) that the model continues with.

        number: of the call in the pass. Outputs may be changed in place; tensors ``inside``, which
        ``point.sort`` names, may not: patterns are (batch, query, head, key).
        """


Function = Callable[..., Any]


def name_of(func: Function) -> str:
    """Return a torch function's plain name: ``add`` for ``torch.add``, ``__add__`` and ``add_``."""
    of: Any = func  # reading an attribute calls __get__ of the attribute
    name: str = getattr(func, "__name__", "")
    return (of.__self__.__name__ if name == "__get__" else name).strip("_")


def named(names: Collection[str], args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a torch function by the names of its parameters."""
    return dict(zip(names, args, strict=False)) | dict(kwargs)


class FunctionWatch(TorchFunctionMode, ABC):
    """Answers every call of a torch function with the method ``call`` while it is active."""

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.call(func, args, kwargs or {})

    @abstractmethod
    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result that replaces that of a torch function, called with args and kwargs."""


Hide = Callable[[HookedCall, int, int], Tensor | None]
"""Returns the hidden keys of a point, given the point and its numbers of queries and keys: a
boolean tensor (head, query, key), or None to hide none."""

NOTHING_LEFT = (
    "a query can attend to no other key than the one that is cut: nothing would be left, choose "
    "another edge"
)


class HookPoints(ABC):
    """All attention calls of a pass of ``root`` in their order, and how to edit or mask them."""

    shows_inputs = True

    def __init__(self, root: nn.Module, calls: Iterable[HookedCall]) -> None:
        self.root, self.calls = root, tuple(calls)

    @contextmanager
    def intervening(
        self, edits: Intervention, order: Sequence[int] | None = None, inside: Collection[What] = ()
    ) -> Iterator[None]:
        """Edit the head outputs of each pass inside this context by the method of ``edits``.

        Open ``borrowed`` first. order: the indices of the attention calls in the order in which
        they run; None means ascending. inside: further tensors of the calls to edit: those of
        ``ATTENDED``, and ``pattern``. Raises UnsupportedError if the model does not show one of
        them.
        """
        counter = CallCounter(self, edits, order)
        with counter.counting(), self.editing(counter, frozenset(inside)):
            yield

    @contextmanager
    def hiding(self, hide: Hide, given: Input) -> Iterator[None]:
        """Hide keys in each pass over ``given`` inside this context, which is inside ``borrowed``.

        hide: returns the hidden keys of an attention call. Their scores become −inf before the
            softmax, which then runs over the other keys.
        Raises UsageError if a query would see no key, UnsupportedError if hiding a key fails.
        """
        counter = CallCounter(self, None)
        with counter.counting(), self.masking(counter, hide, given):
            yield

    @abstractmethod
    def borrowed(self) -> AbstractContextManager[Any]:
        """Make the model ready for runs inside this context, and restore its state on leaving."""

    @abstractmethod
    def editing(self, counter: CallCounter, inside: frozenset[What]) -> AbstractContextManager[Any]:
        """Let ``counter`` edit heads' outputs and tensors ``inside`` calls in this context."""

    @abstractmethod
    def masking(
        self, counter: CallCounter, hide: Hide, given: Input
    ) -> AbstractContextManager[Any]:
        """Hide the keys that ``hide`` returns for each attention call inside this context."""


class HeadOutputs:
    """Records one kind of heads' outputs in ``by_layer``: (head, token, dim) of each layer.

    removed: (layer, head) of heads whose outputs are set to zero after they were recorded.
    """

    def __init__(
        self, kind: Kind, points: HookPoints, removed: Collection[tuple[int, int]] = ()
    ) -> None:
        self._kind, self._points, self._removed = kind, points, removed
        self.by_layer: dict[int, Floats] = {}

    def take(self, kind: Kind, layer: int, outputs: Tensor) -> None:
        """Record the outputs (batch, token, head, dim) of a call; zero removed heads in place."""
        if kind == self._kind:
            self.by_layer[layer] = to_numpy(outputs[0].transpose(0, 1)).copy()
            outputs[:, :, [head for at, head in self._removed if at == layer]] = 0

    def met(self) -> AbstractContextManager[None]:
        """Record the head outputs of every forward pass inside this context."""
        return self._points.intervening(self)

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        """Record the heads' outputs (batch, token, head, dim) of a call, and return them."""
        self.take(point.kind, point.layer, outputs)
        return outputs


@contextmanager
def hooked(*handles: RemovableHandle) -> Iterator[None]:
    """Remove torch hooks on leaving this context. handles: what torch returned on adding them."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class CallCounter:
    """Identifies each attention call of a pass by counting, in an order, and lets it be edited."""

    def __init__(
        self, points: HookPoints, edits: Intervention | None, order: Sequence[int] | None = None
    ) -> None:
        self._root, self._points, self._intervention = points.root, points.calls, edits
        self._order = range(len(points.calls)) if order is None else order
        self._next = 0
        self._taken: tuple[int, HookedCall]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Start the count at zero at the beginning of each pass inside this context."""
        with hooked(self._root.register_forward_pre_hook(lambda *_: setattr(self, "_next", 0))):
            yield

    def edit(self, outputs: Tensor) -> Tensor:
        """Return the edited outputs (batch, token, head, dim) of the call taken last."""
        number, point = self._taken
        if outputs.shape[2:] != (point.heads, point.dim):
            raise LostTrackError(f"attention call {number} has outputs of another shape")
        assert self._intervention is not None
        return self._intervention.edit(number, point, outputs)

    def edit_inside(self, sort: What, tensor: Tensor) -> Tensor:
        """Return another tensor (batch, token, head, dim) of the call taken last, edited."""
        number, point = self._taken
        assert self._intervention is not None
        point = replace(point, sort=sort, heads=tensor.shape[2], dim=tensor.shape[3])
        return self._intervention.edit(number, point, tensor)

    def take(self, module: nn.Module | None) -> tuple[int, HookedCall]:
        """Count a call, return its index and description; LostTrackError for another module."""
        number = self._order[self._next] if self._next < len(self._order) else None
        point = None if number is None else self._points[number]
        if number is None or point is None or module not in (None, point.module):
            raise LostTrackError(
                f"attention call {self._next} is made by another module than in the first pass"
            )
        self._next += 1
        self._taken = number, point
        return number, point


def enclosing_block(root: nn.Module) -> Mapping[int, nn.Module]:
    """Return the nearest entry of a ``ModuleList`` around each module, by the module's ``id``."""
    blocks: dict[int, nn.Module] = {}

    def walk(module: nn.Module, block: nn.Module | None) -> None:
        for child in module.children():
            if block is not None:
                blocks.setdefault(id(child), block)
            walk(child, child if isinstance(module, nn.ModuleList) else block)

    walk(root, None)
    return blocks


def first_of(output: Any) -> Tensor | None:
    """Return a module's output, or its first entry, if that is a tensor; else None."""
    first = output[0] if isinstance(output, tuple | list) and output else output
    return first if isinstance(first, Tensor) else None


def with_first(output: Any, tensor: Tensor) -> Any:
    """Return a module's output with its first tensor replaced by ``tensor``."""
    return (tensor, *output[1:]) if isinstance(output, tuple | list) else tensor


# The library's own attention ----------------------------------------------------------------------


class OwnHookPoints(HookPoints):
    """The calls of ``MultiHeadAttention`` modules under ``root``, each once, in their order."""

    def __init__(self, root: nn.Module) -> None:
        attentions = [own for own in root.modules() if isinstance(own, MultiHeadAttention)]
        super().__init__(
            root,
            (
                HookedCall("self", layer, own, own.shape.heads, own.shape.value_dim)
                for layer, own in enumerate(attentions)
            ),
        )

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        training = [module for module in self.root.modules() if module.training]
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True

    @contextmanager
    def editing(self, counter: CallCounter, inside: frozenset[What]) -> Iterator[None]:
        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            counter.take(module)

        def leave(module: nn.Module, args: tuple[Any, ...], outputs: Tensor) -> Tensor:
            return counter.edit(outputs.transpose(1, 2)).transpose(1, 2)  # (batch, head, token, …)

        def leave_weights(module: nn.Module, args: tuple[Any, ...], weights: Tensor) -> Tensor:
            return counter.edit_inside("pattern", weights.transpose(1, 2)).transpose(1, 2)

        def leave_projection(sort: What, dim: int, *call: Any) -> Tensor:
            merged: Tensor = call[-1]
            by_head = merged.view(*merged.shape[:-1], -1, dim)
            return counter.edit_inside(sort, by_head).flatten(-2)

        with ExitStack() as hooks:
            for point in self.calls:
                attention: Any = point.module
                hooks.callback(attention.register_forward_pre_hook(enter).remove)
                hooks.callback(attention.heads_point.register_forward_hook(leave).remove)
                if "pattern" in inside:
                    handle = attention.weights_point.register_forward_hook(leave_weights)
                    hooks.callback(handle.remove)
                for sort in ATTENDED if not inside.isdisjoint(ATTENDED) else ():
                    projection = attention.get_submodule(f"{sort}_projection")
                    dim = attention.shape.value_dim if sort == "value" else attention.shape.head_dim
                    edit = partial(leave_projection, sort, dim)
                    hooks.callback(projection.register_forward_hook(edit).remove)
            yield

    @contextmanager
    def masking(self, counter: CallCounter, hide: Hide, given: Input) -> Iterator[None]:
        def enter(visible: Tensor, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            return args, {**kwargs, "mask": combine_masks(kwargs.get("mask"), visible)}

        with ExitStack() as hooks:
            for point in self.calls:
                hidden = hide(point, len(given.text), len(given.text))
                if hidden is None:
                    continue
                visible = ~hidden[None]
                if not bool(visible.tril().any(-1).all()):
                    raise UsageError(NOTHING_LEFT)

                hiding = partial(enter, visible)
                entered = point.module.register_forward_pre_hook(hiding, with_kwargs=True)
                hooks.callback(entered.remove)
            yield
