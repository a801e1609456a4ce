"""One watched pass: its attention calls are named, answered, and compared with a plain pass.

A model is entered where it looks its attention function up. The answer mostly comes from the eager
function of the calling module's own file, so that the weights are bit for bit those that
``output_attentions`` reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from attnviz.engine.attention_calls import (
    Attended,
    AttentionCall,
    IncompleteError,
    StrayAttention,
    borrowed,
    taking_calls,
)
from attnviz.engine.forward_pass import (
    STORED,
    ForwardPass,
    ends_alike,
    epsilon,
    length_class,
    nearly_equal,
    not_its_own,
)
from attnviz.engine.observer import BlockFacts, Observer, to_numpy
from attnviz.errors import LoadError, UnsupportedError
from attnviz.models.third_party import running
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Kind, Tokens

_known: WeakKeyDictionary[nn.Module, set[tuple[Any, ...]]] = WeakKeyDictionary()
"""The comparisons already made for each model: kinds, way of observing, length class."""


_complete: WeakSet[nn.Module] = WeakSet()
"""Modules that ran once without stray attention; they are not checked for it again."""


class PlainCheck:
    """Compares an observed pass with a plain one, to prove that observing changes no result.

    This is done once for each model, way of observing and length class. forward: the pass. way: how
    it is observed.
    exact: True if the pass takes the model's own steps, so that it ends in the same bits.
    """

    def __init__(self, forward: ForwardPass, way: str, *, exact: bool = True) -> None:
        self._forward, self._exact = forward, exact
        self._key = (forward.kinds, way, length_class(max(forward.lengths)))
        known = _known.setdefault(forward.model, set())
        self._is_due = forward.compare and self._key not in known
        self._plain: Tensor | None = None

    def begin(self) -> PlainCheck:
        """Run the plain pass now and return this check; otherwise ``end`` runs it.

        If it fails, such as in a model for which the library's cache is not made, it runs without a
        cache, now and later.
        """
        if self._is_due:
            try:
                self._plain = _last_hidden(self._forward.run())
            except LoadError:
                self._forward.leave_cache_out()
                self._plain = _last_hidden(self._forward.run())
        return self

    def call(self, call: AttentionCall, output: Tensor) -> None:
        """Raise UnsupportedError if a call's output is not that of the model's own function."""
        if not (self._is_due and call.functions.is_fused):
            return
        own = call.own()[0]
        self._exact &= torch.equal(own, output)
        if not _agree(call, output, own):
            raise self._refused("its attention function gives other numbers")

    def weights(self, call: AttentionCall, start: int, weights: Tensor, output: Tensor) -> None:
        """Raise UnsupportedError unless weights of rows from ``start`` on mix the call's output."""
        if not self._is_due:
            return
        rows, seen = weights.shape[-2:]
        groups = weights.shape[1] // call.value.shape[1]
        value = call.value[:, :, :seen].repeat_interleave(groups, 1)
        mean = (weights @ value.to(weights.dtype)).transpose(1, 2)
        if not _agree(call, mean, output[:, start : start + rows]):
            raise self._refused("its weights are not a plain softmax")

    def end(self, output: Any) -> None:
        """Raise UnsupportedError if the observed pass did not end as the plain one."""
        if self._is_due and self._plain is None:
            self.begin()
        if self._plain is None:
            return
        end = _last_hidden(output)
        if not ends_alike(self._forward.module, end, self._plain, exact=self._exact):
            raise self._refused("it ends in other numbers")
        _known[self._forward.model].add(self._key)

    def _refused(self, why: str) -> UnsupportedError:
        return not_its_own(self._forward.model, why)


@dataclass(frozen=True)
class WatchedCall:
    """A call of an observed pass, its kind and layer, and its comparison with a plain pass."""

    kind: Kind
    layer: int
    call: AttentionCall
    check: PlainCheck

    def eager(self) -> Attended:
        """Compute the call with the eager function; return the output and the attention weights."""
        result = self.call.eager()
        self.check.call(self.call, result[0])
        return result


Answer: TypeAlias = Callable[[WatchedCall], Attended]
"""Answers a call in place of the model, and may record what it needs from the call."""


