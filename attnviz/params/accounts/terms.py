"""One line of a count: the number and the arithmetic that a person can check it by."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Term"]


@dataclass(frozen=True)
class Term:
    """A number with its arithmetic.

    label: what is counted, in words.
    count: the number.
    formula: the arithmetic with the numbers in place, as ``4096 × 4096 = 16,777,216``.
    symbols: the same arithmetic in names, as ``d_model × heads × head_dim``; may be empty.
    role: the share it belongs to: ``query``, ``key``, ``value``, ``output``, ``latent``,
        ``bias``, ``norm``, ``up``, ``gate``, ``down``, ``router``, ``embedding``, ``head``,
        ``other``.
    """

    label: str
    count: int
    formula: str
    symbols: str = ""
    role: str = "other"
