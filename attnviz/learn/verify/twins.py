"""The bundled model and ``mha`` as examinees: NumPy models that are compared with torch twins.

A twin has the same numbers: ``TorchDecoder`` or ``MultiHeadAttention``, whose hook points
give weights and heads.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

from attnviz.attention.functional import padding_mask
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.engine.capture import capture
from attnviz.engine.inside_attention import OwnHookPoints, observe_hook_points
from attnviz.learn.verify.examinee import Examinee, KeepAll, Maps, Outputs, ReferenceRun
from attnviz.learn.verify.head_sums import HeadSum, sum_heads
from attnviz.learn.verify.others import naive_attention
from attnviz.learn.verify.own import torch_attention
from attnviz.learn.verify.transformers import TransformersExaminee
from attnviz.models.bundled import Bundled
from attnviz.models.model import NumpyModel
from attnviz.models.own import OwnAttention
from attnviz.records import Input

_OTHER_WORDS = 32


class _TwinExaminee(Examinee):
    """A NumPy model to be verified, with its text and its torch twin in evaluation mode."""

    def __init__(self, model: NumpyModel, twin: nn.Module, passage: Input) -> None:
        super().__init__(model, twin.eval().requires_grad_(False), passage)
        self._model = model
        self.kinds = model.kinds

    @abstractmethod
    def run(self, ids: tuple[int, ...], mask: Tensor | None = None) -> Tensor:
        """Run the twin on token ids with a mask; return its outputs (1, token, width)."""

    @abstractmethod
    def in_numpy(self) -> Outputs:
        """Return the NumPy model's own outputs."""

    @abstractmethod
    def other_reference(self) -> ReferenceRun[Maps]:
        """Return the attention weights over the text, computed in one more way."""

    def observe(self, passage: Input) -> tuple[Maps, Outputs]:
        record = capture(self._model, passage.text, kind="self")
        maps: Maps = {("self", layer.layer): layer.weights for layer in record.layers}
        return maps, self._watched(passage.ids)[1]

    @torch.inference_mode()
    def _watched(self, ids: tuple[int, ...], mask: Tensor | None = None) -> tuple[Maps, Outputs]:
        """Run the twin while it is observed; return its attention weights and outputs."""
        keep = KeepAll()
        with observe_hook_points(self.root, keep):
            outputs = self.run(ids, mask)
        return keep.maps, outputs[0].double().numpy()

    def references(self) -> list[ReferenceRun[Maps]]:
        maps, _ = self._watched(self.passage.ids)
        return [ReferenceRun(f"torch, {type(self.root).__name__}", maps), self.other_reference()]

    def unobserved(self) -> list[ReferenceRun[Outputs]]:
        with torch.inference_mode():
            fused = self.run(self.passage.ids)[0].double().numpy()
        return [
            ReferenceRun("against torch's fused kernel", fused),
            ReferenceRun("against NumPy", self.in_numpy()),
        ]

    def head_sums(self) -> tuple[tuple[HeadSum, ...], str]:
        return sum_heads(self.root, OwnHookPoints(self.root), lambda: self.run(self.passage.ids))

    def run_padded(self, ids: tuple[int, ...], real: slice) -> tuple[Maps, Outputs]:
        visible = torch.zeros((1, len(ids)), dtype=torch.bool)
        visible[:, real] = True
        return self._watched(ids, padding_mask(visible))

    def state(self) -> dict[str, str]:
        outputs = hashlib.sha256(self.in_numpy().tobytes()).hexdigest()
        return {"outputs in NumPy": outputs, **super().state()}


class BundledExaminee(_TwinExaminee):
    """The bundled model to be verified; transformers' class of its architecture computes it too."""

    causal = ("self",)

    def __init__(self, model: Bundled, passage: Input) -> None:
        self._bundled = model
        checkpoint = model.checkpoint
        twin = TorchDecoder.from_llama(checkpoint.config, checkpoint.tensors)
        super().__init__(model, twin.to(getattr(torch, model.info.dtype)), passage)

    def run(self, ids: tuple[int, ...], mask: Tensor | None = None) -> Tensor:
        logits: Tensor = self.root(torch.tensor([ids]), mask)
        return logits

    def in_numpy(self) -> Outputs:
        return self._bundled.stack.logits(self.passage.ids).astype("float64")

    def other_reference(self) -> ReferenceRun[Maps]:
        from attnviz.models.huggingface import load_transformers  # takes seconds

        directory = str(self._bundled.checkpoint.directory)
        llama = load_transformers(directory, dtype=self.info.dtype, offline=True)
        (eager,) = TransformersExaminee(llama, self.passage).references()
        return ReferenceRun(f"{llama.info.architecture}, eager", eager.numbers)

    def token_ids(self) -> list[int]:
        return [*range(self._bundled.stack.shape.vocabulary)]


class OwnExaminee(_TwinExaminee):
    """The library's own attention, ``mha``, to be verified as a model."""

    def __init__(self, model: OwnAttention, passage: Input) -> None:
        self._own = model
        super().__init__(model, torch_attention(model.attention), passage)
        self.causal = ("self",) if model.causal else ()

    def run(self, ids: tuple[int, ...], mask: Tensor | None = None) -> Tensor:
        output: Tensor = self.root(torch.from_numpy(self._own.embed(ids))[None], mask=mask)
        return output

    def in_numpy(self) -> Outputs:
        return self._own.attention(self._own.embed(self.passage.ids))[0].astype("float64")

    def other_reference(self) -> ReferenceRun[Maps]:
        words = self._own.embed(self.passage.ids)[None]
        visible = np.ones((1, words.shape[1], words.shape[1]), dtype=np.bool_)
        visible = np.tril(visible) if self._own.causal else visible
        _, weights = naive_attention(self._own.attention, words, words, visible)
        return ReferenceRun("naive loop", {("self", 0): weights[0]})

    def token_ids(self) -> list[int]:
        # Words are numbered in order of appearance: any id has an embedding.
        return [*range(max(self.passage.ids) + 1 + _OTHER_WORDS)]