def watched(forward: ForwardPass, answer: Answer, *, in_blocks: bool = False) -> Any:
    """Run the pass once with ``answer`` for every attention call; return the model's output.

    answer: receives each call, and returns its output and attention weights.
    in_blocks: True runs the fused function with its masks, whatever the model's own function is.
    The first text of each length class runs a second time without ``answer`` if ``forward.compare``
    is set. Raises IncompleteError if the calls do not cover all wanted attention or their layers
    are unknown, UnsupportedError if the pass differs from the model's own or lacks a layer.
    """
    with borrowed(forward.model, "sdpa" if in_blocks else None):
        names = _Names(forward)
        check = PlainCheck(forward, "blocks" if in_blocks else "eager")
        # Only the observation may show that the model has no fused attention.
        if not in_blocks:
            check.begin()
        stray = StrayAttention(forward.batch, forward.lengths)

        def attend(call: AttentionCall) -> Attended:
            stray.allowed = True
            result = answer(WatchedCall(*names.next(call), call, check))
            stray.allowed = False
            return result

        trunk = forward.module
        with taking_calls(attend), nullcontext() if trunk in _complete else stray:
            output = forward.run()
        names.require_all()
        _complete.add(trunk)
        check.end(output)
        return output


class _Names:
    """Identifies the kind and the layer of each attention call of a pass, call by call."""

    def __init__(self, forward: ForwardPass) -> None:
        self._forward = forward
        self._taken: dict[Kind, list[int]] = {kind: [] for kind in forward.kinds}
        self._called: set[nn.Module] = set()
        self._encoder = encoder_modules(forward)
        # If encoder and decoder text have the same length, shapes do not tell the kinds apart.
        alike = len(forward.kinds) > 1 and forward.keys("decoder") == forward.keys("cross")
        self._cross = _cross_attention(forward) if alike else None

    def next(self, call: AttentionCall) -> tuple[Kind, int]:
        """Return kind and layer of the next call; IncompleteError if the layer is unknown."""
        kind = kind_of(self._forward, self._encoder, call.module, call.inputs[1].shape[-2])
        if self._cross is not None and kind != "encoder":
            kind = "cross" if self._cross[id(call.module)] else "decoder"
        taken = self._taken[kind]
        layer = self._layer(call.module, taken)
        taken.append(layer)
        self._called.add(call.module)
        return kind, layer

    def require_all(self) -> None:
        """Raise UnsupportedError if a module made no call while others of its class did.

        Raises IncompleteError if no call was made of a wanted kind.
        """
        if not all(self._taken.get(kind, True) for kind in self._forward.wanted):
            raise IncompleteError
        alike = {type(module) for module in self._called}
        passed = [
            module
            for module in self._forward.module.modules()
            if type(module) in alike
            and isinstance(getattr(module, "layer_idx", None), int)
            and not getattr(module, "is_cross_attention", False)
        ]
        missed = len(set(passed) - self._called)
        if missed:
            raise UnsupportedError(
                f"{type(self._forward.model).__name__} leaves layers out: {missed} of its "
                f"{len(passed)} attention modules take no part in a forward pass; load it whole"
            )

    def _layer(self, module: nn.Module, taken: list[int]) -> int:
        own: Any = getattr(module, "layer_idx", None)
        if isinstance(own, int) and own not in taken:
            return own
        # One module that serves several layers has one index or none: there the order counts. Where
        # a module of its own for each layer runs twice, neither says which layer this is.
        alike = {
            other.layer_idx
            for other in self._forward.module.modules()
            if type(other) is type(module) and isinstance(getattr(other, "layer_idx", None), int)
        }
        if (own in alike and len(alike) > 1) or taken != list(range(len(taken))):
            raise IncompleteError
        return len(taken)


def encoder_modules(forward: ForwardPass) -> set[int]:
    """Return the ``id`` of each module of the encoder; empty if only one stack runs."""
    if len(forward.kinds) == 1:
        return set()
    return {id(module) for module in forward.model.get_encoder().modules()}


def kind_of(forward: ForwardPass, encoder: set[int], module: nn.Module, keys: int) -> Kind:
    """Return the kind of a module's attention over so many keys. encoder: ids of its modules."""
    if len(forward.kinds) == 1:
        return forward.kinds[0]
    if id(module) in encoder:
        return "encoder"
    return "cross" if keys == forward.keys("cross") else "decoder"


def _cross_attention(forward: ForwardPass) -> dict[int, bool]:
    """Return by ``id`` whether modules attend to the encoder: one decoder token sees two of it."""
    cross: dict[int, bool] = {}

    def attend(call: AttentionCall) -> Attended:
        cross[id(call.module)] = call.inputs[1].shape[-2] == 2
        return call.own()

    first = {name: ids[:1, :1] for name, ids in forward.inputs.items()}
    first["input_ids"] = first["input_ids"].repeat(1, 2)
    with taking_calls(attend):
        replace(forward, inputs=first).run()
    return cross


