"""Find the hook points of a transformers model.

A model that looks its attention function up is entered there. Of one that computes attention by
itself the heads' outputs are the input of the output projection, which a probe finds: the first
linear map after a softmax over the keys. Head h is columns hD … (h+1)D of its input. The probe
proves it by setting one head's weights to zero and looking for the columns that become zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from attnviz.engine.attention_calls import (
    Attended,
    AttentionCall,
    Compute,
    IncompleteError,
    SoftmaxWatch,
    borrowed,
    taking_calls,
)
from attnviz.engine.forward_pass import ForwardPass
from attnviz.engine.hook_points import (
    CallCounter,
    Function,
    Hide,
    HookedCall,
    HookPoints,
    enclosing_block,
    hooked,
)
from attnviz.engine.linear_map import is_linear, linear_maps
from attnviz.engine.passes import WatchedCall, encoder_modules, kind_of, watched
from attnviz.engine.patching import ATTENDED, SITES, What
from attnviz.engine.replacing import LostTrackError
from attnviz.errors import UnsupportedError
from attnviz.models.attention_interface import uses_interface
from attnviz.models.split import require_one_process
from attnviz.records import Input


def find_hook_points(probe: ForwardPass) -> HookPoints:
    """Return the attention calls of a pass at which heads' outputs can be changed, in order.

    probe: a short pass over one text, whose lengths differ and are above one.
    Raises UnsupportedError if they cannot be found, or heads do not lie side by side.
    """
    calls: list[HookedCall] = []

    def answer(watch: WatchedCall) -> Attended:
        output, weights = watch.call.own()
        if output.ndim != 4:
            raise IncompleteError
        calls.append(HookedCall(watch.kind, watch.layer, watch.call.module, *output.shape[2:]))
        return output, weights

    if uses_interface(probe.model):
        with suppress(IncompleteError):  # some attention is not looked up
            watched(probe, answer)
            if calls:
                return _Registered(probe, calls)
    return _find_projections(probe)


class _Points(HookPoints):
    """The attention calls of a model, told by a short pass ``probe``, in their order."""

    def __init__(self, probe: ForwardPass, calls: Sequence[HookedCall]) -> None:
        super().__init__(probe.module, calls)
        self._model = probe.model

    def borrowed(self) -> AbstractContextManager[Any]:
        return borrowed(self._model)


class _Registered(_Points):
    """The attention calls of a model that looks its attention function up at each call."""

    @contextmanager
    def editing(self, counter: CallCounter, inside: frozenset[What]) -> Iterator[None]:
        with taking_calls(lambda call: edited_call(call, counter, inside)):
            yield

    @contextmanager
    def masking(self, counter: CallCounter, hide: Hide, given: Input) -> Iterator[None]:
        def attend(call: AttentionCall) -> Attended:
            _, point = counter.take(call.module)
            query, key, _ = call.inputs
            hidden = hide(point, query.shape[2], key.shape[2])
            if hidden is None:
                return call.own()
            output, weights = call.hiding(hidden)
            if weights is None or not bool((weights[:, hidden] == 0).all()):
                raise UnsupportedError(
                    f"{type(self._model).__name__} leaves weight on a key whose score is −∞ "
                    f"in layer {point.layer}: its attention is not a plain softmax"
                )
            return output, weights

        with taking_calls(attend):
            yield


class _Mix(SoftmaxWatch):
    """Lets a counter edit the weights of each softmax, which run in the order of the calls."""

    def __init__(self, counter: CallCounter, name: str) -> None:
        super().__init__(1, ())
        self._counter, self._name = counter, name
        self._taken: HookedCall | None = None

    def begin(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the lengths of the texts when a pass starts; a forward hook of torch."""
        texts = ("input_ids", "decoder_input_ids")
        self._lengths = {kwargs[name].shape[1] for name in texts if name in kwargs}
        cache = kwargs.get("past_key_values")
        if cache is not None:  # the cache holds further keys, which are not computed again
            self._lengths |= {cache.get_seq_length() + length for length in self._lengths}
        self._taken = None

    def has_taken(self, module: nn.Module) -> bool:
        """Return True if the latest call's projection is ``module``; LostTrackError for another."""
        taken, self._taken = self._taken, None
        if taken is not None and taken.module is not module:
            raise LostTrackError("another projection follows the softmax than in the first pass")
        return taken is not None

    def notice(self, scores: Sequence[int], compute: Compute) -> Tensor:
        weights = compute()
        _, self._taken = self._counter.take(None)
        by_head = weights.reshape(-1, self._taken.heads, *scores[-2:]).transpose(1, 2)
        edited = self._counter.edit_inside("pattern", by_head).transpose(1, 2)
        return edited if len(scores) == 4 else edited.reshape(-1, *scores[1:])

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is functional.scaled_dot_product_attention:
            raise UnsupportedError(
                f"{self._name} computes attention by a fused kernel of its own: its weights are "
                f"not seen and cannot be replaced; patch outputs"
            )
        return super().call(func, args, kwargs)


