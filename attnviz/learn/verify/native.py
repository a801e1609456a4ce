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
from attnviz.attention.module import MultiHeadAttention
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.engine.capture import capture
from attnviz.engine.inside_attention import OwnHookPoints, observe_hook_points
from attnviz.learn.verify.examinee import (
    PADDED,
    Examinee,
    KeepAll,
    Maps,
    Outputs,
    Padded,
    ReferenceRun,
    Side,
)
from attnviz.learn.verify.others import naive_attention
from attnviz.learn.verify.torch_module import HeadSum, sum_heads
from attnviz.learn.verify.transformers import TransformersExaminee
from attnviz.models.bundled import Bundled
from attnviz.models.model import NumpyModel
from attnviz.models.own import OwnAttention
from attnviz.records import Input

_OTHER_WORDS = 32


class _NativeExaminee(Examinee):
    """A NumPy model to be verified, with its text and its torch twin in evaluation mode.

    vocabulary: number of token ids. causal: whether later tokens are hidden.
    """

    def __init__(
        self, model: NumpyModel, twin: nn.Module, passage: Input, vocabulary: int, causal: bool
    ) -> None:
        super().__init__(model, twin.eval().requires_grad_(False), passage)
        self._model = model
        self._vocabulary = vocabulary
        self.kinds = model.kinds
        self.causal = ("self",) if causal else ()
        self.rounds_in = self.info.dtype

    @abstractmethod
    def _run(self, ids: tuple[int, ...], mask: Tensor | None = None) -> Tensor:
        """Run the twin on token ids; return its outputs (1, token, width).

        mask: as of ``MultiHeadAttention``.
        """

    @abstractmethod
    def _in_numpy(self) -> Outputs:
        """Return the NumPy model's own outputs."""

    @abstractmethod
    def _other_reference(self) -> ReferenceRun[Maps]:
        """Return the attention weights over the text, computed in one more way."""

    def capture(self, passage: Input) -> Maps:
        record = capture(self._model, passage.text, kind="self")
        return {("self", layer.layer): layer.weights for layer in record.layers}

    def outputs(self, passage: Input) -> Outputs:
        return self._watched(passage.ids)[1]

    @torch.inference_mode()
    def _watched(self, ids: tuple[int, ...], mask: Tensor | None = None) -> tuple[Maps, Outputs]:
        """Run the twin while it is observed; return its attention weights and outputs."""
        keep = KeepAll()
        with observe_hook_points(self.root, keep):
            outputs = self._run(ids, mask)
        return keep.maps, outputs[0].double().numpy()

    def references(self) -> tuple[ReferenceRun[Maps], ...]:
        maps, _ = self._watched(self.passage.ids)
        twin = ReferenceRun(f"torch, {type(self.root).__name__}", False, maps)
        return (twin, self._other_reference())

    def unobserved(self) -> tuple[ReferenceRun[Outputs], ...]:
        with torch.inference_mode():
            fused = self._run(self.passage.ids)[0].double().numpy()
        return (
            ReferenceRun("against torch's fused kernel", False, fused),
            ReferenceRun("against NumPy", False, self._in_numpy()),
        )

    def head_sums(self) -> tuple[tuple[HeadSum, ...], str]:
        sites = OwnHookPoints(self.root)
        return sum_heads(self.root, sites, lambda: self._run(self.passage.ids))

    def run_padded(self, side: Side) -> Padded:
        ids, real = self.with_padding(self.other_ids(PADDED), side)
        visible = torch.zeros((1, len(ids)), dtype=torch.bool)
        visible[:, real] = True
        maps, outputs = self._watched(ids, padding_mask(visible))
        return Padded.of_run(side, maps, outputs[real], real)

    def other_ids(self, count: int) -> tuple[int, ...]:
        drawn = np.random.default_rng(0).permutation(self._vocabulary)
        return tuple(int(drawn[place % len(drawn)]) for place in range(count))

    def state(self) -> dict[str, str]:
        return {
            "outputs in NumPy": hashlib.sha256(self._in_numpy().tobytes()).hexdigest(),
            **super().state(),
        }


class BundledExaminee(_NativeExaminee):
    """The bundled model to be verified; transformers' class of its architecture computes it too."""

    def __init__(self, model: Bundled, passage: Input) -> None:
        self._bundled = model
        checkpoint = model.checkpoint
        self._decoder = TorchDecoder.from_llama(checkpoint.config, checkpoint.tensors)
        twin = self._decoder.to(getattr(torch, model.info.dtype))
        super().__init__(model, twin, passage, model.stack.shape.vocabulary, causal=True)

    def _run(self, ids: tuple[int, ...], mask: Tensor | None = None) -> Tensor:
        logits: Tensor = self._decoder(torch.tensor([ids]), mask)
        return logits

    def _in_numpy(self) -> Outputs:
        return self._bundled.stack.logits(self.passage.ids).astype("float64")

    def _other_reference(self) -> ReferenceRun[Maps]:
        from attnviz.models.huggingface import load_transformers  # takes seconds

        directory = str(self._bundled.checkpoint.directory)
        llama = load_transformers(directory, dtype=self.info.dtype, offline=True)
        (eager,) = TransformersExaminee(llama, self.passage).references()
        return ReferenceRun(f"{llama.info.architecture}, eager", False, eager.found)


class OwnExaminee(_NativeExaminee):
    """The library's own attention, ``mha``, to be verified as a model."""

    def __init__(self, model: OwnAttention, passage: Input) -> None:
        self._own = model
        ours, shape = model.attention, model.attention.shape
        self._attention = MultiHeadAttention(
            shape.d_model,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            causal=ours.causal,
            score=ours.score,
        )
        arrays = {
            f"{name}_projection.{part}": getattr(ours, f"{name}_{part}")
            for name in ("query", "key", "value", "output")
            for part in ("weight", "bias")
        } | {"score_weight": ours.score_weight}
        self._state = {name: array for name, array in arrays.items() if array is not None}
        self._attention.load_state_dict(
            {name: torch.from_numpy(array) for name, array in self._state.items()}
        )
        # Words are numbered in order of appearance: any id has an embedding.
        vocabulary = max(passage.ids) + 1 + _OTHER_WORDS
        super().__init__(model, self._attention, passage, vocabulary, model.causal)

    def _run(self, ids: tuple[int, ...], mask: Tensor | None = None) -> Tensor:
        output: Tensor = self._attention(torch.from_numpy(self._own.embed(ids))[None], mask=mask)
        return output

    def _in_numpy(self) -> Outputs:
        return self._own.attention(self._own.embed(self.passage.ids))[0].astype("float64")

    def _other_reference(self) -> ReferenceRun[Maps]:
        words = self._own.embed(self.passage.ids)[None]
        visible = np.ones((1, len(self.passage.ids), len(self.passage.ids)), dtype=np.bool_)
        _, weights = naive_attention(
            self._state,
            words,
            words,
            np.tril(visible) if self._own.causal else visible,
            heads=self.info.heads,
            kv_heads=self.info.kv_heads,
        )
        return ReferenceRun("naive loop", False, {("self", 0): weights[0]})
