"""Enter a transformers model for one run: borrow it, answer its attention calls, find hidden ones.

A borrowed model is in evaluation mode. Its attention calls are answered in place of the function
that it looks up. Attention that a module computes by itself is found by the softmax it contains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from attnviz.engine.forward_pass import nearly_equal
from attnviz.engine.hook_points import NOTHING_LEFT, Function, FunctionWatch, named
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.attention_interface import FoundAttention, answering, is_observed
from attnviz.models.split import is_split, mesh_of

if TYPE_CHECKING:
    from attnviz.models.attention_interface import PreTrainedModel

HIDING = -5_000
"""A key counts as hidden if the mask adds less than this to its score. Masks add −10,000 or less,
and no score of a model comes near this value."""

Attended: TypeAlias = tuple[Tensor, Tensor | None]
"""The output (batch, query, heads, dims) and the weights (batch, heads, query, key), or None
instead of the weights."""


_mixing: WeakKeyDictionary[nn.Module, set[bool]] = WeakKeyDictionary()
"""For each module whether its values were mixed by its weights, for one query and for several."""


@dataclass(frozen=True)
class AttentionCall:
    """One call of an attention function that transformers makes, with ways to answer it.

    inputs: queries, keys and values (batch, heads, token, dim) of this process's heads, which
    ``split`` joins to all; None if they are. functions: those that could answer the call.
    """

    module: nn.Module
    inputs: tuple[Tensor, Tensor, Tensor]
    mask: Tensor | None
    options: dict[str, Any]
    functions: FoundAttention
    split: HeadSplit | None = None

    @cached_property
    def query(self) -> Tensor:
        """Return the queries of all heads."""
        return self._whole(self.inputs[0])

    @cached_property
    def key(self) -> Tensor:
        """Return the keys of all key/value heads."""
        return self._whole(self.inputs[1])

    @cached_property
    def value(self) -> Tensor:
        """Return the values of all key/value heads."""
        return self._whole(self.inputs[2])

    @property
    def here(self) -> AttentionCall:
        """Return the same call as if the heads of this process were all: without ``split``."""
        return self if self.split is None else replace(self, split=None)

    def own(self) -> Attended:
        """Return the output and weights, or None, of the model's own attention function."""
        return self._by(self.functions.own, self.mask)

    def eager(self) -> Attended:
        """Compute the call with the eager function, which always returns the weights too."""
        return self._by(self.functions.eager, self.additive_mask())

    def hiding(self, hidden: Tensor) -> Attended:
        """Return the call with keys (head, query, key) hidden; UsageError if none is left."""
        mask, query = self.additive_mask(), self.inputs[0]
        if mask is None:
            mask = torch.zeros((), dtype=query.dtype, device=query.device)
        else:
            mask = mask[..., : self.inputs[1].shape[2]]
            mask = mask if mask.shape[1] == 1 else self._whole(mask)
        seen = torch.where(hidden[None], -torch.inf, mask)
        _require_another(seen, hidden)
        return self._by(self.functions.eager, seen if self.split is None else self.split.part(seen))

    def mixing(self, change: Callable[[Tensor], Tensor]) -> Attended:
        """Compute the call with changed attention weights; return the output and the weights.

        change: receives the attention weights (batch, head, query, key) and returns those to use
            instead. Raises UnsupportedError if the output is not the values mixed by the weights.
        """
        output, weights = self.eager()
        # A GPU would be waited for in each layer and step: there, what was compared is trusted.
        kind, known = self.inputs[0].shape[2] > 1, _mixing.setdefault(self.module, set())
        trusted = kind in known and output.device.type != "cpu"
        if weights is None or not (trusted or nearly_equal(self._mixed(weights), output)):
            raise UnsupportedError(
                f"{type(self.module).__name__} puts out something else than its values, mixed by "
                f"its attention weights: another pattern cannot be put in their place"
            )
        known.add(kind)
        changed = change(weights)
        return self._mixed(changed), changed

    def _mixed(self, weights: Tensor) -> Tensor:
        value = self.value.repeat_interleave(weights.shape[1] // self.value.shape[1], 1)
        return (weights.to(value.dtype) @ value).transpose(1, 2)

    def _by(self, function: Any, mask: Tensor | None) -> Attended:
        output, weights = function(self.module, *self.inputs, mask, **self.options)
        if self.split is not None:
            output = self.split.whole(output, 2)
            weights = None if weights is None else self.split.whole(weights)
        return output, weights

    def _whole(self, part: Tensor) -> Tensor:
        return part if self.split is None else self.split.whole(part)

    @property
    def is_causal(self) -> bool:
        """Return True if the fused function hides later keys, as it does without a mask."""
        own = self.options.get("is_causal")
        own = getattr(self.module, "is_causal", True) if own is None else own
        alone = self.functions.is_fused and self.mask is None
        return alone and self.inputs[0].shape[2] > 1 and bool(own)

    def visible(
        self, start: int = 0, rows: int | None = None, keys: int | None = None
    ) -> Tensor | None:
        """Return a mask (batch, rows, keys): True if a query sees the key in at least one head.

        start, rows: the first query and the number of queries; all of them by default.
        keys: the number of keys from the first on; all of them by default.
        None is returned without a mask of four axes that covers the keys.
        """
        batch, _, queries, _ = self.inputs[0].shape
        stop = queries if rows is None else start + rows
        keys = self.inputs[1].shape[2] if keys is None else keys
        if self.is_causal:
            tokens = torch.arange(max(stop, keys), device=self.inputs[0].device)
            seen = tokens[:keys] <= tokens[start:stop, None]
            return seen.expand(batch, -1, -1)
        mask = self.mask
        if mask is None or mask.ndim != 4 or mask.shape[3] < keys:
            return None
        some = mask[:, :, start:stop, :keys] if mask.shape[2] > 1 else mask[..., :keys]
        seen = some if mask.dtype == torch.bool else some > HIDING
        return seen.any(1).expand(batch, stop - start, keys)

    def additive_mask(self) -> Tensor | None:
        """Return the mask that eager attention adds to the scores, or None if there is none."""
        seen = self.mask
        if self.is_causal:
            query, key, _ = self.inputs
            size = query.shape[2], key.shape[2]
            seen = torch.ones(size, dtype=torch.bool, device=query.device).tril()[None, None]
        if seen is None or seen.dtype != torch.bool:
            return seen
        nothing = torch.zeros((), dtype=self.inputs[0].dtype, device=seen.device)
        return torch.where(seen, nothing, torch.finfo(self.inputs[0].dtype).min)


@contextmanager
def taking_calls(attend: Callable[[AttentionCall], Attended]) -> Iterator[None]:
    """Answer this thread's attention calls by ``attend`` inside this context."""

    def answer(
        functions: FoundAttention,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> Attended:
        inputs, here = (query, key, value), query.shape[1]
        split = split_of(module, *inputs) if query.ndim == 4 else None
        call = AttentionCall(module, inputs, attention_mask, options, functions, split)
        output, weights = attend(call)
        if split is not None and output.shape[2] != here:
            output = split.part(output, 2)
        if split is not None and weights is not None and weights.shape[1] != here:
            weights = split.part(weights)
        return output, weights

    with answering(lambda functions: partial(answer, functions)):
        yield


_SOFTMAX = {functional.softmax, torch.softmax, torch.Tensor.softmax}
_FUSED = functional.scaled_dot_product_attention


Compute: TypeAlias = Callable[..., Tensor]
"""Computes one softmax or one fused attention call. Given ``hidden``, a boolean tensor of the shape
of the attention scores, it leaves its True keys out."""


class IncompleteError(Exception):
    """Raised if the attention function was not called once per layer; the engine catches it."""


class SoftmaxWatch(FunctionWatch):
    """Hands softmaxes over keys and fused calls, told by their axes' lengths, to ``notice``."""

    def __init__(self, batch: int, lengths: Collection[int]) -> None:
        super().__init__()
        self._batch, self._lengths = batch, lengths

    def notice(self, scores: Sequence[int], compute: Compute) -> Tensor:
        """Return a call's result, perhaps changed; scores: the shape (..., query, key)."""
        return compute()

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _FUSED:
            given = named(FUSED_INPUTS, args, kwargs)
            shape = (*given["query"].shape[:-1], given["key"].shape[-2])

            def fused(hidden: Tensor | None = None) -> Tensor:
                return _FUSED(**(given if hidden is None else _hidden(given, hidden)))

            return self.notice(shape, fused)
        if func in _SOFTMAX and self._is_scores(scores := args[0] if args else kwargs["input"]):
            others = {name: value for name, value in kwargs.items() if name != "input"}

            def softmax(hidden: Tensor | None = None) -> Tensor:
                seen = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
                if hidden is not None:
                    _require_another(seen, hidden)
                return func(seen, *args[1:], **others)

            return self.notice(scores.shape, softmax)
        return func(*args, **kwargs)

    def is_over_keys(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return True if a call of a torch function is a softmax over the keys of attention."""
        return func in _SOFTMAX and self._is_scores(args[0] if args else kwargs["input"])

    def _is_scores(self, scores: Tensor) -> bool:
        if scores.ndim < 3 or (scores.ndim == 3 and scores.shape[0] <= self._batch):
            return False
        return scores.shape[-1] in self._lengths and scores.shape[-2] in self._lengths


FUSED_INPUTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


def _hidden(given: dict[str, Any], hidden: Tensor) -> dict[str, Any]:
    """Return fused attention's arguments with a mask that hides keys (..., query, key), too."""
    mask, visible = given.get("attn_mask"), ~hidden
    if given.get("is_causal"):
        visible = visible.tril()
    if mask is None or mask.dtype == torch.bool:
        seen = visible if mask is None else mask & visible
        _require_another(torch.where(seen, 0.0, -torch.inf), hidden)
    else:
        seen = torch.where(visible, mask, -torch.inf)
        _require_another(seen, hidden)
    return {**given, "attn_mask": seen, "is_causal": False}


def _require_another(seen: Tensor, hidden: Tensor) -> None:
    """Raise UsageError if a query loses its last visible key.

    seen: the attention scores or the mask (..., query, key) with −inf for each hidden key.
    hidden: boolean (..., query, key), True for the keys that are hidden in addition to the model's.
    The softmax would then run over keys that the model's mask hides from the query.
    """
    blind = seen.amax(-1) <= torch.finfo(seen.dtype).min / 2
    if bool((hidden.any(-1) & blind).any()):
        raise UsageError(NOTHING_LEFT)


class MaskWatch(SoftmaxWatch):
    """Records which keys each softmax over texts of these lengths leaves out while it is active."""

    def __init__(self, batch: int, lengths: Collection[int]) -> None:
        super().__init__(batch, lengths)
        self._seen: list[tuple[Tensor, Tensor]] = []

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        weights = super().call(func, args, kwargs)
        if self.is_over_keys(func, args, kwargs):
            scores = args[0] if args else kwargs["input"]
            seen = (scores > HIDING) | (weights > 0)
            by_text = seen.reshape(self._batch, -1, *seen.shape[-2:]).any(1)
            self._seen.append((weights, by_text))
        return weights

    def mask_of(self, weights: Tensor) -> Tensor | None:
        """Return the mask (batch, query, key) of weights that a softmax returned; or None."""
        address = weights.untyped_storage().data_ptr()
        for noted, seen in self._seen:
            if noted.untyped_storage().data_ptr() == address:
                return seen if seen.shape[-2:] == weights.shape[-2:] else None
        return None


class StrayAttention(SoftmaxWatch):
    """Raises IncompleteError for attention beside the observed function, unless ``allowed``."""

    allowed = False

    def notice(self, scores: Sequence[int], compute: Compute) -> Tensor:
        if not self.allowed and is_observed():
            raise IncompleteError
        return compute()


# Threads that share a model, or models that share a config, take turns. All others run at once.
_locks: WeakValueDictionary[int, Any] = WeakValueDictionary()
_locks_guard = Lock()


_PLAIN = ("eager", "sdpa", None)
"""Implementations whose masks can be read. Eager attention is used instead of all others."""


@contextmanager
def borrowed(model: PreTrainedModel, implementation: str | None = None) -> Iterator[None]:
    """Set modules to evaluation mode and configs to one attention implementation in this context.

    implementation: its name; None keeps eager and sdpa, and sets eager otherwise. Experts in
    float64 run one by one: grouped products lack that type. All is put back, also after an
    exception.
    """
    modules, configs = list(model.modules()), configs_of(model)
    with ExitStack() as held:
        with _locks_guard:
            locks = [_locks.setdefault(key, RLock()) for key in sorted(configs)]
        for lock in locks:  # in a fixed order, so that two threads cannot deadlock
            held.enter_context(lock)
        before = {
            key: (config._attn_implementation, getattr(config, "_experts_implementation", None))
            for key, config in configs.items()
        }
        training = [module for module in modules if module.training]
        try:
            for module in training:
                module.training = False
            for key, config in configs.items():
                attention, experts = before[key]
                own = attention if attention in _PLAIN else "eager"
                wide = model.dtype == torch.float64  # grouped matrix products lack float64
                _set(config, implementation or own, "eager" if wide and experts else experts)
            yield
        finally:
            for key, config in configs.items():
                _set(config, *before[key])
            for module in training:
                module.training = True


def _set(config: Any, attention: str | None, experts: str | None) -> None:
    # The public setters would pass the names on to sub-configs, here and when restoring.
    config._attn_implementation_internal = attention
    if experts is not None:
        config._experts_implementation_internal = experts


def configs_of(model: PreTrainedModel) -> dict[int, Any]:
    """Return the configs of a model and its parts, by their ``id``."""
    configs = (getattr(module, "config", None) for module in model.modules())
    named = (config for config in configs if hasattr(config, "_attn_implementation_internal"))
    return {id(config): config for config in named}


@contextmanager
def without_recording_hooks(model: PreTrainedModel) -> Iterator[None]:
    """Remove the hooks that transformers adds inside this context to return attention weights."""
    hooks = [(module, set(module._forward_hooks)) for module in model.modules()]
    marked = [module for module in model.modules() if _MARK in module.__dict__]
    try:
        yield
    finally:
        for module, before in hooks:
            for key in set(module._forward_hooks) - before:
                del module._forward_hooks[key]
            if module not in marked:
                module.__dict__.pop(_MARK, None)


# Without the mark transformers installs them again when they are next needed.
_MARK = "_output_capturing_hooks_installed"


# Heads that are split over processes --------------------------------------------------------------


@dataclass(frozen=True)
class HeadSplit:
    """How the heads of a layer are split over processes, and which part is in this process.

    size: how many processes. rank: the index of this one. group: their torch.distributed group.
    """

    size: int
    rank: int
    group: Any

    def whole(self, part: Tensor, axis: int = 1) -> Tensor:
        """Return ``part`` joined with those of all processes along ``axis``, that of the heads."""
        part = part.detach().contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part, group=self.group)
        return torch.cat(parts, axis)

    def part(self, whole: Tensor, axis: int = 1) -> Tensor:
        """Return this process's heads from ``whole``, a tensor of all heads along ``axis``."""
        return whole.chunk(self.size, axis)[self.rank]


def split_of(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> HeadSplit | None:
    """Return how a module's heads are split, or None; UnsupportedError if that cannot be told."""
    mesh = mesh_of(module)
    if mesh is None:
        return None
    here, size = query.shape[1], mesh.size()
    read = {inputs // value.shape[-1] for inputs in _read_by_parts(module)}
    if not read or (here in read and here * size not in read):
        return None  # what is not read by parts is read whole
    groups = getattr(module, "num_key_value_groups", None)
    if here * size not in read or groups not in (None, here // key.shape[1]):
        raise UnsupportedError(
            f"{type(module).__name__} has {here} query heads and {key.shape[1]} key/value heads in "
            f"this one of {size} processes: which of the model's heads these are cannot be told; "
            "take another number of processes, or load the model whole"
        )
    return HeadSplit(size, mesh.get_local_rank(), mesh.get_group())


def _read_by_parts(module: nn.Module) -> list[int]:
    """Return the numbers of inputs of the linear maps of which each process has some columns."""
    maps: list[Any] = [part for part in module.modules() if isinstance(part, nn.Linear)]
    return [
        linear.in_features
        for linear in maps
        if is_split(linear.weight) and any(at.is_shard(1) for at in linear.weight.placements)
    ]