def _find_projections(probe: ForwardPass) -> _Projections:
    require_one_process(probe.model)
    with borrowed(probe.model):
        run = _ProjectionSearch(probe)
        with run.watching(), run:
            probe.run()
    name = type(probe.model).__name__
    layers = getattr(probe.model.config, "num_hidden_layers", None)
    if not run.calls or run.pending:
        raise UnsupportedError(
            f"{name} computes attention by itself and its output projections were not found: "
            f"its heads cannot be removed"
        )
    if len(probe.kinds) == 1 and layers not in (None, len(run.calls)):
        raise UnsupportedError(
            f"{name} has {layers} layers, attention was found in {len(run.calls)}: "
            f"which layers these are cannot be told"
        )
    return _Projections(probe, run.calls, run.token_axis)


class _Projections(_Points):
    """The attention calls of a model that computes attention itself, found by output projections.

    token_axis: the token axis of a projection's input: 1, or 0 in models that put the batch second.
    """

    shows_inputs = False

    def __init__(self, probe: ForwardPass, calls: Sequence[HookedCall], token_axis: int) -> None:
        super().__init__(probe, calls)
        self._token_axis = token_axis

    @contextmanager
    def editing(self, counter: CallCounter, inside: frozenset[What]) -> Iterator[None]:
        name = type(self._model).__name__
        unseen = sorted(sort for sort in inside if SITES[sort].hook != "weights")
        if unseen:
            raise UnsupportedError(
                f"{name} computes attention by itself: of its heads only output and pattern can be "
                f"replaced, not the {' or the '.join(unseen)}"
            )
        mix = _Mix(counter, name) if inside else None
        shapes = {point.module: (point.heads, point.dim) for point in self.calls}

        def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            outputs = args[0].unflatten(-1, shapes[module])
            if self._token_axis == 0:
                outputs = outputs.transpose(0, 1)
            if mix is None or not mix.has_taken(module):
                counter.take(module)
            outputs = counter.edit(outputs)
            if self._token_axis == 0:
                outputs = outputs.transpose(0, 1)
            return (outputs.flatten(-2), *args[1:])

        with ExitStack() as hooks:
            for module in shapes:
                hooks.callback(module.register_forward_pre_hook(enter).remove)
            if mix is not None:  # a fused kernel of its own would show no weights
                hooks.enter_context(borrowed(self._model, "eager"))
                begin = self.root.register_forward_pre_hook(mix.begin, with_kwargs=True)
                hooks.callback(begin.remove)
                hooks.enter_context(mix)
            yield

    def masking(
        self, counter: CallCounter, hide: Hide, given: Input
    ) -> AbstractContextManager[Any]:
        return _Hide(counter, hide, given)


