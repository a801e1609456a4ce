"""A stack in rounded numbers: what computing in bfloat16 does to it, in NumPy, which has none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.converted_tensors import LazyTensors
from attnviz.attention.numpy_stack import NumpyStack

Floats = NDArray[np.floating]


def to_bfloat16(numbers: Floats) -> Floats:
    """Each number rounded to the nearest of eight significant bits, of two the even one."""
    bits = numbers.astype(np.float32).view(np.uint32)
    halfway = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + halfway) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded.astype(numbers.dtype, copy=False)


class NarrowStack(NumpyStack):
    """A stack whose weights are rounded to bfloat16, as is what passes between its parts.

    Inside attention, and within a matrix product, numbers keep their width, as in hardware that
    multiplies bfloat16: the error is of its size, not the same one.
    """

    @classmethod
    def of(cls, stack: NumpyStack) -> NarrowStack:
        """The same stack, rounded."""
        stored = stack.tensors.stored
        rounded = LazyTensors(stored, lambda name: to_bfloat16(stored[name].astype(np.float32)))
        return cls(stack.shape, rounded, stack.dtype)

    def _norm(self, name: str, residual: Floats) -> Floats:
        return to_bfloat16(super()._norm(name, residual))

    def _project(self, name: str, x: Floats) -> Floats:
        return to_bfloat16(super()._project(name, x))

    def _layer(self, layer: int, residual: Floats, attended: Floats) -> Floats:
        return to_bfloat16(super()._layer(layer, residual, to_bfloat16(attended)))
