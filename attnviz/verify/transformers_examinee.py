"""A transformers model to be verified: every run goes through the model that was loaded."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from attnviz.engine.attention_calls import borrowed
from attnviz.engine.forward_pass import ForwardPass
from attnviz.engine.observe_torch import observe_pass
from attnviz.engine.patchable import patchable_transformers
from attnviz.errors import UnsupportedError
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Input, Kind, ModelInfo, Tokens
from attnviz.verify.examinee import HeadSum, Outputs, Padded, Reference, Side
from attnviz.verify.head_sums import sum_heads
from attnviz.verify.maps import KeepAll, Maps
from attnviz.verify.module_state import dropout_of, module_state
from attnviz.verify.padding import cut_to_real, on_padding
from attnviz.verify.transformers_runs import (
    eager_maps,
    last_hidden,
    observed_maps,
    plan,
    sink_shares,
)

__all__ = ["TransformersExaminee"]

_PADDED = 3
_TOO_LOW = (
    "not tried on the left in float64: transformers hides padding by the lowest float64, which is "
    "no number to a softmax in float32"
)


class TransformersExaminee:
    """A loaded model and the text that it reads; see ``Examinee``."""

    def __init__(self, model: TransformersModel, passage: Input) -> None:
        self._model = model
        self._whole = model.model
        self.passage = passage
        self._forward = plan(self._whole, passage)
        both = len(self._forward.kinds) > 1
        self._stack = self._whole.get_decoder() if both else self._forward.module

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    @property
    def rounds_in(self) -> str:
        # Many of the library's files compute the softmax or positions in float32 whatever comes.
        return "float32" if self.info.dtype == "float64" else self.info.dtype

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return self._forward.kinds

    @property
    def causal(self) -> tuple[Kind, ...]:
        if "decoder" in self.kinds:
            return ("decoder",)
        # Who writes text one token after another must not look ahead.
        modules = any(getattr(module, "is_causal", False) for module in self._whole.modules())
        return ("self",) if modules or self._whole.can_generate() else ()

    @property
    def dropout(self) -> float:
        return dropout_of(self._whole)

    def capture(self, passage: Input) -> Maps:
        keep = KeepAll()
        self._observe(passage, keep)
        return keep.maps

    def outputs(self, passage: Input) -> Outputs:
        with last_hidden(self._stack) as found:
            self._observe(passage, KeepAll())
        return found[-1]

    def _observe(self, passage: Input, keep: KeepAll) -> None:
        observe_pass(plan(self._whole, passage), keep)

    def references(self) -> tuple[Reference, ...]:
        maps = eager_maps(self._forward, self.capture(self.passage))
        return (Reference("its own eager, as reported", True, maps=maps),)

    def unobserved(self) -> tuple[Reference, ...]:
        own = self._whole.config._attn_implementation
        eager = Reference("against its eager", True, outputs=self._plain("eager"))
        if own == "eager":
            return (eager,)
        plain = Reference(f"against its own, {own}", False, outputs=self._plain(None))
        return (plain, eager)

    @torch.inference_mode()
    def _plain(self, implementation: str | None) -> Outputs:
        with borrowed(self._whole, implementation), last_hidden(self._stack) as found:
            self._forward.run()
        return found[-1]

    def sinks(self) -> Maps:
        return sink_shares(self._forward)

    def head_sums(self) -> tuple[tuple[HeadSum, ...], str]:
        try:
            subject = patchable_transformers(self._whole, self.kinds[-1], self.passage)
        except UnsupportedError as error:
            return (), str(error)
        return sum_heads(subject.root, subject.hook_points, lambda: subject.run(self.passage))

    def padded(self) -> tuple[tuple[Padded, ...], str]:
        parameters = inspect.signature(self._forward.module.forward).parameters
        room = self._model.context
        if "attention_mask" not in parameters:
            return (), f"{type(self._whole).__name__} takes no attention mask"
        if room is not None and len(self.passage.ids) + _PADDED > room:
            return (), "the text fills the context: there is no room for padding"
        # On the left, real tokens keep their places only where these can be handed over.
        if self.causal != ("self",) or "position_ids" not in parameters:
            return (self._padded("right"),), ""
        if self.info.dtype == "float64":
            return (self._padded("right"),), _TOO_LOW
        return (self._padded("right"), self._padded("left")), ""

    def _padded(self, side: Side) -> Padded:
        real = len(self.passage.ids)
        padding = (self._padding,) * _PADDED
        ids = (*self.passage.ids, *padding) if side == "right" else (*padding, *self.passage.ids)
        start = 0 if side == "right" else _PADDED
        kept = slice(start, start + real)
        mask = torch.zeros((1, len(ids)), dtype=torch.long)
        mask[:, kept] = 1
        forward = plan(self._whole, replace(self.passage, text=Tokens.bare(ids)), mask)
        if side == "left":
            places = (mask.cumsum(-1) - 1).clamp(min=0).to(self._whole.device)
            forward = replace(forward, inputs=forward.inputs | {"position_ids": places})
        return self._cut(side, forward, kept)

    def _cut(self, side: Side, forward: ForwardPass, kept: slice) -> Padded:
        with last_hidden(self._stack) as found:
            maps = observed_maps(forward)
        # A decoder's own text is not padded.
        outputs = found[-1][kept] if len(self.kinds) == 1 else found[-1]
        return Padded(side, cut_to_real(maps, kept), outputs, *on_padding(maps, kept))

    @property
    def _padding(self) -> int:
        number = getattr(self._whole.config, "pad_token_id", None)
        return number if isinstance(number, int) and number >= 0 else 0

    def other_ids(self, count: int) -> tuple[int, ...]:
        config = self._whole.config
        names = ("pad", "bos", "eos", "decoder_start")
        special = {getattr(config, f"{name}_token_id", None) for name in names}
        if self._model.tokenizer is not None:
            special |= set(self._model.tokenizer.all_special_ids)
        rows = self._whole.get_input_embeddings().num_embeddings
        plain = [number for number in range(rows) if number not in special] or list(range(rows))
        drawn = np.random.default_rng(0).permutation(plain)[:count]
        return tuple(int(drawn[place % len(drawn)]) for place in range(count))

    @contextmanager
    def training(self) -> Iterator[None]:
        modes = [(module, module.training) for module in self._whole.modules()]
        self._whole.train()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

    def state(self) -> dict[str, str]:
        return module_state(self._whole)