class _Hide(SoftmaxWatch):
    """Hides keys of one text in every softmax of a pass, in the order of the calls."""

    def __init__(self, counter: CallCounter, hide: Hide, given: Input) -> None:
        super().__init__(1, {len(given.text), len(given.predicted)})
        self._counter, self._hide = counter, hide

    def notice(self, scores: Sequence[int], compute: Compute) -> Tensor:
        _, point = self._counter.take(None)
        hidden = self._hide(point, scores[-2], scores[-1])
        return compute(None if hidden is None else hidden.reshape(scores))


class _ProjectionSearch(SoftmaxWatch):
    """Records the first linear layer after each softmax, and checks how heads lie in its input.

    The attention weights of the last head of every layer are set to zero for this.
    """

    def __init__(self, probe: ForwardPass) -> None:
        super().__init__(1, probe.lengths)
        self._probe, self._encoder = probe, encoder_modules(probe)
        self._blocks = enclosing_block(probe.module)
        self._block: nn.Module | None = None
        self.calls: list[HookedCall] = []
        self.pending: Sequence[int] | None = None
        self.token_axis = 1

    def notice(self, scores: Sequence[int], compute: Compute) -> Tensor:
        weights = compute()
        if self.pending is not None:
            raise _refused(self._probe, "two attentions share one output projection")
        self.pending = scores
        emptied = weights.clone()
        emptied.flatten(0, -3)[-1] = 0
        return emptied

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the linear layers, and the blocks around them, of passes inside this context."""

        def enter(block: nn.Module, args: tuple[Any, ...]) -> None:
            self._block = block

        blocks = dict.fromkeys(self._blocks.values())
        with (
            hooked(*(block.register_forward_pre_hook(enter) for block in blocks)),
            linear_maps(self._probe.module, self._enter_linear),
        ):
            yield

    def _enter_linear(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.pending is None or not args or not is_linear(module):
            return
        scores, self.pending = self.pending, None
        if self._blocks.get(id(module)) is not self._block:
            raise _refused(self._probe, "it lies outside the block of its softmax")
        kind = kind_of(self._probe, self._encoder, module, scores[-1])
        heads = prod(scores[:-2])
        dim = self._width(args[0], scores[-2], heads)
        layer = sum(point.kind == kind for point in self.calls)
        self.calls.append(HookedCall(kind, layer, module, heads, dim))

    def _width(self, merged: Tensor, tokens: int, heads: int) -> int:
        """Return a head's width, of heads side by side; or UnsupportedError."""
        if merged.ndim != 3 or merged.shape[-1] % heads or 1 not in merged.shape[:2]:
            raise _refused(self._probe, f"the projection's input is {tuple(merged.shape)}")
        self.token_axis = 1 if merged.shape[0] == 1 else 0
        empty = (merged.reshape(*merged.shape[:2], heads, -1) == 0).all(-1).flatten(0, 1).all(0)
        expected = [False] * (heads - 1) + [True]
        if merged.shape[self.token_axis] != tokens or empty.tolist() != expected:
            raise _refused(self._probe, "its heads do not lie side by side")
        return int(merged.shape[-1] // heads)


def _refused(probe: ForwardPass, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{type(probe.model).__name__} computes attention by itself, and its output projection "
        f"was not recognised ({why}): its heads cannot be removed"
    )


def edited_call(call: AttentionCall, counter: CallCounter, inside: frozenset[What]) -> Attended:
    """Return output and weights, or None, of a transformers call with edited tensors."""

    def edit(sort: What, tensor: Tensor) -> Tensor:
        """Return the tensor (batch, head, token, dim) after the intervention."""
        return counter.edit_inside(sort, tensor.transpose(1, 2)).transpose(1, 2)

    counter.take(call.module)
    if not inside.isdisjoint(ATTENDED):
        query, key, value = (
            edited if call.split is None else call.split.part(edited)
            for edited in [edit(sort, getattr(call, sort)) for sort in ATTENDED]
        )
        call = replace(call, inputs=(query, key, value))
    if "pattern" in inside:
        output, weights = call.mixing(partial(edit, "pattern"))
    else:
        output, weights = call.own()
    return counter.edit(output), weights
