"""Holds a pruned model against the whole one with the same heads switched off."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from attnviz.engine.ablation import ablating
from attnviz.engine.patchable import patchable_transformers
from attnviz.models.transformers_model import TransformersModel
from attnviz.prune.records import Head
from attnviz.records import Input

__all__ = ["difference_from_masked"]

_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
_STEPS = 4
"""Of half precision that outputs may be off by: shorter sums are rounded otherwise."""


@torch.inference_mode()
def difference_from_masked(
    model: TransformersModel, heads: Collection[Head], ids: tuple[int, ...]
) -> Callable[[Any], tuple[float, float]]:
    """A function from a model to how far its outputs over ``ids`` are from the masked ones.

    heads: (layer, head) pairs of the model's default kind of attention.

    The function gives the largest absolute difference, and the largest that is allowed: 1e-5 in
    float32 and four rounding steps in half precision, times the largest output above one.
    """
    passage = Input.of_ids(ids, ids[: len(ids) // 2 + 1] if len(model.kinds) > 1 else None)
    subject = patchable_transformers(model.model, model.kinds[0], passage)
    inputs = subject.inputs(passage)
    with ablating(subject, heads):
        expected = _answer(model.model(**inputs))
    scale = max(float(expected.abs().max()), 1.0)
    dtype = model.model.dtype
    allowed = scale * _TOLERANCE.get(dtype, _STEPS * torch.finfo(dtype).eps)

    @torch.inference_mode()
    def difference(other: Any) -> tuple[float, float]:
        found = _answer(other(**inputs))
        if found.shape != expected.shape:
            return float("inf"), allowed
        return float((found - expected).abs().max()), allowed

    return difference


def _answer(output: Any) -> Tensor:
    """The logits, or the final hidden states of a model without a head, in float32 or better."""
    logits = getattr(output, "logits", None)
    answer: Tensor = logits if logits is not None else output[0]
    return answer.double()
