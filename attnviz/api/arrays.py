"""Anyone's array of attention weights as NumPy, checked to be one."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.capture.observer import to_numpy
from attnviz.errors import UsageError

__all__ = ["ArrayLike", "as_numpy", "weight_matrices"]

ArrayLike: TypeAlias = Any
"""A NumPy array, a torch tensor, a JAX array, whatever offers ``__array__`` or DLPack, or lists."""

_NUMBER = (int, float, np.number)


def as_numpy(array: ArrayLike) -> NDArray[np.floating]:
    """The numbers as float32 or float64, on the CPU; narrower ones as float32, integers as float64.

    Raises UsageError for what is no array of real numbers.
    """
    try:
        found = _converted(array)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise UsageError(
            f"cannot read a {type(array).__name__} as an array of numbers: {error}"
        ) from error
    if found.dtype.kind in "biu":
        return found.astype(np.float64)
    if found.dtype.kind == "V":  # bfloat16 and its like, of which NumPy knows only the width
        try:
            return found.astype(np.float32)
        except (TypeError, ValueError) as error:
            raise UsageError(f"expected an array of real numbers, got {found.dtype}") from error
    if found.dtype.kind != "f":
        raise UsageError(f"expected an array of real numbers, got {found.dtype}")
    return to_numpy(found)


def _converted(array: ArrayLike) -> NDArray[Any]:
    if hasattr(array, "detach"):  # of torch, which gives no array while gradients are recorded
        return to_numpy(array)
    if isinstance(array, list | tuple) and not all(isinstance(row, _NUMBER) for row in array):
        return np.stack([_converted(row) for row in array])
    if not hasattr(array, "__array__") and hasattr(array, "__dlpack__"):
        return np.from_dlpack(array)
    return np.asarray(array)


def weight_matrices(array: ArrayLike) -> NDArray[np.floating]:
    """Attention weights as an array (head, query, key) of finite numbers that are not negative.

    array: (query, key), (head, query, key), or either with leading axes of length one.

    Raises UsageError for another shape, an empty axis, and the first number that is none.
    """
    weights = as_numpy(array)
    shape = weights.shape
    while weights.ndim > 3 and weights.shape[0] == 1:
        weights = weights[0]
    if weights.ndim not in (2, 3):
        several = " (several texts or layers? choose one, such as weights[0])"
        raise UsageError(
            f"expected weights of shape (query, key) or (head, query, key), got {shape}"
            + (several if weights.ndim > 3 else "")
        )
    if 0 in weights.shape:
        raise UsageError(f"expected at least one head, query and key, got the shape {shape}")
    weights = weights[None] if weights.ndim == 2 else weights
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        place = tuple(int(axis) for axis in np.argwhere(wrong)[0])
        value = float(weights[place])
        where = ", ".join(map(str, place[3 - min(len(shape), 3) :]))
        raise UsageError(
            f"expected finite weights of 0 or more, got {value:.4g} at [{where}]"
            + ("" if np.isnan(value) else ": are these scores? their softmax is the attention")
        )
    return weights
