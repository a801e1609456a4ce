"""Observe the attention of any ``nn.Module``, and run the module without some of its heads.

While a module runs, torch passes each of its functions to a ``TorchFunctionMode`` first. Three of
them are attention: ``multi_head_attention_forward``, which ``nn.MultiheadAttention`` and the layers
made of it call (they leave their fast path while such a mode is active);
``scaled_dot_product_attention``; and softmax(Q Kᵀ) V as people write it themselves: a product whose
left side came out of another product and has rows that sum to one. Nothing of the module is
replaced. Its hooks, training flags and the state of the random numbers are put back.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from attnviz.attention.module import HookPoint
from attnviz.engine.head_run import Heads
from attnviz.engine.observer import to_numpy
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.memory import require_room
from attnviz.models.third_party import uncompiled
from attnviz.records import Floats

Module: TypeAlias = nn.Module
"""A module of torch, for the annotations of code that does not import torch."""

_PRODUCTS = ("matmul", "__matmul__", "mm", "bmm", "baddbmm", "einsum")
_PACKED = inspect.signature(functional.multi_head_attention_forward)

_NO_TEXT = re.compile(
    r"mask|bias|cache|(^|_)(pos|position\w*|rot|rotary|rope|freqs?|sin|cos|past|types?|labels?)(_|$)"
    r"|^v$|^values?(_|$)"
)
"""Names of arguments that are not the text which a module attends from or to."""

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_NARROW = 3e-2
"""By how much sums may differ, as a share of the largest number; ``_NARROW`` with 16 bits."""


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """The attention of one call of a module, over one text of its batch.

    name: its path, with a number from the second call on. cross: whether keys are of another input.
    weights: (head, query, key). texts: of the batch. source: the input of the module that attends.
    heads: for each the number of the call and of the head, by which it is removed.
    """

    name: str
    cross: bool
    weights: Floats
    texts: int
    head_dim: int
    source: Tensor | None
    heads: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class ModuleRun:
    """A run of a module: its attention, output and notes, and its arguments that are texts."""

    calls: tuple[ModuleCall, ...]
    output: Any
    notes: tuple[str, ...]
    texts: tuple[Tensor, ...]


def observe_module(
    module: nn.Module, inputs: Sequence[Any], named: Mapping[str, Any], text: int = 0
) -> ModuleRun:
    """Run a module once as after ``eval()``, and return the attention weights of all its heads.

    text: the index in the batch of the text that is kept. Raises UnsupportedError if the module
    calls no attention, or weights and values do not give its output; UsageError for another text.
    """
    module, watch = _plain(module), _Watch(text)
    output = _run(module, inputs, named, watch)
    if not watch.calls:
        raise UnsupportedError(
            f"{type(module).__name__} computes no attention weights that can be read: expected "
            "nn.MultiheadAttention, F.scaled_dot_product_attention or softmax(q @ k.mT) @ v in it"
        )
    if module.training:
        watch.notes["the module is in training mode: it ran as after eval()"] = None
    named_modules = module.named_modules()
    attentions = (name for name, own in named_modules if isinstance(own, nn.MultiheadAttention))
    if unused := ", ".join(name for name in attentions if name not in watch.entered):
        watch.notes[f"not called with these inputs: {unused}"] = None
    texts = tuple(_texts(module, inputs, named))
    return ModuleRun(tuple(_joined(watch.calls, module)), output, tuple(watch.notes), texts)


def run_without(
    module: nn.Module,
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    heads: Heads,
    *,
    mean: bool = False,
) -> Any:
    """Return a module's output with heads at zero, or their mean; UnsupportedError if none."""
    return _run(_plain(module), inputs, named, _Watch(removed=heads, mean=mean))


def _plain(module: nn.Module) -> nn.Module:
    """Return the module inside a compiled or a parallel one, whose functions torch passes on."""
    while isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module = module.module
    module = getattr(module, "_orig_mod", module)
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedError("TorchScript shows no attention: give the module it was made from")
    return module


