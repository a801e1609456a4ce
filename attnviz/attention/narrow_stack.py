"""A NumPy stack whose numbers are rounded to bfloat16, a type that NumPy lacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ParamSpec, Self

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Floats, attention_output, masked_softmax, scores_by
from attnviz.attention.numpy_attention import NumpyAttention
from attnviz.attention.numpy_stack import LazyTensors, NumpyStack

_Given = ParamSpec("_Given")


def to_bfloat16(numbers: Floats) -> Floats:
    """Return each number rounded to bfloat16: eight significant bits, ties to even."""
    bits = numbers.astype(np.float32, copy=False).view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)  # halfway, and one more where the last kept bit is odd
    rounded += bits
    rounded &= np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(numbers.dtype, copy=False)


def _rounding(compute: Callable[_Given, Floats]) -> Callable[_Given, Floats]:
    """Return a method that rounds the result of another one to bfloat16."""

    def rounding(*given: _Given.args, **named: _Given.kwargs) -> Floats:
        return to_bfloat16(compute(*given, **named))

    return rounding


class NarrowAttention(NumpyAttention):
    """NumPy attention that rounds all arrays to bfloat16 as torch does, but inside the softmax."""

    @classmethod
    def of(cls, attention: NumpyAttention) -> Self:
        """Return a rounding attention with the parameters of ``attention``, not yet rounded."""
        return cls(**{part.name: getattr(attention, part.name) for part in fields(attention)})

    joined = _rounding(NumpyAttention.joined)

    def attend(
        self,
        query: Floats,
        key: Floats,
        value: Floats,
        mask: NDArray[Any] | None,
        edit: Callable[[Floats], Floats] | None = None,
    ) -> tuple[Floats, Floats]:
        scaled = self.score == "scaled-dot"
        score = "dot" if scaled else self.score
        scores = to_bfloat16(scores_by(score, query, key, self.score_weight))
        if scaled:
            scores = to_bfloat16(scores / query.dtype.type(math.sqrt(query.shape[-1])))
        weights = to_bfloat16(masked_softmax(scores, mask))
        weights = weights if edit is None else edit(weights)
        return to_bfloat16(attention_output(weights, value)), weights

    def heads_of(self, *given: Any, **named: Any) -> tuple[Floats, Floats, Floats]:
        query, key, value = super().heads_of(*given, **named)
        return to_bfloat16(query), to_bfloat16(key), to_bfloat16(value)

    def _normed(self, x: Floats, gain: Floats | None) -> Floats:
        return to_bfloat16(super()._normed(to_bfloat16(x), gain))


class NarrowStack(NumpyStack):
    """A NumPy model that rounds its weights, and the inputs and outputs of each part, to bfloat16.

    Sums within a matrix product, a norm or a softmax keep their width, as on torch. The size of the
    error agrees with a run in bfloat16 on torch (tests/benchmarks/bench_rounding.py); its sign does
    not.
    """

    @classmethod
    def of(cls, stack: NumpyStack) -> NarrowStack:
        """Return the same model with rounding. stack: the model."""
        tensors = stack.tensors
        rounded = LazyTensors(tensors.stored, lambda name: to_bfloat16(tensors[name]))
        return cls(stack.shape, rounded, stack.dtype)

    embed = _rounding(NumpyStack.embed)
    after_layer = _rounding(NumpyStack.after_layer)

    def attention(self, layer: int) -> NumpyAttention:
        return NarrowAttention.of(super().attention(layer))

    def _norm(self, name: str, residual: Floats) -> Floats:
        return to_bfloat16(super()._norm(name, to_bfloat16(residual)))

    def _project(self, name: str, x: Floats) -> Floats:
        return to_bfloat16(super()._project(name, to_bfloat16(x)))
