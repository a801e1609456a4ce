"""Observe the inputs of transformers' attention functions: queries, keys, scale and mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.engine.attention_calls import Attended, AttentionCall, IncompleteError
from attnviz.engine.forward_pass import plan_pass
from attnviz.engine.observer import (
    ObserveHeads,
    QueriesKeys,
    nothing_to_compare,
    products,
    softmaxed,
    to_numpy,
)
from attnviz.engine.passes import WatchedCall, watched
from attnviz.errors import UnsupportedError
from attnviz.models.attention_interface import uses_interface
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import ModelInfo, Tokens

_ROUNDING = {4: 1e-3, 8: 1e-3}
"""How far weights of this many bytes may be from ours, which are computed in float64."""

_ROUGH = 0.1
"""The same for narrower weights: large 16-bit scores are rounded by up to a sixteenth."""


@torch.inference_mode()
def observe_queries_keys(
    model: TransformersModel, tokens: Tokens, wants: Callable[[int], bool], observe: ObserveHeads
) -> None:
    """Run a transformers model; give the queries and keys of each wanted layer to ``observe``.

    wants: returns True for the index of a wanted layer. Each head's attention weights are
    recomputed from the observed numbers and must equal the model's own.
    """
    info, kind = model.info, model.kinds[0]

    def answer(watch: WatchedCall) -> Attended:
        call = watch.call
        output, weights = watch.eager()
        if watch.kind == kind and wants(watch.layer):
            if call.query.ndim != 4 or call.query.shape[1] % call.key.shape[1]:
                raise IncompleteError
            found = _queries_keys(watch.layer, call)
            _check(info, found, weights)
            observe(found)
        return output, weights

    forward = plan_pass(model.model, {kind}, torch.tensor([tokens.ids]))
    if not uses_interface(model.model):
        raise _not_shown(info.name)
    try:
        watched(forward, answer)
    except IncompleteError:
        raise _not_shown(info.name) from None


def _check(info: ModelInfo, found: QueriesKeys, weights: Tensor | None) -> None:
    """Raise UnsupportedError unless the softmax of queries and keys gives the attention weights.

    weights: the model's own (1, head, query, key), or None.
    """
    if weights is None or weights.shape[:2] != (1, len(found.query)):
        raise _not_shown(info.name)
    allowed = _ROUNDING.get(weights.element_size(), _ROUGH)
    for head, theirs in enumerate(to_numpy(weights[0])):
        if np.isnan(theirs).any():
            raise nothing_to_compare(info, found.layer)
        query, key, bias = found.head(head)
        ours = softmaxed(products(query, key), found.scale, bias)
        if ours.shape != theirs.shape or not abs(ours - theirs).max() <= allowed:
            raise UnsupportedError(
                f"the weights of {info.name!r} are not the softmax of scaled queries and keys "
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
    """Return the mask of a call as a number to add, (1 or heads, query, key): −inf hides a key."""
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