def _run(module: nn.Module, inputs: Sequence[Any], named: Mapping[str, Any], watch: _Watch) -> Any:
    with _undisturbed(module), ExitStack() as hooks, watch:
        for name, own in module.named_modules():
            if isinstance(own, torch.jit.ScriptModule):  # which takes no hooks
                watch.notes["parts in TorchScript were not looked into"] = None
                continue
            entering = own.register_forward_pre_hook(watch.entering(name), with_kwargs=True)
            hooks.callback(entering.remove)
            hooks.callback(own.register_forward_hook(watch.left, always_call=True).remove)
            if isinstance(own, HookPoint) and name.endswith("weights_point"):
                # whatever the score of the library's own attention is
                hooks.callback(own.register_forward_hook(lambda *run: watch.follow(run[2])).remove)
        return module(*inputs, **named)


@contextmanager
def _undisturbed(module: nn.Module) -> Iterator[None]:
    """Run a block without dropout and gradients; put back flags and random numbers after it."""
    training = {own: own.training for own in module.modules()}
    devices = {part.device for part in (*module.parameters(), *module.buffers())}
    cards = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    with torch.random.fork_rng(cards), torch.no_grad(), uncompiled():
        try:
            for own in training:  # not eval(): a module may do more there, such as merge adapters
                own.training = False
            yield
        finally:
            for own, was in training.items():
                own.training = was


def _joined(calls: Sequence[ModuleCall], module: nn.Module) -> Iterator[ModuleCall]:
    """Yield the calls; modules of one head each, in a list and with one input, are one call."""
    kept: list[ModuleCall] = []
    for call in calls:
        group, before = call.name.rpartition(".")[0], kept[-1] if kept else call
        if (
            len(call.heads) == 1
            and group
            and " " not in call.name
            and before is not call
            and group in (before.name, before.name.rpartition(".")[0])
            and isinstance(module.get_submodule(group), nn.ModuleList)
            and call.source is before.source
            and call.weights.shape[1:] == before.weights.shape[1:]
        ):
            weights, heads = [before.weights, call.weights], before.heads + call.heads
            kept[-1] = replace(before, name=group, weights=np.concatenate(weights), heads=heads)
        else:
            kept.append(call)
    return (replace(call, source=None) for call in kept)


# Which module, and which input, a call belongs to ----------------------------------------------


@dataclass(frozen=True, eq=False)
class _Frame:
    """A module whose forward is running. sources: its texts that are alike to the first one."""

    name: str
    module: nn.Module
    sources: Sequence[Tensor]

    @property
    def cross(self) -> bool:
        """Return whether there is a second text to attend to; two views of one are one text."""
        return len({(x.data_ptr(), x.shape, x.stride()) for x in self.sources}) > 1

    def texts(self, queries: int) -> int:
        """Return the number of texts in the first input, whichever axis comes first."""
        first = self.sources[0] if self.sources else None
        if first is None or first.ndim < (3 if first.is_floating_point() else 2):
            return 1
        token_first = first.shape[0] == queries and first.shape[1] != queries
        return int(first.shape[1] if token_first else first.shape[0])


def _texts(module: nn.Module, args: Sequence[Any], named: Mapping[str, Any]) -> list[Tensor]:
    parameters = inspect.signature(module.forward).parameters.values()
    names = [own.name for own in parameters if own.kind is not own.VAR_POSITIONAL]
    given = [*zip((*names, *[""] * len(args)), args, strict=False), *named.items()]
    return [x for name, x in given if isinstance(x, Tensor) and not _NO_TEXT.search(name)]


