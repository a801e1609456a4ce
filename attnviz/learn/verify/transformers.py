"""A transformers model to be verified; every run uses the loaded model itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.engine.attention_calls import Attended, IncompleteError, borrowed
from attnviz.engine.forward_pass import KINDS, ForwardPass, plan_pass
from attnviz.engine.observe_torch import observe_pass, run_reporting
from attnviz.engine.observer import hand_over
from attnviz.engine.passes import WatchedCall, watched
from attnviz.engine.patchable import patchable_transformers
from attnviz.errors import UnsupportedError
from attnviz.learn.verify.examinee import (
    PADDED,
    Examinee,
    KeepAll,
    Maps,
    Outputs,
    ReferenceRun,
    Side,
)
from attnviz.learn.verify.head_sums import HeadSum, sum_heads
from attnviz.models.attention_interface import uses_interface
from attnviz.models.split import require_numbers
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.whole import embedding_rows
from attnviz.records import Input, Kind, Tokens

_TOO_LOW = (
    "not tried on the left in float64: transformers hides padding by the lowest float64, which is "
    "no number to a softmax in float32"
)


class TransformersExaminee(Examinee):
    """A loaded transformers model to be verified on a text."""

    def __init__(self, model: TransformersModel, passage: Input) -> None:
        require_numbers(model.model)
        super().__init__(model, model.model, passage)
        self._model = model
        self._whole = model.model
        self._forward = _plan(self._whole, passage)
        self.kinds = self._forward.kinds
        both = "decoder" in self.kinds
        self._stack = self._whole.get_decoder() if both else self._forward.module
        # A model that generates text token by token must not see later tokens.
        modules = any(getattr(module, "is_causal", False) for module in self._whole.modules())
        generates = modules or self._whole.can_generate()
        self.causal = ("decoder",) if both else ("self",) if generates else ()
        # Many transformers models compute the softmax or positions in float32 in any dtype.
        self.rounds_in = "float32" if self.info.dtype == "float64" else self.info.dtype

    def observe(self, passage: Input) -> tuple[Maps, Outputs]:
        return self._observed(_plan(self._whole, passage))

    def _observed(self, forward: ForwardPass) -> tuple[Maps, Outputs]:
        keep = KeepAll()
        with _last_hidden(self._stack) as hidden:
            observe_pass(forward, keep)
        return keep.maps, hidden[-1]

    def references(self) -> list[ReferenceRun[Maps]]:
        maps = _eager_maps(self._forward, self.observe(self.passage)[0])
        return [ReferenceRun("its own eager, as reported", maps, exact=True)]

    def unobserved(self) -> list[ReferenceRun[Outputs]]:
        own = self._whole.config._attn_implementation
        eager = ReferenceRun("against its eager", self._plain("eager"), exact=True)
        if own == "eager":
            return [eager]
        return [ReferenceRun(f"against its own, {own}", self._plain(None)), eager]

    @torch.inference_mode()
    def _plain(self, implementation: str | None) -> Outputs:
        with borrowed(self._whole, implementation), _last_hidden(self._stack) as hidden:
            self._forward.run()
        return hidden[-1]

    def sinks(self) -> Maps:
        return _sink_shares(self._forward)

    def head_sums(self) -> tuple[tuple[HeadSum, ...], str]:
        try:
            subject = patchable_transformers(self._whole, self.kinds[-1], self.passage)
        except UnsupportedError as error:
            return (), str(error)
        return sum_heads(subject.root, subject.hook_points, lambda: subject.run(self.passage))

    def sides(self) -> tuple[tuple[Side, ...], str]:
        parameters = inspect.signature(self._forward.module.forward).parameters
        if "attention_mask" not in parameters:
            return (), f"{type(self._whole).__name__} takes no attention mask"
        # With padding on the left, real tokens keep their positions only if position_ids are given.
        if self.causal != ("self",) or "position_ids" not in parameters:
            return ("right",), ""
        if self.info.dtype == "float64":
            return ("right",), _TOO_LOW
        return super().sides()

    def padding_ids(self) -> tuple[int, ...]:
        number = getattr(self._whole.config, "pad_token_id", None)
        return (number if isinstance(number, int) and number >= 0 else 0,) * PADDED

    def run_padded(self, ids: tuple[int, ...], real: slice) -> tuple[Maps, Outputs]:
        mask = torch.zeros((1, len(ids)), dtype=torch.long)
        mask[:, real] = 1
        forward = _plan(self._whole, replace(self.passage, text=Tokens.bare(ids)), mask)
        if real.start:
            positions = (mask.cumsum(-1) - 1).clamp(min=0).to(self._whole.device)
            forward = replace(forward, inputs=forward.inputs | {"position_ids": positions})
        return self._observed(forward)

    def token_ids(self) -> list[int]:
        names = ("pad", "bos", "eos", "decoder_start")
        special = {getattr(self._whole.config, f"{name}_token_id", None) for name in names}
        if self._model.tokenizer is not None:
            special |= set(self._model.tokenizer.all_special_ids)
        rows = range(embedding_rows(self._whole))
        return [number for number in rows if number not in special] or [*rows]


def _plan(whole: Any, passage: Input, attention_mask: Tensor | None = None) -> ForwardPass:
    """Return a planned run over one text that computes every kind of attention.

    whole: the transformers model. passage: the text. attention_mask: 0 at padding; None without.
    """
    target = None if passage.target is None else torch.tensor([passage.target.ids])
    planned = plan_pass(whole, KINDS, torch.tensor([passage.ids]), attention_mask, target)
    return replace(planned, compare=False)  # the checks themselves compare


@torch.inference_mode()
def _eager_maps(forward: ForwardPass, like: Maps) -> Maps:
    """Return the attention weights that the model reports with eager attention.

    They are numbered by the layers of ``like``.
    """
    keep = KeepAll()
    for kind, reported in run_reporting(forward)[1].items():
        # Layers without attention report nothing, but are counted.
        numbers = sorted(layer for other, layer in like if other == kind)
        if len(numbers) == len(reported):
            for layer, weights in zip(numbers, reported, strict=True):
                hand_over(keep, kind, layer, weights)
    return keep.maps


@contextmanager
def _last_hidden(stack: nn.Module) -> Iterator[list[NDArray[np.float64]]]:
    """Yield a list that gets the first text's hidden states (token, width) at each call."""
    states: list[NDArray[np.float64]] = []

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        hidden = output if isinstance(output, Tensor) else output[0]
        states.append(hidden[0].detach().double().cpu().numpy())

    hook = stack.register_forward_hook(leave)
    try:
        yield states
    finally:
        hook.remove()


