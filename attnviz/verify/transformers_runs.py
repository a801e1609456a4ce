"""Single runs of a transformers model, observed or not, as verifying needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.engine.attention_calls import Attended, AttentionCall, IncompleteError
from attnviz.engine.forward_pass import KINDS, ForwardPass, plan_pass
from attnviz.engine.observe_torch import observe_pass, run_reporting
from attnviz.engine.observer import hand_over
from attnviz.engine.passes import WatchedCall, watched
from attnviz.models.attention_interface import uses_interface
from attnviz.records import Input, Kind
from attnviz.verify.maps import KeepAll, Maps

__all__ = ["eager_maps", "last_hidden", "observed_maps", "plan", "sink_shares"]


def plan(whole: Any, passage: Input, attention_mask: Tensor | None = None) -> ForwardPass:
    """A run over one text that computes every kind of attention."""
    target = None if passage.target is None else torch.tensor([passage.target.ids])
    planned = plan_pass(whole, KINDS, torch.tensor([passage.ids]), attention_mask, target)
    return replace(planned, compare=False)


@torch.inference_mode()
def observed_maps(forward: ForwardPass) -> Maps:
    """The weights of a run, observed as ``observe_transformers`` does."""
    keep = KeepAll()
    observe_pass(forward, keep)
    return keep.maps


@torch.inference_mode()
def eager_maps(forward: ForwardPass, like: Maps) -> Maps:
    """What the model itself reports with eager attention, numbered as the layers of ``like``."""
    keep = KeepAll()
    for kind, reported in run_reporting(forward)[1].items():
        # Layers without attention report nothing, but are counted.
        numbers = sorted(layer for other, layer in like if other == kind)
        if len(numbers) == len(reported):
            for layer, weights in zip(numbers, reported, strict=True):
                hand_over(keep, kind, layer, weights[:1])
    return keep.maps


@contextmanager
def last_hidden(stack: nn.Module) -> Iterator[list[NDArray[np.float64]]]:
    """Yields a list that gets (token, width) of the first text at each call of ``stack``."""
    found: list[NDArray[np.float64]] = []

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        hidden = output if isinstance(output, Tensor) else output[0]
        found.append(hidden[0].detach().double().cpu().numpy())

    hook = stack.register_forward_hook(leave)
    try:
        yield found
    finally:
        hook.remove()


@torch.inference_mode()
def sink_shares(forward: ForwardPass) -> Maps:
    """What a learned sink takes of each row, (head, query, 1), worked out from queries and keys.

    transformers hands the sinks of a layer, a score for each head, to its attention function.
    """
    shares: dict[tuple[Kind, int], NDArray[np.floating]] = {}

    def answer(watch: WatchedCall) -> Attended:
        sinks = watch.call.options.get("s_aux")
        if sinks is not None:
            shares[watch.kind, watch.layer] = _share(watch.call, sinks)
        return watch.eager()

    if uses_interface(forward.model):
        with suppress(IncompleteError):
            watched(forward, answer)
    return shares


def _share(call: AttentionCall, sinks: Tensor) -> NDArray[np.floating]:
    """exp(sink) / (exp(sink) + Σ exp(score)) of the first text."""
    query, key = call.query[0].double(), call.key[0].double()
    key = key.repeat_interleave(len(query) // len(key), dim=0)
    scores = query @ key.transpose(-1, -2) * call.options["scaling"]
    mask = call.additive_mask()
    if mask is not None:
        scores = scores + mask[0, :, :, : key.shape[-2]].double()
    sink = sinks.double().reshape(-1, 1, 1).expand(-1, scores.shape[1], 1)
    shares: NDArray[np.floating] = (
        torch.softmax(torch.cat([scores, sink], -1), -1)[..., -1:].cpu().numpy()
    )
    return shares
