"""Single runs of a transformers model, observed or not, as verifying needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.engine.attention_call import AttentionCall, active
from attnviz.engine.eager_fallback import observe_reported, without_recording_hooks
from attnviz.engine.forward_pass import ForwardPass, plan_pass
from attnviz.engine.model_state import borrowed
from attnviz.engine.patchable import Passage
from attnviz.engine.registered_attention import cross_attention, observe_registered
from attnviz.engine.stacks import Places
from attnviz.models.attention_interface import uses_interface
from attnviz.records import Kind
from attnviz.verify.maps import KeepAll, Maps

__all__ = ["eager_maps", "last_hidden", "observed_maps", "plan", "sink_shares"]


def plan(whole: Any, passage: Passage, attention_mask: Tensor | None = None) -> ForwardPass:
    """A run over one text that computes every kind of attention."""
    target = None if passage.target is None else torch.tensor([passage.target])
    planned = plan_pass(whole, KeepAll(), torch.tensor([passage.ids]), attention_mask, target)
    return replace(planned, compare=False)


@torch.inference_mode()
def observed_maps(forward: ForwardPass) -> Maps:
    """The weights of a run, observed as ``observe_transformers`` does."""
    keep = KeepAll()
    if not (uses_interface(forward.model) and observe_registered(forward, keep)):
        keep = KeepAll()
        observe_reported(forward, keep)
    return keep.maps


@torch.inference_mode()
def eager_maps(forward: ForwardPass, like: Maps) -> Maps:
    """What the model itself reports with eager attention, numbered as the layers of ``like``."""
    with borrowed(forward.model, "eager"), without_recording_hooks(forward.model):
        outputs = forward.run(output_attentions=True)
    found: dict[tuple[Kind, int], NDArray[np.floating]] = {}
    for kind in forward.kinds:
        field = "attentions" if len(forward.kinds) == 1 else f"{kind}_attentions"
        reported = getattr(outputs, field, None) or ()
        # Layers without attention report nothing, but are counted.
        numbers = sorted(layer for other, layer in like if other == kind)
        keep = KeepAll()
        if len(numbers) == len(reported):
            for layer, weights in zip(numbers, reported, strict=True):
                keep.observe(kind, layer, weights)
        found |= keep.maps
    return found


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
    """What a learned sink takes of each row, (head, query, 1), worked out from queries and keys."""
    if not uses_interface(forward.model):
        return {}
    with borrowed(forward.model):
        cross = cross_attention(forward) if Places.ambiguous(forward) else {}
        watch = _Sinks(Places(forward, cross))
        with active(watch):
            forward.run()
    return watch.shares


class _Sinks:
    """Takes the attention calls of a run, and notes what those with a sink give to it.

    transformers hands the sinks of a layer, a score for each head, to its attention function.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self.shares: dict[tuple[Kind, int], NDArray[np.floating]] = {}

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        place = self._places.next(call.module, call.key.shape[-2])
        sinks = call.options.get("s_aux")
        if sinks is not None:
            self.shares[place] = _share(call, sinks)
        return call.eager()


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