@torch.inference_mode()
def _sink_shares(forward: ForwardPass) -> Maps:
    """Return the attention share of learned sinks for each query, (head, query, 1).

    It is exp(sink) / (exp(sink) + Σ exp(score)), computed from queries and keys. transformers gives
    the sinks of a layer, a score for each head, to its attention function.
    """
    shares: dict[tuple[Kind, int], NDArray[np.floating]] = {}

    def answer(watch: WatchedCall) -> Attended:
        call, sinks = watch.call, watch.call.options.get("s_aux")
        if sinks is not None:
            query, key = call.query[0].double(), call.key[0].double()
            key = key.repeat_interleave(len(query) // len(key), dim=0)
            scores = query @ key.transpose(-1, -2) * call.options["scaling"]
            mask = call.additive_mask()
            if mask is not None:
                scores = scores + mask[0, :, :, : key.shape[-2]].double()
            sink = sinks.double().reshape(-1, 1, 1).expand(-1, scores.shape[1], 1)
            weights = torch.softmax(torch.cat([scores, sink], -1), -1)
            shares[watch.kind, watch.layer] = weights[..., -1:].cpu().numpy()
        return watch.eager()

    if uses_interface(forward.model):
        with suppress(IncompleteError):
            watched(forward, answer)
    return shares
