"""The bundled model or ``mha`` to be verified: NumPy runs them, their torch twins are the proof.

A twin is built of the same numbers: ``TorchDecoder`` or ``MultiHeadAttention``, whose hook points
show weights and heads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from attnviz.attention.functional import padding_mask
from attnviz.engine.ablation_hook_points import HookPointSites
from attnviz.engine.hook_points import observe_hook_points
from attnviz.engine.patchable import Passage
from attnviz.engine.run import capture
from attnviz.models.model import NumpyModel
from attnviz.records import Kind, ModelInfo, Tokens
from attnviz.verify.examinee import HeadSum, Outputs, Padded, Reference, Side
from attnviz.verify.head_sums import sum_heads
from attnviz.verify.maps import KeepAll, Maps
from attnviz.verify.module_state import module_state
from attnviz.verify.padding import cut_to_real, on_padding

__all__ = ["NativeExaminee"]

_PADDED = 3


class NativeExaminee:
    """A NumPy model, its text and its torch twin; see ``Examinee``.

    twin: in evaluation mode. run: the twin's outputs (1, token, width) over token ids, under a
        mask as ``MultiHeadAttention`` takes it.
    in_numpy: the NumPy model's own outputs (token, width).
    others: further ways to the same weights.
    causal: whether a token sees no later one.
    """

    dropout = 0.0

    def __init__(
        self,
        model: NumpyModel,
        passage: Passage,
        twin: nn.Module,
        run: Callable[[tuple[int, ...], Tensor | None], Tensor],
        in_numpy: Callable[[tuple[int, ...]], Outputs],
        others: Callable[[], tuple[Reference, ...]],
        *,
        causal: bool,
        vocabulary: int,
    ) -> None:
        self._model = model
        self._twin = twin
        self._run = run
        self._in_numpy = in_numpy
        self._others = others
        self._vocabulary = vocabulary
        self.passage = passage
        self.causal: tuple[Kind, ...] = ("self",) if causal else ()

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    @property
    def rounds_in(self) -> str:
        return self.info.dtype

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return self._model.kinds

    def capture(self, passage: Passage) -> Maps:
        blank = ("",) * len(passage.ids)
        tokens = Tokens(passage.ids, blank, (False,) * len(passage.ids))
        record = capture(self._model, tokens, kind="self")
        return {("self", layer.layer): layer.weights for layer in record.layers}

    def outputs(self, passage: Passage) -> Outputs:
        return self._watched(passage.ids)[1]

    @torch.inference_mode()
    def _watched(self, ids: tuple[int, ...], mask: Tensor | None = None) -> tuple[Maps, Outputs]:
        """The twin's weights and outputs while its hook points are observed."""
        keep = KeepAll()
        with observe_hook_points(self._twin, keep):
            outputs = self._run(ids, mask)
        return keep.maps, outputs[0].double().numpy()

    def references(self) -> tuple[Reference, ...]:
        maps, _ = self._watched(self.passage.ids)
        twin = Reference(f"torch, {type(self._twin).__name__}", False, maps=maps)
        return (twin, *self._others())

    def unobserved(self) -> tuple[Reference, ...]:
        with torch.inference_mode():
            fused = self._run(self.passage.ids, None)[0].double().numpy()
        return (
            Reference("against torch's fused kernel", False, outputs=fused),
            Reference("against NumPy", False, outputs=self._in_numpy(self.passage.ids)),
        )

    def sinks(self) -> Maps:
        return {}

    def head_sums(self) -> tuple[tuple[HeadSum, ...], str]:
        sites = HookPointSites(self._twin)
        return sum_heads(self._twin, sites, lambda: self._run(self.passage.ids, None))

    def padded(self) -> tuple[tuple[Padded, ...], str]:
        room = self._model.context
        if room is not None and len(self.passage.ids) + _PADDED > room:
            return (), "the text fills the context: there is no room for padding"
        return (self._padded("right"), self._padded("left")), ""

    def _padded(self, side: Side) -> Padded:
        real = len(self.passage.ids)
        padding = self.other_ids(_PADDED)
        ids = (*self.passage.ids, *padding) if side == "right" else (*padding, *self.passage.ids)
        start = 0 if side == "right" else _PADDED
        kept = slice(start, start + real)
        visible = torch.zeros((1, len(ids)), dtype=torch.bool)
        visible[:, kept] = True
        maps, outputs = self._watched(ids, padding_mask(visible))
        return Padded(side, cut_to_real(maps, kept), outputs[kept], *on_padding(maps, kept))

    def other_ids(self, count: int) -> tuple[int, ...]:
        drawn = np.random.default_rng(0).permutation(self._vocabulary)
        return tuple(int(drawn[place % len(drawn)]) for place in range(count))

    @contextmanager
    def training(self) -> Iterator[None]:
        yield

    def state(self) -> dict[str, str]:
        outputs = self._in_numpy(self.passage.ids)
        return {
            "outputs in NumPy": hashlib.sha256(outputs.tobytes()).hexdigest(),
            **module_state(self._twin),
        }
