"""Observes a tower that calls its attention once for each picture, frame or window of a layer.

Its tokens have no batch axis, and the calls of a layer lie one after the other along them. Neither
what such a module returns nor what transformers reports of it are attention weights: the answer to
each call is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from attnviz.engine.attention_calls import Attended, AttentionCall, borrowed, taking_calls
from attnviz.engine.forward_pass import nearly_equal, not_its_own
from attnviz.engine.observer import BlockFacts, Observer, to_numpy
from attnviz.models.third_party import running
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Tokens

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

    _run(model, tokens, note)
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
            raise not_its_own(model.model, "its weights are no plain softmax")
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

    _run(model, tokens, answer)


def _run(
    model: TransformersModel,
    tokens: Tokens,
    answer: Callable[[int, AttentionCall], Attended],
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
