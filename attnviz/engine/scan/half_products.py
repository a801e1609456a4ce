"""Products of rows in float32 with a matrix in half precision, in the matrix units of a GPU.

These units multiply halves exactly and sum in float32, many times as fast as they multiply float32.
The matrix consists of halves already; a row becomes the sum of two of them. What is left of a
number is at most 2^-16 of the row's largest, so the error of a product is at most 2^-16 · m · Σ|w|,
where m is that largest number; the usual one is a hundredth of it.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def sums_halves(device: str, dtype: torch.dtype) -> bool:
    """Return True if torch can multiply matrices of ``dtype`` on ``device`` and sum in float32."""
    if device == "cpu" or dtype not in (torch.float16, torch.bfloat16):
        return False
    one = torch.ones(16, 16, device=device, dtype=dtype)
    try:
        return summed(one, one).dtype == torch.float32
    except (TypeError, RuntimeError):  # NotImplementedError is one
        return False


def summed(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return rows · matrixᵀ in float32; rows and matrix have the same half-precision type."""
    return torch.mm(rows, matrix.T, out_dtype=torch.float32)


class Halves:
    """Rows (row, width) as sums of halves; float16 has few exponents, so that each row is scaled.

    dtype: of the halves. Rows that have it already are a single part.
    """

    def __init__(self, rows: Tensor, dtype: torch.dtype) -> None:
        self._exponent: Tensor | None = None
        rows = rows if rows.dtype == dtype else rows.float()
        if rows.dtype != dtype == torch.float16:
            exponent = torch.frexp(rows.abs().amax(-1, keepdim=True)).exponent.clamp(-120, 120)
            self._exponent, rows = exponent, torch.ldexp(rows, -exponent)
        self._high = rows.to(dtype)
        self._low = None if rows.dtype == dtype else (rows - self._high.to(rows.dtype)).to(dtype)

    def times(self, matrix: Tensor) -> Tensor:
        """Return the rows times a matrix of halves (word, width), (row, word) in float32."""
        found = summed(self._high, matrix)
        if self._low is not None:
            found += summed(self._low, matrix)
        return found if self._exponent is None else found.ldexp_(self._exponent)