class _Watch(TorchFunctionMode):
    """Keeps the attention weights of a text as torch asks about functions, or removes heads."""

    def __init__(self, text: int = 0, removed: Heads | None = None, *, mean: bool = False) -> None:
        super().__init__()
        self.text, self.removed, self.mean = text, removed, mean
        self.calls: list[ModuleCall] = []
        self.notes: dict[str, None] = {}
        self.entered: set[str] = set()
        self._frames: list[_Frame] = []
        self._names: list[str] = []  # of the calls of attention so far
        self._made: dict[int, ref[Tensor]] = {}  # products, and what was made of them

    # Hooks

    def entering(self, name: str) -> Any:
        """Return the hook that notes that the module of a name runs."""

        def enter(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            self.entered.add(name)
            label = name or type(module).__name__
            texts = _texts(module, args, named)
            sorts = [(x.ndim, x.is_floating_point()) for x in texts]
            alike = [x for x, sort in zip(texts, sorts, strict=True) if sort == sorts[0]]
            self._frames.append(_Frame(label, module, alike))

        return enter

    def left(self, *_: Any) -> None:
        """Forget the module that was entered last: it has ended."""
        self._frames.pop()

    # Functions

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named, name = kwargs or {}, getattr(func, "__name__", "")
        if func is functional.multi_head_attention_forward:
            return self._packed(_PACKED.bind(*args, **named).arguments)
        if func is functional.scaled_dot_product_attention:
            return self._fused(*args, **named)
        if "dropout" in name and not name.startswith("native"):  # which returns a mask as well
            self._note_dropout(*args[1:], **named)
            return args[0] if args else named["input"]
        if name in _PRODUCTS:
            return self._product(func, name, args, named)
        result = func(*args, **named)
        if isinstance(result, Tensor) and result.is_floating_point():
            stems = (x for x in (*args, *named.values()) if self._is_made(x))
            if any(x.shape[-2:] == result.shape[-2:] for x in stems):
                self.follow(result)
        return result

    def _note_dropout(self, p: Any = 0.5, training: Any = True, *_: Any, **more: Any) -> None:
        """Note that code drops numbers although its module is not training."""
        if more.get("train", training) and p:
            self.notes["dropout that does not ask for the training mode was left out"] = None

    def _product(self, func: Any, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run a product; if one side of it is attention weights, keep them or remove heads."""
        given = (x if isinstance(x, list | tuple) else [x] for x in (*args, *named.values()))
        flat = [*chain.from_iterable(given)]
        sides = [x for x in flat if isinstance(x, Tensor)][-2:]
        for at, side in enumerate(sides):
            if self._is_made(side):
                mixes, order = _mixes(name, flat[0], at)
                if mixes and _sums_to_one(side):
                    return self._by_hand(func, args, named, side, sides[1 - at], order)
        result = func(*args, **named)
        if not isinstance(sides[-1], nn.Parameter):
            self.follow(result)
        return result

    def _by_hand(
        self,
        func: Any,
        args: tuple[Any, ...],
        named: dict[str, Any],
        weights: Tensor,
        value: Any,
        order: Sequence[int] | None,
    ) -> Any:
        """Run the product of attention weights and values. order: see ``_mixes``."""
        frame = self._begin()
        texts, heads = self._split(frame, weights.shape[:-2], weights.shape[-2])
        kept = weights.reshape(texts, heads, *weights.shape[-2:])
        if self.removed is None:
            self._keep(frame, kept[self._index(texts)], texts, value.shape[-1])
            return func(*args, **named)
        if self.mean:
            output = func(*args, **named)
            if order is None:
                raise UnsupportedError(
                    f"{frame.name}: a product sums over heads, which have no mean"
                )
            axes, front = tuple(order), tuple(range(len(order)))
            moved = output.movedim(axes, front)
            changed = self._without(moved.reshape(texts, heads, weights.shape[-2], -1))
            return changed.reshape(moved.shape).movedim(front, axes)
        without = self._without(kept).reshape(weights.shape)

        def swapped(given: Any) -> Any:
            if isinstance(given, list | tuple):
                return type(given)(map(swapped, given))
            return without if given is weights else given

        return func(*swapped(args), **{name: swapped(given) for name, given in named.items()})

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Return what ``scaled_dot_product_attention`` returns; its parameters are torch's."""
        self._note_dropout(dropout_p)
        more: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        output = functional.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, **more
        )
        frame, (*lead, rows, _), columns = self._begin(), output.shape, key.shape[-2]
        texts, heads = self._split(frame, lead, rows)
        apart = output.reshape(texts, heads, rows, -1)
        if self.removed is not None:
            return self._without(apart).reshape(output.shape)
        if enable_gqa:
            group = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
        index, wide = self._index(texts), torch.promote_types(query.dtype, torch.float32)
        _require_room(frame, heads, rows, columns)

        def kept(tensor: Tensor) -> Tensor:
            whole = tensor.expand(*lead, *tensor.shape[-2:])
            return whole.reshape(texts, heads, *tensor.shape[-2:])[index]

        scores = kept(query).to(wide) @ kept(key).to(wide).mT
        scores *= query.shape[-1] ** -0.5 if scale is None else scale
        if is_causal:
            attn_mask = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            mask = kept(attn_mask.expand(*attn_mask.shape[:-2], rows, columns))
            boolean = mask.dtype == torch.bool
            scores = scores.masked_fill(~mask, -math.inf) if boolean else scores + mask
        weights = scores.softmax(-1).masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
        _require_same(frame, weights @ kept(value).to(wide), apart[index])
        self._keep(frame, weights, texts, value.shape[-1])
        return output

    def _packed(self, given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """Return what ``multi_head_attention_forward`` returns. given: its arguments by name."""
        frame, heads, query, key = self._begin(), given["num_heads"], given["query"], given["key"]
        given["training"] = False
        if self.removed is not None:
            whole = given["out_proj_weight"]  # (width, head · head_dim)
            apart = whole.reshape(len(whole), heads, -1).movedim(1, 0)[None]
            kept = self._without(apart, mean=False)[0].movedim(0, 1).reshape_as(whole)
            output, returned = functional.multi_head_attention_forward(
                **given | {"out_proj_weight": kept}
            )
            if self.mean:  # what the heads wrote, of which W_O keeps the mean
                written = functional.multi_head_attention_forward(**given)[0] - output
                output = output + written.flatten(0, -2).nanmean(0)
            return output, returned
        output, returned = functional.multi_head_attention_forward(**given)
        columns = len(key) if given.get("static_k") is None else given["static_k"].shape[1]
        texts = query.shape[1] if query.ndim == 3 else 1
        _require_room(frame, texts * heads, len(query), columns)
        asked = given | {"need_weights": True, "average_attn_weights": False}
        made, by_head = functional.multi_head_attention_forward(**asked)
        assert by_head is not None
        _require_same(frame, made, output)
        weights = by_head.reshape(texts, heads, len(query), -1)[self._index(texts)]
        if not output.isnan().any():  # torch then gives zeros to a query that sees no key
            weights = weights.nan_to_num(0.0)
        if weights.shape[-1] > columns:
            beside = "key of zeros" if given.get("bias_k") is None else "learned key, bias_k"
            self.notes[f"{frame.name}: the rest of a row goes to a {beside}"] = None
        self._keep(frame, weights[..., :columns], texts, query.shape[-1] // heads)
        return output, returned

    # What is kept, or removed

    def _begin(self) -> _Frame:
        """Count a call of attention; return the innermost running module with parameters."""
        running = reversed(self._frames)
        owners = (frame for frame in running if next(frame.module.parameters(), None) is not None)
        frame = next(owners, self._frames[0])
        self._names.append(frame.name)
        return frame

    def _without(self, apart: Tensor, *, mean: bool | None = None) -> Tensor:
        """Return heads' tensor (text, head, query, …) without those of this call, or their mean."""
        changed, call = apart.clone(), len(self._names) - 1
        heads = [head for number, head in self.removed or () if number == call]
        means = self.mean if mean is None else mean
        changed[:, heads] = apart[:, heads].nanmean((0, 2), keepdim=True) if means else 0.0
        return changed

    def _index(self, texts: int) -> int:
        if -texts <= self.text < texts:
            return self.text
        raise UsageError(f"batch={self.text}: the inputs are a batch of {texts}, counted from 0")

    def _split(self, frame: _Frame, lead: Sequence[int], queries: int) -> tuple[int, int]:
        """Return the numbers of texts and of heads of which the leading axes are made."""
        if len(lead) > 1:
            return lead[0], math.prod(lead[1:])
        texts, folded = frame.texts(queries), lead[0] if lead else 1
        if folded % texts:
            maps = f"{folded} maps of a batch of {texts}"
            raise UnsupportedError(f"{frame.name}: {maps} do not divide into heads")
        return texts, folded // texts

    def _keep(self, frame: _Frame, weights: Tensor, texts: int, head_dim: int) -> None:
        times, number = self._names.count(frame.name), len(self._names) - 1
        name = f"{frame.name} ({times})" if times > 1 else frame.name
        self.calls.append(
            ModuleCall(
                name=name,
                cross=frame.cross or weights.shape[-1] != weights.shape[-2],
                weights=to_numpy(weights),
                texts=texts,
                head_dim=head_dim,
                source=next(iter(frame.sources), None),
                heads=tuple((number, head) for head in range(len(weights))),
            )
        )

    def follow(self, tensor: Tensor) -> None:
        self._made[id(tensor)] = ref(tensor)

    def _is_made(self, tensor: Any) -> bool:
        """Return whether a tensor is a product, or was made of one without a change of its axes."""
        held = self._made.get(id(tensor))
        return held is not None and held() is tensor


def _mixes(name: str, equation: Any, at: int) -> tuple[bool, Sequence[int] | None]:
    """Return whether a product sums over the last axis of operand ``at``, and keeps the others.

    The second are the output's axes of this operand, the query's last; None if it lacks one.
    """
    if name != "einsum":
        return at == 0, ()
    inputs, arrow, output = str(equation).replace(" ", "").partition("->")
    operands = inputs.split(",")
    if not arrow or len(operands) != 2 or len(operands[at]) < 2:
        return False, None
    (*own, key), other = [*operands[at]], operands[1 - at]
    mixes = key in other and key not in output and own[-1] in output and own[-1] not in other
    if "." in str(equation):
        return mixes, ()
    return mixes, [output.index(axis) for axis in own] if {*own} <= {*output} else None


def _sums_to_one(weights: Tensor) -> bool:
    """Return whether no number is negative, and the largest sum of a row is one."""
    sums = weights.float().sum(-1)
    sums = sums[~sums.isnan()]
    if not sums.numel() or bool((weights < 0).any()):
        return False
    return abs(float(sums.max()) - 1) <= (1e-3 if weights.element_size() > 2 else _NARROW)


def _require_same(frame: _Frame, made: Tensor, given: Tensor) -> None:
    """Raise UnsupportedError unless what the weights give is what the module gave."""
    known = made.isfinite() & given.isfinite()
    made, given = made[known].to(given.dtype), given[known]
    largest, off = (float(x.abs().max()) if x.numel() else 0.0 for x in (given, made - given))
    if off > _TOLERANCES.get(given.dtype, _NARROW) * max(largest, 1e-3):
        raise UnsupportedError(
            f"{frame.name}: its weights give another output than it put out, by {off:.2g} of "
            f"{largest:.2g}, so that they are not shown"
        )


def _require_room(frame: _Frame, heads: int, rows: int, columns: int) -> None:
    maps = f"the maps of {heads:,} heads of {frame.name} over {rows:,} x {columns:,} tokens take"
    require_room(maps, 16 * heads * rows * columns, "give fewer or shorter texts")
