"""Queries and keys of a transformers model, as its attention function is called with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.engine.attention_call import AttentionCall, active
from attnviz.engine.forward_pass import ForwardPass, plan_pass
from attnviz.engine.model_state import borrowed
from attnviz.engine.observer import to_numpy
from attnviz.engine.plain_pass import PlainCheck
from attnviz.engine.queries_keys import ObserveHeads, QueriesKeys, products, softened
from attnviz.engine.registered_attention import cross_attention
from attnviz.engine.run import no_numbers
from attnviz.engine.stacks import Places
from attnviz.engine.stray_attention import IncompleteError, StrayAttention
from attnviz.errors import LoadError, UnsupportedError
from attnviz.models.attention_interface import uses_interface
from attnviz.models.model import Model
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Kind, ModelInfo, Tokens

__all__ = ["observe_torch"]

_ROUNDING = {4: 1e-3, 8: 1e-3}
"""How far weights of this many bytes may be from ours, which are made in float64."""

_ROUGH = 0.1
"""The same of narrower ones: scores of 16 bits are a sixteenth off where they are large."""


@torch.inference_mode()
def observe_torch(
    model: Model, tokens: Tokens, wants: Callable[[int], bool], observe: ObserveHeads
) -> None:
    """As ``observe_queries_keys``, for a loaded transformers model, which is left as it was.

    Each head's weights are made anew from what is handed over and must equal the model's own.
    """
    if not isinstance(model, TransformersModel):
        raise UnsupportedError(f"no way to observe a {type(model).__name__}")
    name, kind = model.info.name, model.kinds[0]
    ids = torch.tensor([tokens.ids], device=model.model.device)
    forward = plan_pass(model.model, _Wants(kind, wants), ids, None, None)
    if not uses_interface(model.model):
        raise _not_shown(name)
    with borrowed(model.model):
        cross = cross_attention(forward) if Places.ambiguous(forward) else {}
        run = _Run(forward, Places(forward, cross), model.info, (kind, wants), observe)
        try:
            with active(run), run.stray:
                output = forward.run()
        except IncompleteError:
            raise _not_shown(name) from None
        run.check.end(output)


class _Wants:
    """Tells ``plan_pass`` which kind is wanted, so that no decoder runs for an encoder."""

    def __init__(self, kind: Kind, wants: Callable[[int], bool]) -> None:
        self._kind = kind
        self._layers = wants

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind == self._kind and self._layers(layer)

    def observe(self, kind: Kind, layer: int, weights: Any) -> None:
        raise AssertionError("weights are not asked for")


class _Run:
    """Answers every attention call by the model's own eager function, and keeps what went in."""

    def __init__(
        self,
        forward: ForwardPass,
        places: Places,
        info: ModelInfo,
        wanted: tuple[Kind, Callable[[int], bool]],
        observe: ObserveHeads,
    ) -> None:
        self._places = places
        self._info = info
        self._kind, self._wants = wanted
        self._observe = observe
        self.check = PlainCheck(forward, "eager").begin()
        self.stray = StrayAttention(
            forward.batch, {*forward.queries.values(), *forward.keys.values()}
        )

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        self.stray.allowed = True
        kind, layer = self._places.next(call.module, call.key.shape[-2])
        output, weights = call.eager()
        self.check.call(call, output)
        if kind == self._kind and self._wants(layer):
            if call.query.ndim != 4 or call.query.shape[1] % call.key.shape[1]:
                raise IncompleteError
            found = _queries_keys(layer, call)
            self._check(found, weights)
            self._observe(found)
        self.stray.allowed = False
        return output, weights

    def _check(self, found: QueriesKeys, weights: Tensor | None) -> None:
        """Raise UnsupportedError where the weights are not made of these numbers alone."""
        if weights is None or weights.shape[:2] != (1, len(found.query)):
            raise _not_shown(self._info.name)
        allowed = _ROUNDING.get(weights.element_size(), _ROUGH)
        name = self._info.name
        for head, theirs in enumerate(to_numpy(weights[0])):
            if np.isnan(theirs).any():
                why = "; ".join((*self._info.notes, *no_numbers(self._info, [theirs])))
                raise LoadError(f"nothing can be compared in L{found.layer} of {name!r}: {why}")
            query, key, bias = found.head(head)
            ours = softened(products(query, key), found.scale, bias)
            if ours.shape != theirs.shape or not abs(ours - theirs).max() <= allowed:
                raise UnsupportedError(
                    f"the weights of {name!r} are not the softmax of scaled queries and keys "
                    "alone (a soft cap, a sink or a bias of its own): choose another --model"
                )


def _queries_keys(layer: int, call: AttentionCall) -> QueriesKeys:
    query, key = call.query[0], call.key[0]  # (heads, token, head_dim) of the one text
    groups = len(query) // len(key)
    given = call.options.get("scaling")
    scale = 1 / math.sqrt(query.shape[-1]) if given is None else float(given)
    shared = key.repeat_interleave(groups, 0)
    return QueriesKeys(layer, _wide(query), _wide(shared), scale, _bias(call))


def _bias(call: AttentionCall) -> Any:
    """The mask as (1 or heads, query, key), -inf where it hides."""
    mask = call.additive_mask()
    if mask is None:
        return None
    mask = mask[0, ..., : call.key.shape[-2]]
    lowest = torch.finfo(mask.dtype).min
    return _wide(mask.float().masked_fill(mask <= lowest / 2, -math.inf))


def _wide(tensor: Tensor) -> Any:
    return to_numpy(tensor).astype("float64")


def _not_shown(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"the attention of {name!r} does not show its queries and keys: choose a model whose "
        "attention transformers can exchange, or leave --from-model out"
    )