# Against the plain pass -----------------------------------------------------------------------


def _last_hidden(output: Any) -> Tensor:
    """Return the final hidden states, or the logits of a model without a separate trunk."""
    return output if isinstance(output, Tensor) else output[0]


def _agree(call: AttentionCall, output: Tensor, own: Tensor) -> bool:
    """Return True if two outputs of a call differ only by rounding, or the model has overflowed."""
    allowed = _rounding_of(call)
    near = ((output - own).abs() <= allowed) | (output.isnan() & own.isnan())
    return not math.isfinite(allowed) or bool(near.all())


def _rounding_of(call: AttentionCall) -> float:
    """Return how far two functions may differ by rounding for the same attention call.

    The relative error of an attention weight is the error of its score, which is the rounding of a
    sum whose terms the longest query and key bound.
    """
    width, keys = call.query.shape[-1], call.key.shape[-2]
    scale = call.options.get("scaling")
    scale = width**-0.5 if scale is None else float(scale)
    largest = [float(part.norm(dim=-1).max()) for part in (call.query, call.key)]
    wide = call.query.dtype in (torch.float32, torch.float64)
    roundings = STORED * (1 + (math.sqrt(width) + math.sqrt(keys) if wide else 1))
    scores = 1 + abs(scale) * largest[0] * largest[1]
    return math.prod((epsilon(call.query), roundings, scores, float(call.value.abs().max())))


# Towers that call their attention several times a layer -------------------------------------------
# Their tokens have no batch axis, and the calls of a layer lie one after the other along them.

_CELLS = 16_000_000
"""The most weights that are handed over at once."""

Edges = tuple[int, ...]
"""Where the calls of a layer begin among its tokens, and where the last one ends."""


def joined_calls(model: TransformersModel, tokens: Tokens) -> Mapping[int, Edges]:
    """Return where each layer's calls begin and end; UnsupportedError if tokens are missing."""
    edges: dict[int, list[int]] = {}

    def note(layer: int, call: AttentionCall) -> Attended:
        own = edges.setdefault(layer, [0])
        own.append(own[-1] + call.inputs[0].shape[2])
        return call.own()

    _answered(model, tokens, note)
    if len(edges) != model.info.layers or any(own[-1] != len(tokens) for own in edges.values()):
        raise not_its_own(model.model, "the calls of its layers do not cover its tokens")
    return {layer: tuple(own) for layer, own in edges.items()}


def observe_joined(model: TransformersModel, tokens: Tokens, observer: Observer) -> None:
    """Hand each layer's weights to an observer; UnsupportedError if they do not mix its output."""
    ends: dict[int, int] = {}

    def answer(layer: int, call: AttentionCall) -> Attended:
        output, weights = call.eager()
        if weights is None or not nearly_equal(output, call.own()[0]):
            raise not_its_own(model.model, "its attention function gives other numbers")
        mixed = (weights.to(call.value.dtype) @ call.value).transpose(1, 2)
        if not nearly_equal(mixed, output):
            raise not_its_own(model.model, "its weights are not a plain softmax")
        first = ends.get(layer, 0)
        _, heads, queries, keys = weights.shape
        if observer.wants("self", layer):
            step = max(_CELLS // (heads * (first + keys)), 1)
            for start, stop in pairwise([*range(0, queries, step), queries]):
                block = np.zeros((heads, stop - start, first + keys), np.float32)
                block[..., first:] = to_numpy(weights[0, :, start:stop])
                observer.observe(0, "self", layer, first + start, block, BlockFacts())
        ends[layer] = first + queries
        return output, weights

    _answered(model, tokens, answer)


def _answered(
    model: TransformersModel, tokens: Tokens, answer: Callable[[int, AttentionCall], Attended]
) -> None:
    """Run the model over tokens; ``answer`` gets each call with its layer."""
    layers: dict[nn.Module, int] = {}

    def attend(call: AttentionCall) -> Attended:
        return answer(layers.setdefault(call.module, len(layers)), call)

    whole: Any = model.model
    ids = torch.tensor([tokens.ids], device=whole.device)
    with (
        torch.inference_mode(),
        borrowed(whole),
        running(whole, torch.OutOfMemoryError),
        taking_calls(attend),
    ):
        whole(input_ids=ids)
